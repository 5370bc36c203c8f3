import type { Trans } from '../format';
import { isolation, judgesCompute, memory, percent } from '../format';
import type { IPool, ISessionNumbers } from '../types';
import { Bar, Chip, Section, Warning } from './parts';

const UNKNOWN: ISessionNumbers = {
  entitled: { memory_mib: null, devices: null, text: null },
  held: { memory_mib: null, percent: null },
  used: { memory_mib: null, percent: null }
};

/** Entitled, held and used: three numbers, never mixed. */
export function SessionSection(props: {
  pool: IPool;
  trans: Trans;
}): JSX.Element {
  const { pool, trans } = props;
  const { entitled, held, used } = pool.session ?? UNKNOWN;
  const level = isolation(pool.isolation, trans);
  const devices = pool.devices.length;
  const compute = pool.devices.reduce(
    (sum, device) => sum + device.compute_percent,
    0
  );
  return (
    <Section name="session" title={trans.__('My session')}>
      {devices ? (
        <>
          <div className="jp-gpuslice-level">
            <Chip state={pool.isolation ?? 'unknown'}>{level.word}</Chip>
            <span>{level.sentence}</span>
          </div>
          <table className="jp-gpuslice-numbers">
            <thead>
              <tr>
                <td />
                <th scope="col">{trans.__('Memory')}</th>
                <th scope="col" title={trans.__('100% is one whole GPU.')}>
                  {trans.__('Compute')}
                </th>
              </tr>
            </thead>
            <tbody>
              <tr title={trans.__('What this session may hold')}>
                <th scope="row">
                  {trans.__('Entitled')}
                  {entitled.text ? (
                    <span className="jp-gpuslice-soft"> {entitled.text}</span>
                  ) : null}
                </th>
                <td>{memory(entitled.memory_mib, trans)}</td>
                <td>{percent(compute, trans)}</td>
              </tr>
              <tr title={trans.__('What the leases of this session hold')}>
                <th scope="row">{trans.__('Held')}</th>
                <td>{memory(held.memory_mib, trans)}</td>
                <td>{percent(held.percent, trans)}</td>
              </tr>
              <tr title={trans.__('What was measured')}>
                <th scope="row">{trans.__('Used')}</th>
                <td>{memory(used.memory_mib, trans)}</td>
                <td>{percent(used.percent, trans)}</td>
              </tr>
            </tbody>
          </table>
          {entitled.memory_mib ? (
            <Bar
              hideLabel
              label={trans.__('Memory of this session')}
              text={trans.__(
                '%1 used of %2 held, %3 entitled',
                memory(used.memory_mib, trans),
                memory(held.memory_mib, trans),
                memory(entitled.memory_mib, trans)
              )}
              value={used.memory_mib}
              taken={held.memory_mib ?? undefined}
              max={entitled.memory_mib}
              // Said below, where it begins: beyond what is held.
              excess=""
            />
          ) : null}
          {compute > 100 ? (
            <div className="jp-gpuslice-unit">
              {trans.__('Compute of 100% is one whole GPU.')}
            </div>
          ) : null}
          {beyond(used.memory_mib, held.memory_mib) ? (
            <Warning>
              {trans.__('It uses more device memory than it holds.')}
            </Warning>
          ) : null}
          {beyond(used.percent, held.percent) &&
          judgesCompute(pool.isolation) ? (
            <Warning>
              {trans.__(
                'It keeps GPUs busy for more of the time than it holds. Nothing stops that here.'
              )}
            </Warning>
          ) : null}
        </>
      ) : (
        <div className="jp-gpuslice-empty">
          <strong>{trans.__('No GPU here.')}</strong>{' '}
          {pool.note || trans.__('The server does not say why.')}
        </div>
      )}
    </Section>
  );
}

function beyond(used: number | null, held: number | null): boolean {
  return used !== null && held !== null && used > held;
}
