import type { Trans } from '../format';
import { uuids, where } from '../format';
import type { IGpuModel } from '../tokens';
import type { IGroup } from '../types';
import type { IViewActions } from './actions';
import { useAction, useGpuState } from './hooks';
import { ActionButton, Chip, Problem, Section } from './parts';

/** The peer groups: kernels that train together. */
export function GroupsSection(props: {
  model: IGpuModel;
  actions: IViewActions;
  trans: Trans;
}): JSX.Element {
  const { model, actions, trans } = props;
  const { groups } = useGpuState(model);
  return (
    <Section
      name="groups"
      title={trans.__('Peer groups')}
      count={groups.length}
    >
      {groups.length ? (
        <ul className="jp-gpuslice-list">
          {groups.map(group => (
            <GroupItem
              key={group.id}
              group={group}
              model={model}
              actions={actions}
              trans={trans}
            />
          ))}
        </ul>
      ) : (
        <div className="jp-gpuslice-empty">
          {trans.__('None yet. Start one from a cell:')}
          <code>%%gpu train -n 2 0.25</code>
        </div>
      )}
    </Section>
  );
}

function GroupItem(props: {
  group: IGroup;
  model: IGpuModel;
  actions: IViewActions;
  trans: Trans;
}): JSX.Element {
  const { group, model, actions, trans } = props;
  const action = useAction();
  const { kernels, leases, pool } = useGpuState(model);
  const devices = pool?.devices ?? [];
  const slices = leases.find(lease => lease.id === group.lease)?.slices ?? [];
  const notebook = kernels.find(kernel => kernel.id === group.kernel);

  const stop = async () => {
    const sure = await actions.confirm({
      title: trans.__('Stop the group %1?', group.name),
      body: trans.__(
        'Its %1 workers end, and what their variables hold is lost.',
        String(group.workers)
      ),
      accept: trans.__('Stop')
    });
    if (sure) {
      await action.run(() => model.stopGroup(group.id));
    }
  };

  return (
    <li
      className="jp-gpuslice-item jp-gpuslice-group"
      data-group-id={group.id}
      data-group-state={group.state}
    >
      <div className="jp-gpuslice-item-head">
        <span className="jp-gpuslice-name">{group.name}</span>
        <Chip state={group.state}>{groupState(group.state, trans)}</Chip>
      </div>
      <div className="jp-gpuslice-slice">
        <strong>
          {trans._n(
            '%1 worker of %2',
            '%1 workers of %2',
            group.workers,
            group.request
          )}
        </strong>
        {group.backend === 'auto' ? null : (
          <span> {trans.__('over %1', group.backend)}</span>
        )}
        {notebook ? <span> {trans.__('for %1', notebook.name)}</span> : null}
      </div>
      {devices.length > 1 && slices.length ? (
        <div className="jp-gpuslice-detail" title={uuids(slices)}>
          {trans.__('on %1', where(slices, devices, trans))}
        </div>
      ) : null}
      <ul className="jp-gpuslice-ranks" aria-label={trans.__('Ranks')}>
        {group.ranks.map(rank => (
          <li key={rank.rank} data-rank={rank.rank}>
            <Chip
              state={rank.state}
              title={
                rank.pid
                  ? trans.__(
                      'Rank %1, process %2',
                      String(rank.rank),
                      String(rank.pid)
                    )
                  : trans.__('Rank %1', String(rank.rank))
              }
            >
              {trans.__(
                'rank %1 %2',
                String(rank.rank),
                rankState(rank.state, trans)
              )}
            </Chip>
          </li>
        ))}
      </ul>
      <div className="jp-gpuslice-actions">
        <ActionButton
          label={trans.__('Interrupt the group %1', group.name)}
          disabled={action.busy || group.state !== 'busy'}
          onClick={() => void action.run(() => model.interruptGroup(group.id))}
        >
          {trans.__('Interrupt')}
        </ActionButton>
        <ActionButton
          label={trans.__('Stop the group %1', group.name)}
          disabled={action.busy}
          danger
          onClick={() => void stop()}
        >
          {trans.__('Stop…')}
        </ActionButton>
      </div>
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

function groupState(state: IGroup['state'], trans: Trans): string {
  switch (state) {
    case 'starting':
      return trans.__('starting');
    case 'ready':
      return trans.__('ready');
    case 'busy':
      return trans.__('busy');
    case 'broken':
      return trans.__('broken');
    case 'stopped':
      return trans.__('stopped');
    default:
      return state;
  }
}

function rankState(state: string, trans: Trans): string {
  switch (state) {
    case 'starting':
      return trans.__('starting');
    case 'idle':
      return trans.__('idle');
    case 'busy':
      return trans.__('busy');
    case 'dead':
      return trans.__('dead');
    default:
      return state;
  }
}
