import type { Trans } from '../format';
import {
  deviceName,
  judgesCompute,
  memory,
  percent,
  place,
  reserve,
  wait
} from '../format';
import { queueRows } from '../rows';
import type { IGpuState } from '../tokens';
import type { IDevice, IPool } from '../types';
import { Bar, Chip, Section } from './parts';

/** The devices, and what of them is taken, free and used. */
export function PoolSection(props: {
  pool: IPool;
  state: IGpuState;
  trans: Trans;
}): JSX.Element {
  const { pool, state, trans } = props;
  const kept = reserve(pool.devices, trans);
  return (
    <Section
      name="pool"
      title={pool.hub ? trans.__("This session's pool") : trans.__('Pool')}
      count={pool.devices.length}
    >
      {pool.hub ? (
        <div className="jp-gpuslice-detail">
          <a href={pool.hub} target="_blank" rel="noreferrer">
            {trans.__('All GPUs of the hub, and its queue')}
          </a>
        </div>
      ) : null}
      {pool.devices.length ? (
        <ul className="jp-gpuslice-list">
          {pool.devices.map(device => (
            <DeviceItem
              key={device.uuid}
              device={device}
              devices={pool.devices}
              state={state}
              trans={trans}
            />
          ))}
        </ul>
      ) : (
        <div className="jp-gpuslice-empty">
          {trans.__('There are no devices to share.')}
        </div>
      )}
      {kept ? <div className="jp-gpuslice-kept">{kept}</div> : null}
    </Section>
  );
}

function DeviceItem(props: {
  device: IDevice;
  devices: readonly IDevice[];
  state: IGpuState;
  trans: Trans;
}): JSX.Element {
  const { device, devices, state, trans } = props;
  const taken = device.memory_mib - device.free_mib;
  const takenPercent = device.compute_percent - device.free_percent;
  const healthy = device.health === 'ok';
  return (
    <li
      className="jp-gpuslice-item jp-gpuslice-device"
      data-device={device.uuid}
      data-health={device.health}
    >
      <div className="jp-gpuslice-item-head">
        <span className="jp-gpuslice-name" title={device.uuid}>
          {deviceName(device, devices, trans)}
        </span>
        {healthy ? null : (
          <Chip state={device.health}>{health(device.health, trans)}</Chip>
        )}
      </div>
      <div className="jp-gpuslice-bars">
        <Bar
          label={trans.__('Memory')}
          text={trans.__(
            '%1 free of %2',
            memory(device.free_mib, trans),
            memory(device.memory_mib, trans)
          )}
          value={device.used_mib}
          taken={taken}
          max={device.memory_mib}
          excess={trans.__(
            'More of its memory is in use than this pool may grant: by others, or beyond slices.'
          )}
        />
        <Bar
          label={trans.__('Compute')}
          text={trans.__(
            '%1 free of %2',
            percent(device.free_percent, trans),
            percent(device.compute_percent, trans)
          )}
          value={device.utilization_percent}
          taken={takenPercent}
          max={device.compute_percent}
          excess={
            judgesCompute(state.pool?.isolation ?? null)
              ? trans.__(
                  'It is busy for more of the time than this pool may grant: by others, or beyond slices.'
                )
              : ''
          }
        />
      </div>
      <div className="jp-gpuslice-device-use">
        {trans.__(
          '%1 used, %2 busy',
          memory(device.used_mib, trans),
          device.utilization_percent === null
            ? trans.__('unknown')
            : percent(device.utilization_percent, trans)
        )}
        {' · '}
        {holders(device, state, trans)}
      </div>
    </li>
  );
}

/** Who holds something of a device, by name where the server told names. */
function holders(device: IDevice, state: IGpuState, trans: Trans): string {
  const names = new Set<string>();
  let rest = device.memory_mib - device.free_mib;
  for (const lease of state.leases) {
    const slices = lease.slices.filter(slice => slice.device === device.uuid);
    if (slices.length) {
      const kernel = state.kernels.find(k => k.id === lease.holder.id);
      const group = state.groups.find(g => g.lease === lease.id);
      names.add(
        kernel?.name ||
          group?.name ||
          lease.holder.name ||
          lease.holder.user ||
          lease.holder.kind
      );
      rest -= slices.reduce((sum, slice) => sum + slice.memory_mib, 0);
    }
  }
  if (rest > 0) {
    names.add(trans.__('others'));
  }
  return names.size ? [...names].join(', ') : trans.__('nobody');
}

function health(state: string, trans: Trans): string {
  switch (state) {
    case 'lost':
      return trans.__('lost');
    case 'unknown':
      return trans.__('health unknown');
    default:
      return state;
  }
}

/** Who waits, and where the caller stands. */
export function QueueSection(props: {
  state: IGpuState;
  trans: Trans;
}): JSX.Element {
  const { state, trans } = props;
  const rows = queueRows(state);
  const hub = state.pool?.hub;
  return (
    <Section
      name="queue"
      title={hub ? trans.__("This session's queue") : trans.__('Queue')}
      count={rows.length}
    >
      {rows.length ? (
        <ol className="jp-gpuslice-list">
          {rows.map(row => (
            <li
              key={row.key}
              className={
                'jp-gpuslice-queued' + (row.mine ? ' jp-mod-mine' : '')
              }
            >
              <span
                className="jp-gpuslice-place"
                aria-label={place(row.position, trans)}
              >
                {row.position ?? '?'}.
              </span>
              <strong>{row.request}</strong>
              <span className="jp-gpuslice-queued-wait">
                {wait(row.estimate_s, trans)}
              </span>
              <span className="jp-gpuslice-queued-name">
                {row.mine
                  ? row.name
                    ? trans.__('yours: %1', row.name)
                    : trans.__('yours')
                  : row.name || trans.__('somebody else')}
              </span>
            </li>
          ))}
        </ol>
      ) : (
        <div className="jp-gpuslice-empty">
          {hub ? trans.__('No kernel waits.') : trans.__('Nobody waits.')}
        </div>
      )}
    </Section>
  );
}
