import type { Trans } from '../format';
import { isolation, memory, percent } from '../format';
import { ownPosition } from '../rows';
import type { IGpuModel } from '../tokens';
import { useGpuState } from './hooks';

/** Held, used and the place in the queue, in one line. */
export function StatusItem(props: {
  model: IGpuModel;
  trans: Trans;
  onClick: () => void;
}): JSX.Element | null {
  const { model, trans, onClick } = props;
  const state = useGpuState(model);
  const { pool } = state;
  if (!pool) {
    return null;
  }
  const held = pool.session?.held;
  const used = pool.session?.used;
  const position = ownPosition(state);
  const parts: { name: string; text: string }[] = [];
  if (!pool.devices.length) {
    parts.push({ name: 'held', text: trans.__('GPU none') });
  } else if (held?.memory_mib === 0) {
    parts.push({ name: 'held', text: trans.__('GPU none held') });
  } else {
    parts.push(
      {
        name: 'held',
        text: trans.__('GPU %1 held', memory(held?.memory_mib, trans))
      },
      {
        name: 'used',
        text: trans.__('%1 used', memory(used?.memory_mib, trans))
      }
    );
  }
  if (position !== null) {
    parts.push({
      name: 'queue',
      text: trans.__('queue %1', String(position))
    });
  }
  const title = pool.devices.length
    ? trans.__(
        'GPU (%1): %2 used of %3 held; compute %4 used of %5 held',
        isolation(pool.isolation, trans).word,
        memory(used?.memory_mib, trans),
        memory(held?.memory_mib, trans),
        percent(used?.percent, trans),
        percent(held?.percent, trans)
      )
    : trans.__('No GPU here. %1', pool.note ?? '');
  return (
    <button
      type="button"
      className="jp-gpuslice-status"
      // What it shows is what it is called; there may be less of it where it is narrow.
      title={`${title}\n${trans.__('Click to show the GPU panel.')}`}
      onClick={onClick}
    >
      {parts.map(({ name, text }, index) => (
        <span key={name} className={`jp-gpuslice-status-${name}`}>
          {index ? ` · ${text}` : text}
        </span>
      ))}
    </button>
  );
}
