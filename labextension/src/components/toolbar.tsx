import type { ReactNode } from 'react';

import type { Trans } from '../format';
import {
  brief,
  busy,
  compute,
  excess,
  held,
  judgesCompute,
  leaseState,
  memoryOf,
  percent,
  place,
  wait,
  where
} from '../format';
import { leasesOfKernel } from '../rows';
import type { IGpuModel, IGpuState } from '../tokens';
import type { ILease } from '../types';
import { useGpuState } from './hooks';

/** The slice of one notebook's kernel; a click lets the user choose. */
export function ToolbarItem(props: {
  model: IGpuModel;
  trans: Trans;
  kernelId: string | null;
  icon: ReactNode;
  onClick: () => void;
}): JSX.Element {
  const { model, trans, kernelId, icon, onClick } = props;
  const state = useGpuState(model);
  const [lease] = kernelId ? leasesOfKernel(state.leases, kernelId) : [];
  const text = lease ? brief(lease, trans) : trans.__('No slice');
  const restart = trans.__('restart to use');
  const title = lease
    ? describe(lease, state, trans)
    : state.pool && !state.pool.devices.length
      ? trans.__('No GPU here. %1', state.pool.note ?? '')
      : trans.__('This notebook has no GPU slice.');
  return (
    <button
      type="button"
      className="jp-gpuslice-toolbar-button"
      data-lease-state={lease?.state ?? 'none'}
      data-needs-restart={lease?.needs_restart || undefined}
      title={`${title}\n${trans.__('Click to choose a slice.')}`}
      aria-label={trans.__(
        'GPU slice: %1. Choose a slice',
        lease?.needs_restart ? `${text} ${restart}` : text
      )}
      aria-haspopup="dialog"
      onClick={onClick}
    >
      {icon}
      <span>{text}</span>
      {lease?.needs_restart ? (
        <span className="jp-gpuslice-toolbar-restart">{restart}</span>
      ) : null}
    </button>
  );
}

function describe(lease: ILease, state: IGpuState, trans: Trans): string {
  const lines = [
    trans.__('%1, %2', lease.request, leaseState(lease.state, trans))
  ];
  if (lease.state === 'queued') {
    lines.push(
      `${place(lease.position, trans)}, ${wait(lease.estimate_s, trans)}`
    );
  } else {
    const has = held(lease.slices);
    const used = busy(lease);
    const over = excess(trans);
    lines.push(
      where(lease.slices, state.pool?.devices ?? [], trans),
      trans.__(
        'Memory %1',
        memoryOf(lease.used?.memory_mib, has.memory_mib, trans)
      ),
      trans.__(
        '%1 %2 / %3',
        compute(has.devices, trans),
        percent(used, trans),
        percent(has.cap_percent, trans)
      )
    );
    if ((lease.used?.memory_mib ?? 0) > has.memory_mib) {
      lines.push(over.memory);
    }
    if ((used ?? 0) > has.cap_percent && judgesCompute(lease.isolation)) {
      lines.push(over.compute);
    }
  }
  if (lease.needs_restart) {
    lines.push(trans.__('Restart the kernel to use this slice.'));
  }
  return lines.filter(Boolean).join('\n');
}
