import type { Trans } from '../format';
import type { IGpuModel } from '../tokens';
import type { IViewActions } from './actions';
import { GroupsSection } from './groups';
import { useGpuState } from './hooks';
import { KernelsSection } from './kernels';
import { ActionButton, Problem } from './parts';
import { PoolSection, QueueSection } from './pool';
import { SessionSection } from './session';

/** Everything there is to know and do about GPUs here. */
export function Sidebar(props: {
  model: IGpuModel;
  actions: IViewActions;
  trans: Trans;
}): JSX.Element {
  const { model, actions, trans } = props;
  const state = useGpuState(model);
  const { pool, problem, connection } = state;
  return (
    <div className="jp-gpuslice-panel">
      {problem ? (
        <div className="jp-gpuslice-banner">
          <Problem problem={problem} trans={trans} />
          <ActionButton
            label={trans.__('Try again to read the GPUs')}
            onClick={() => void model.refresh()}
          >
            {trans.__('Try again')}
          </ActionButton>
        </div>
      ) : connection === 'interrupted' ? (
        <div className="jp-gpuslice-banner jp-gpuslice-stale" role="status">
          {trans.__(
            'The connection to the server is interrupted. What stands here may be old.'
          )}
        </div>
      ) : null}
      {pool ? (
        <>
          <SessionSection pool={pool} trans={trans} />
          <KernelsSection model={model} actions={actions} trans={trans} />
          {pool.devices.length || state.groups.length ? (
            <GroupsSection model={model} actions={actions} trans={trans} />
          ) : null}
          {pool.devices.length ? (
            <PoolSection pool={pool} state={state} trans={trans} />
          ) : null}
          {pool.devices.length || pool.queue.length ? (
            <QueueSection state={state} trans={trans} />
          ) : null}
        </>
      ) : problem ? null : (
        <div className="jp-gpuslice-empty" role="status">
          {trans.__('Reading the GPUs…')}
        </div>
      )}
    </div>
  );
}
