import type { FormEvent, KeyboardEvent } from 'react';
import { useState } from 'react';

import type { Trans } from '../format';
import {
  busy,
  compute,
  excess,
  held,
  judgesCompute,
  leaseState,
  memoryOf,
  percent,
  place,
  uuids,
  wait,
  where
} from '../format';
import type { IKernelRow } from '../rows';
import { isAuto, kernelRows } from '../rows';
import type { IGpuModel } from '../tokens';
import type { IDevice, ILease } from '../types';
import type { IViewActions } from './actions';
import { useAction, useGpuState } from './hooks';
import { ActionButton, Bar, Chip, Problem, Section } from './parts';
import { RequestField } from './request';

/** The kernels of the caller's, their slices, and what can be done to them. */
export function KernelsSection(props: {
  model: IGpuModel;
  actions: IViewActions;
  trans: Trans;
}): JSX.Element {
  const { model, actions, trans } = props;
  const state = useGpuState(model);
  const rows = kernelRows(state);
  const devices = state.pool?.devices ?? [];
  return (
    <Section name="kernels" title={trans.__('My kernels')} count={rows.length}>
      {rows.length ? (
        <ul className="jp-gpuslice-list">
          {rows.map(row => (
            <KernelItem
              key={row.kernel.id}
              row={row}
              devices={devices}
              model={model}
              actions={actions}
              trans={trans}
            />
          ))}
        </ul>
      ) : (
        <div className="jp-gpuslice-empty">
          {trans.__(
            'No kernel is running. Open a notebook: its kernel gets what is free, and you can ask for a slice of your choice here or in its toolbar.'
          )}
        </div>
      )}
    </Section>
  );
}

function KernelItem(props: {
  row: IKernelRow;
  devices: readonly IDevice[];
  model: IGpuModel;
  actions: IViewActions;
  trans: Trans;
}): JSX.Element {
  const { row, devices, model, actions, trans } = props;
  const { kernel, ended } = row;
  const [lease] = row.leases;
  const [asking, setAsking] = useState(false);
  const action = useAction();
  const path = kernel.path;
  // Beside what was asked for by name, an automatic slice minds itself.
  const named = row.leases.filter(one => !isAuto(one));
  const changeable = named.length ? named : row.leases;

  const release = async (lease: ILease) => {
    const sure =
      lease.state !== 'active' ||
      (await actions.confirm({
        title: trans.__('Release the slice?'),
        body: trans.__(
          '%1 gives %2 back. What it holds in device memory may be lost, and somebody else may take the slice.',
          kernel.name,
          lease.request
        ),
        accept: trans.__('Release')
      }));
    if (sure) {
      await action.run(() => model.release(lease.id));
    }
  };

  return (
    <li
      className="jp-gpuslice-item jp-gpuslice-kernel"
      data-kernel-id={kernel.id}
      data-lease-state={lease?.state ?? 'none'}
    >
      <div className="jp-gpuslice-item-head">
        {path ? (
          <button
            type="button"
            className="jp-gpuslice-name"
            title={path}
            onClick={() => actions.openDocument(path)}
          >
            {kernel.name}
          </button>
        ) : (
          <span className="jp-gpuslice-name" title={kernel.id}>
            {kernel.name}
          </span>
        )}
        <Chip state={lease?.state ?? 'none'}>
          {lease ? leaseState(lease.state, trans) : trans.__('no slice')}
        </Chip>
      </div>
      {row.leases.map(one => (
        <LeaseBody key={one.id} lease={one} devices={devices} trans={trans} />
      ))}
      {!lease && ended ? (
        <Problem
          problem={{
            message: trans.__(
              'Its slice %1 was %2.',
              ended.request,
              leaseState(ended.state, trans)
            ),
            hint: ended.detail ?? '',
            reason: ended.state
          }}
          trans={trans}
          onDismiss={() => model.dismiss(kernel.id)}
        />
      ) : null}
      {lease?.needs_restart ? (
        <div className="jp-gpuslice-restart">
          <span>{trans.__('Restart the kernel to use this slice.')}</span>
          <ActionButton
            label={trans.__('Restart the kernel of %1', kernel.name)}
            disabled={action.busy}
            onClick={() =>
              void action.run(() =>
                actions.restartKernel(kernel.id, kernel.name)
              )
            }
          >
            {trans.__('Restart…')}
          </ActionButton>
        </div>
      ) : null}
      {asking ? (
        <AskForm
          kernelId={kernel.id}
          lease={changeable[0] ?? null}
          model={model}
          trans={trans}
          onDone={() => setAsking(false)}
        />
      ) : (
        <div className="jp-gpuslice-actions">
          {lease ? (
            <>
              <ActionButton
                label={
                  changeable[0].state === 'queued'
                    ? trans.__('Change the request of %1', kernel.name)
                    : trans.__('Resize the slice of %1', kernel.name)
                }
                expanded={false}
                disabled={action.busy}
                onClick={() => setAsking(true)}
              >
                {changeable[0].state === 'queued'
                  ? trans.__('Change')
                  : trans.__('Resize')}
              </ActionButton>
              {changeable.map(one =>
                one.state === 'queued' ? (
                  <ActionButton
                    key={one.id}
                    label={trans.__('Leave the queue with %1', kernel.name)}
                    disabled={action.busy}
                    onClick={() => void release(one)}
                  >
                    {trans.__('Leave the queue')}
                  </ActionButton>
                ) : (
                  <ActionButton
                    key={one.id}
                    label={trans.__('Release the slice of %1', kernel.name)}
                    disabled={action.busy}
                    onClick={() => void release(one)}
                  >
                    {trans.__('Release')}
                  </ActionButton>
                )
              )}
            </>
          ) : devices.length ? (
            <ActionButton
              label={trans.__('Ask for a slice for %1', kernel.name)}
              expanded={false}
              onClick={() => setAsking(true)}
            >
              {trans.__('Ask for a slice')}
            </ActionButton>
          ) : null}
        </div>
      )}
      {action.problem ? (
        <Problem
          problem={action.problem}
          trans={trans}
          onDismiss={action.clear}
        />
      ) : null}
    </li>
  );
}

/** One lease of a kernel: what it is, where, and what it uses. */
function LeaseBody(props: {
  lease: ILease;
  devices: readonly IDevice[];
  trans: Trans;
}): JSX.Element {
  const { lease, devices, trans } = props;
  const has = held(lease.slices);
  const at = where(lease.slices, devices, trans);
  const over = excess(trans);
  const used = busy(lease);
  return (
    <div className="jp-gpuslice-lease" data-lease-id={lease.id}>
      <div
        className="jp-gpuslice-slice"
        title={uuids(lease.slices) || undefined}
      >
        <strong>{lease.request}</strong>
        {at ? <span> {trans.__('of %1', at)}</span> : null}
        {lease.state === 'queued' ? (
          <span className="jp-gpuslice-waiting">
            {' '}
            {trans.__(
              'waits at %1, %2',
              place(lease.position, trans),
              wait(lease.estimate_s, trans)
            )}
          </span>
        ) : null}
      </div>
      {lease.state === 'queued' ? null : lease.state === 'parked' ? (
        <div className="jp-gpuslice-waiting">
          {trans.__('Its device memory is kept in host memory.')}
        </div>
      ) : (
        <div className="jp-gpuslice-bars">
          <Bar
            label={trans.__('Memory')}
            text={memoryOf(lease.used?.memory_mib, has.memory_mib, trans)}
            value={lease.used?.memory_mib}
            max={has.memory_mib}
            excess={over.memory}
          />
          <Bar
            label={compute(has.devices, trans)}
            text={trans.__(
              '%1 / %2',
              percent(used, trans),
              percent(has.cap_percent, trans)
            )}
            value={used}
            max={has.cap_percent}
            excess={judgesCompute(lease.isolation) ? over.compute : ''}
          />
        </div>
      )}
      {lease.detail ? (
        <div className="jp-gpuslice-detail">{lease.detail}</div>
      ) : null}
    </div>
  );
}

/** The small form in which a kernel's slice is asked for or changed. */
function AskForm(props: {
  kernelId: string;
  lease: ILease | null;
  model: IGpuModel;
  trans: Trans;
  onDone: () => void;
}): JSX.Element {
  const { kernelId, lease, model, trans, onDone } = props;
  const [text, setText] = useState(lease?.request ?? 'auto');
  const action = useAction();

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (await action.run(() => model.assign(kernelId, text.trim()))) {
      onDone();
    }
  };
  const write = (request: string) => {
    action.clear();
    setText(request);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      onDone();
    }
  };
  return (
    // Escape closes the form from anywhere in it, as it does in dialogs.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-element-interactions
    <form
      className="jp-gpuslice-form"
      aria-label={trans.__('Slice to ask for')}
      onSubmit={event => void submit(event)}
      onKeyDown={onKeyDown}
    >
      <RequestField
        compact
        focus
        model={model}
        trans={trans}
        value={text}
        onChange={write}
        problem={action.problem}
        kernelId={kernelId}
        own={lease}
        disabled={action.busy}
      />
      <div className="jp-gpuslice-actions">
        <button
          type="submit"
          className="jp-gpuslice-action jp-mod-primary"
          disabled={action.busy || !text.trim()}
        >
          {!lease
            ? trans.__('Ask')
            : lease.state === 'queued'
              ? trans.__('Change')
              : trans.__('Resize')}
        </button>
        <button type="button" className="jp-gpuslice-action" onClick={onDone}>
          {trans.__('Cancel')}
        </button>
      </div>
    </form>
  );
}
