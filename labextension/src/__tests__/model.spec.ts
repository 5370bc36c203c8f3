import { beforeEach, describe, expect, it } from 'vitest';

import { GpuModel } from '../model';
import type { INotice } from '../types';
import {
  FakeApi,
  FakeEvents,
  FakeKernels,
  gate,
  group,
  lease,
  pool,
  queued,
  refusal
} from './fakes';

let api: FakeApi;
let events: FakeEvents;
let kernels: FakeKernels;
let model: GpuModel;

beforeEach(() => {
  api = new FakeApi();
  events = new FakeEvents();
  kernels = new FakeKernels();
  model = new GpuModel({ api, events, kernels });
});

async function live(): Promise<void> {
  events.connectionChanged.emit(true);
  await model.refresh();
}

describe('reading', () => {
  it('knows nothing at first, and says so', () => {
    expect(model.state.connection).toBe('loading');
    expect(model.state.pool).toBeNull();
  });

  it('reads pool, live leases and groups when the stream opens', async () => {
    api.theLeases = [lease(), lease({ id: 'old', state: 'released' })];
    api.theGroups = [group(), group({ id: 'g0', state: 'stopped' })];
    await live();
    expect(model.state.connection).toBe('live');
    expect(model.state.pool).toEqual(pool());
    expect(model.state.leases.map(l => l.id)).toEqual(['l1']);
    expect(model.state.groups.map(g => g.id)).toEqual(['g1']);
  });

  it('keeps the last state and says that it may be old', async () => {
    await live();
    events.connectionChanged.emit(false);
    expect(model.state.connection).toBe('interrupted');
    expect(model.state.pool).not.toBeNull();
  });

  it('reads everything anew on reconnect', async () => {
    await live();
    events.connectionChanged.emit(false);
    api.theLeases = [lease()];
    await live();
    expect(model.state.connection).toBe('live');
    expect(model.state.leases).toHaveLength(1);
  });

  it('shows why it could not read, and recovers', async () => {
    api.failure = refusal;
    await live();
    expect(model.state.problem).toMatchObject({ hint: 'Ask for 1.' });
    api.failure = null;
    await model.refresh();
    expect(model.state.problem).toBeNull();
    expect(model.state.pool).not.toBeNull();
  });

  it('reads nothing but the pool where there is no broker', async () => {
    api.thePool = pool({ isolation: null, devices: [], note: 'Locked.' });
    await live();
    expect(new Set(api.calls.flat())).toEqual(new Set(['pool']));
    expect(model.state.problem).toBeNull();
    expect(model.state.pool?.note).toBe('Locked.');
  });

  it('reads once more if asked to while reading', async () => {
    const { promise, open } = gate();
    api.gate = promise;
    const first = model.refresh();
    api.theLeases = [lease()];
    const second = model.refresh();
    open();
    await Promise.all([first, second]);
    expect(model.state.leases).toHaveLength(1);
    expect(api.calls.filter(([call]) => call === 'pool')).toHaveLength(2);
  });

  it('loses no event that comes in while it reads', async () => {
    await live();
    const { promise, open } = gate();
    api.gate = promise;
    const reading = model.refresh();
    events.sendLease('created', lease());
    open();
    await reading;
    expect(model.state.leases.map(l => l.id)).toEqual(['l1']);
  });
});

describe('events', () => {
  beforeEach(live);

  it('moves leases through their life', () => {
    events.sendLease('created', queued());
    expect(model.state.leases[0].position).toBe(2);
    events.sendLease('changed', queued({ position: 1 }));
    expect(model.state.leases.map(l => l.position)).toEqual([1]);
    events.sendLease('ended', queued({ state: 'released' }));
    expect(model.state.leases).toEqual([]);
  });

  it('remembers an end that nobody asked for, until the next lease', () => {
    events.sendLease('created', lease());
    events.sendLease('ended', lease({ state: 'lost', detail: 'XID 79' }));
    expect(model.state.leases).toEqual([]);
    expect(model.state.ended.get('k1')?.detail).toBe('XID 79');
    events.sendLease('created', lease({ id: 'l2' }));
    expect(model.state.ended.size).toBe(0);
  });

  it('forgets such an end when it is dismissed', () => {
    events.sendLease('ended', lease({ state: 'revoked' }));
    model.dismiss('k1');
    expect(model.state.ended.size).toBe(0);
  });

  it('says nothing of a slice that was released', () => {
    events.sendLease('ended', lease({ state: 'released' }));
    expect(model.state.ended.size).toBe(0);
  });

  it('follows the pool and the groups', () => {
    events.send('pool', { pool: pool({ isolation: 'mig' }) });
    expect(model.state.pool?.isolation).toBe('mig');
    events.send('group', { action: 'created', group: group() });
    events.send('group', {
      action: 'changed',
      group: group({ state: 'ready' })
    });
    expect(model.state.groups.map(g => g.state)).toEqual(['ready']);
    events.send('group', { action: 'ended', group: group() });
    expect(model.state.groups).toEqual([]);
  });

  it('takes use and places in the queue from the pool', () => {
    events.sendLease('created', lease());
    events.sendLease('created', queued());
    const used = { memory_mib: 4096, utilization_percent: 77 };
    const queue = [{ id: 'q1', request: '1', position: 1, estimate_s: null }];
    events.send('pool', { pool: pool({ uses: { l1: used }, queue }) });
    expect(model.state.leases[0].used).toEqual(used);
    expect(model.state.leases[1]).toMatchObject({
      position: 1,
      estimate_s: null
    });
  });

  it('passes notices on', () => {
    const heard: INotice[] = [];
    model.noticed.connect((_, notice) => heard.push(notice));
    const notice = { level: 'warning', message: 'Soon over.', kernel: 'k1' };
    events.send('notice', notice);
    expect(heard).toEqual([notice]);
  });

  it('follows the list of kernels, and is quiet when it is the same', () => {
    let changes = 0;
    model.stateChanged.connect(() => (changes += 1));
    kernels.changed.emit();
    expect(changes).toBe(0);
    kernels.list = [];
    kernels.changed.emit();
    expect(model.state.kernels).toEqual([]);
    expect(changes).toBe(1);
  });

  it('is silent after disposal', () => {
    model.dispose();
    events.sendLease('created', lease());
    expect(model.state.leases).toEqual([]);
    expect(events.isDisposed).toBe(true);
  });
});

describe('actions', () => {
  beforeEach(live);

  it('asks for a slice where the kernel has none', async () => {
    api.answer = queued();
    const answer = await model.assign('k1', '0.25');
    expect(answer?.state).toBe('queued');
    expect(api.calls).toContainEqual([
      'request',
      '0.25',
      { kind: 'kernel', id: 'k1' }
    ]);
    expect(model.state.leases.map(l => l.id)).toEqual(['q1']);
  });

  it('asks beside an automatic slice, which may bridge the wait', async () => {
    events.sendLease('created', lease({ request: 'auto' }));
    api.answer = queued({ request: '1' });
    await model.assign('k1', '1');
    expect(api.calls.map(([call]) => call)).toContain('request');
    expect(model.state.leases.map(l => l.request)).toEqual(['auto', '1']);
    await model.assign('k1', 'none');
    expect(model.state.leases).toEqual([]);
  });

  it('resizes what the kernel holds, not what it waits for', async () => {
    events.sendLease('created', queued());
    events.sendLease('created', lease());
    api.answer = lease({ request: '0.5' });
    await model.assign('k1', '0.5');
    expect(api.calls).toContainEqual(['resize', 'l1', '0.5']);
    expect(model.state.leases.find(l => l.id === 'l1')?.request).toBe('0.5');
  });

  it.each(['0', 'none', ' None '])('releases for %j', async request => {
    events.sendLease('created', lease());
    expect(await model.assign('k1', request)).toBeNull();
    expect(api.calls).toContainEqual(['release', 'l1']);
    expect(model.state.leases).toEqual([]);
  });

  it('asks nothing of the server to give nothing back', async () => {
    await model.assign('k1', 'none');
    expect(api.calls.map(([call]) => call)).not.toContain('release');
  });

  it('believes an event before an answer that it overtook', async () => {
    const { promise, open } = gate();
    api.gate = promise;
    api.answer = lease({ state: 'granted' });
    const asking = model.assign('k1', '0.25');
    events.sendLease('changed', lease({ state: 'active' }));
    open();
    expect((await asking)?.state).toBe('active');
    expect(model.state.leases.map(l => l.state)).toEqual(['active']);
  });

  it('leaves the state as it was where the server refuses', async () => {
    events.sendLease('created', lease());
    const before = model.state;
    api.failure = refusal;
    await expect(model.assign('k1', '2')).rejects.toBe(refusal);
    await expect(model.release('l1')).rejects.toBe(refusal);
    await expect(model.stopGroup('g1')).rejects.toBe(refusal);
    expect(model.state).toBe(before);
  });

  it('interrupts and stops groups', async () => {
    events.send('group', { action: 'created', group: group() });
    await model.interruptGroup('g1');
    expect(api.calls).toContainEqual(['interrupt', 'g1']);
    expect(model.state.groups).toHaveLength(1);
    await model.stopGroup('g1');
    expect(model.state.groups).toEqual([]);
  });
});
