import { describe, expect, it } from 'vitest';

import { choices } from '../choices';
import {
  brief,
  busy,
  compute,
  deviceName,
  held,
  isNone,
  isolation,
  memory,
  memoryOf,
  percent,
  place,
  reserve,
  uuids as uuidsOf,
  wait,
  where
} from '../format';
import { METADATA_KEY, withRequest } from '../metadata';
import { kernelRows, ownPosition, queueRows } from '../rows';
import type { IGpuState } from '../tokens';
import { device, lease, pool, queued, trans } from './fakes';

function state(change: Partial<IGpuState> = {}): IGpuState {
  return {
    connection: 'live',
    problem: null,
    pool: pool(),
    leases: [],
    ended: new Map(),
    groups: [],
    kernels: [],
    ...change
  };
}

describe('numbers', () => {
  it.each([
    [0, '0 MiB'],
    [512, '512 MiB'],
    [1024, '1 GiB'],
    [1536, '1.5 GiB'],
    [81920, '80 GiB'],
    [163840, '160 GiB'],
    [null, 'unknown'],
    [undefined, 'unknown']
  ])('%s MiB reads %s', (mib, text) => {
    expect(memory(mib, trans)).toBe(text);
  });

  it('never reads what is unknown as nothing', () => {
    expect(percent(null, trans)).toBe('unknown');
    expect(percent(0, trans)).toBe('0%');
    expect(memoryOf(null, 20480, trans)).toBe('unknown / 20 GiB');
    expect(memoryOf(0, 20480, trans)).toBe('0 / 20 GiB');
    expect(memoryOf(100, 512, trans)).toBe('100 MiB / 512 MiB');
    expect(place(null, trans)).toBe('position unknown');
    expect(wait(null, trans)).toBe('wait unknown');
  });

  it.each([
    [0, 'less than a minute'],
    [29, 'less than a minute'],
    [30, 'about 1 min'],
    [600, 'about 10 min'],
    [5400, 'about 1.5 h']
  ])('a wait of %d s reads %s', (seconds, text) => {
    expect(wait(seconds, trans)).toBe(text);
  });
});

describe('leases', () => {
  it.each([
    [
      lease({ used: { memory_mib: 1, utilization_percent: 39.6 } }),
      '0.25 · 40%'
    ],
    [
      lease({
        request: '2',
        slices: ['GPU-1', 'GPU-2'].map(device => ({
          ...lease().slices[0],
          device
        })),
        used: { memory_mib: 1, utilization_percent: 40 }
      }),
      '2 · 80% of 200%'
    ],
    [
      lease({ used: { memory_mib: 3072, utilization_percent: null } }),
      '0.25 · 3 GiB'
    ],
    [lease({ used: null }), '0.25'],
    [queued(), '0.25 · queue 2'],
    [queued({ position: null }), '0.25 · queued'],
    [lease({ state: 'parked' }), '0.25 · parked']
  ])('in brief', (value, text) => {
    expect(brief(value, trans)).toBe(text);
  });

  it('sums memory and compute over devices, in percent of one', () => {
    const [slice] = lease().slices;
    const two = [slice, { ...slice, device: 'GPU-2' }];
    expect(held(two)).toEqual({
      memory_mib: 40960,
      cap_percent: 50,
      devices: 2
    });
    expect(busy(lease({ slices: two }))).toBe(20);
    expect(busy(lease())).toBe(10);
    expect(busy(lease({ used: null }))).toBeNull();
    expect(compute(2, trans)).toBe('Compute of 2 GPUs');
    const free = { ...slice, compute_cap_percent: 100 };
    expect(held([free, free]).cap_percent).toBe(100);
    expect(held([])).toEqual({ memory_mib: 0, cap_percent: 0, devices: 0 });
  });

  it('names devices, and says of simulated ones that they are', () => {
    const fake = device({ kind: 'simulated' });
    expect(deviceName(fake, [fake], trans)).toBe(
      'NVIDIA A100 80GB (simulated)'
    );
    const said = device({ kind: 'simulated', name: 'Simulated A100' });
    expect(deviceName(said, [said, fake], trans)).toBe('Simulated A100');
    const [slice] = lease().slices;
    const two = [slice, { ...slice, device: 'GPU-2' }];
    const devices = [device(), device({ uuid: 'GPU-2', name: 'H100' })];
    expect(where(two, devices, trans)).toBe('NVIDIA A100 80GB; H100');
    expect(where(lease().slices, [], trans)).toBe('GPU-1');
  });

  it('tells devices of one name apart, wherever they are named', () => {
    const uuids = ['GPU-1a2b3c4d-0000', 'GPU-sim-99999999-0000'];
    const devices = uuids.map(uuid => device({ uuid }));
    const names = devices.map(each => deviceName(each, devices, trans));
    expect(names).toEqual([
      'NVIDIA A100 80GB 1a2b3c4d',
      'NVIDIA A100 80GB 99999999'
    ]);
    const [slice] = lease().slices;
    const slices = uuids.map(uuid => ({ ...slice, device: uuid }));
    expect(where(slices, devices, trans)).toBe(
      'NVIDIA A100 80GB 1a2b3c4d, 99999999'
    );
    expect(where([slices[1], slices[1]], devices, trans)).toBe(names[1]);
    expect(uuidsOf(slices)).toBe(uuids.join('\n'));
    const alike = ['GPU-1a2b3c4d-0000', 'GPU-1a2b3c4d-0001'].map(uuid =>
      device({ uuid })
    );
    expect(deviceName(alike[0], alike, trans)).toContain(alike[0].uuid);
  });

  it('says what of each device is kept, where that is told', () => {
    const whole = device({ total_mib: 81 * 1024 });
    const said =
      "1 GiB of each GPU is kept for the driver and CUDA's contexts.";
    expect(reserve([whole, whole], trans)).toBe(said);
    const half = { compute_percent: 50, memory_mib: 40 * 1024 };
    expect(reserve([device({ ...whole, ...half })], trans)).toBe('');
    const told = device({ ...whole, ...half, reserve_mib: 1024 });
    expect(reserve([told], trans)).toBe(said);
    const less = device({ total_mib: 81 * 1024, reserve_mib: 512 });
    expect(reserve([told, less], trans)).toContain('0.5 GiB to 1 GiB');
    // All the compute, and a little of the memory: the rest is others'.
    const part = { total_mib: 80 * 1024, memory_mib: 10 * 1024 };
    expect(reserve([device(part)], trans)).toBe('');
    expect(reserve([device()], trans)).toBe('');
  });

  it('has words for every isolation level, and none made up', () => {
    const levels = 'mig cgroup mps hami framework watch simulated'.split(' ');
    for (const level of levels) {
      expect(isolation(level, trans).sentence).not.toBe('');
    }
    expect(isolation('new', trans)).toEqual({ word: 'new', sentence: '' });
    expect(isolation(null, trans).word).toBe('unknown');
  });

  it('knows what asks for nothing', () => {
    expect(['0', 'none', 'NONE'].every(isNone)).toBe(true);
    expect(['0.5', 'auto', ''].some(isNone)).toBe(false);
  });
});

describe('rows', () => {
  it('joins kernels with their leases, holders first', () => {
    const rows = kernelRows(
      state({
        kernels: [
          { id: 'k0', name: 'a.ipynb', path: 'a.ipynb' },
          { id: 'k1', name: 'b.ipynb', path: 'b.ipynb' }
        ],
        leases: [queued(), lease()]
      })
    );
    expect(rows.map(row => row.kernel.name)).toEqual(['b.ipynb', 'a.ipynb']);
    expect(rows[0].leases.map(l => l.id)).toEqual(['l1', 'q1']);
  });

  it('shows kernels that only their lease tells of, but not other people', () => {
    const other = { kind: 'kernel', id: 'k9', user: 'bob', name: '' } as const;
    const rows = kernelRows(
      state({
        leases: [
          lease({ notebook: 'work/papermill.ipynb' }),
          lease({ id: 'x', holder: other })
        ]
      })
    );
    expect(rows.map(row => row.kernel.name)).toEqual(['papermill.ipynb']);
  });

  it('orders the queue, marks what is mine and names nobody unasked', () => {
    const nobody = {
      kind: 'kernel',
      id: null,
      user: null,
      name: null
    } as const;
    const now = state({
      kernels: [{ id: 'k1', name: 'b.ipynb', path: 'b.ipynb' }],
      leases: [queued()],
      pool: pool({
        queue: [
          { id: 'q1', request: '0.25', position: 2, holder: queued().holder },
          { id: null, request: '1', workers: 4, position: 1, holder: nobody }
        ]
      })
    });
    expect(queueRows(now)).toMatchObject([
      { request: '4 × 1', mine: false, name: '' },
      { request: '0.25', mine: true, name: 'b.ipynb' }
    ]);
    expect(ownPosition(now)).toBe(2);
    expect(ownPosition(state())).toBeNull();
  });

  it('shows a lease that queued before the pool told of it', () => {
    expect(queueRows(state({ leases: [queued()] }))).toHaveLength(1);
  });
});

describe('choices', () => {
  const free = (list: ReturnType<typeof choices>) =>
    Object.fromEntries(list.map(choice => [choice.request, choice.free]));

  it('offers only "none" where there is nothing', () => {
    const list = choices(pool({ devices: [] }), null, trans);
    expect(list.map(choice => choice.request)).toEqual(['none']);
  });

  it('follows what is free', () => {
    const busy = device({ free_mib: 40 * 1024, free_percent: 50 });
    const list = choices(pool({ devices: [busy] }), null, trans);
    expect(free(list)).toEqual({
      none: true,
      auto: null,
      '0.25': true,
      '0.5': true,
      '1': false
    });
    expect(list[2].label).toBe('25% of a device, 20 GiB');
  });

  it('counts what the holder has as free for it', () => {
    const full = device({ free_mib: 60 * 1024, free_percent: 75 });
    const list = choices(pool({ devices: [full] }), lease(), trans);
    expect(free(list)['1']).toBe(true);
  });

  it('leaves lost devices out', () => {
    const list = choices(
      pool({ devices: [device({ health: 'lost' })] }),
      null,
      trans
    );
    expect(list).toHaveLength(1);
  });

  it('judges no fraction of a device of which only a part is here', () => {
    const half = device({
      memory_mib: 40 * 1024,
      free_mib: 40 * 1024,
      compute_percent: 50,
      free_percent: 50
    });
    const list = choices(pool({ devices: [half] }), null, trans);
    expect(free(list)).toEqual({
      none: true,
      auto: null,
      '0.25': null,
      '0.5': null
    });
    expect(list[2].label).toBe('25% of a device');
  });

  const MIB = 1024;
  const part = (compute: number, gib: number) =>
    device({
      total_mib: 80 * MIB,
      memory_mib: Math.floor(gib * MIB),
      free_mib: Math.floor(gib * MIB),
      compute_percent: compute,
      free_percent: compute
    });
  it.each([
    ['half of one', [part(50, 39.75)], ['0.25', '0.5']],
    [
      'half of each of two',
      [part(50, 39.75), part(50, 39.75)],
      ['0.25', '0.5']
    ],
    ['a third of one', [part(33, 26.2)], ['0.25']],
    ['memory alone', [part(0, 10)], ['5GiB', '10GiB']],
    ['little memory, half the compute', [part(50, 10)], ['5GiB', '10GiB']],
    ['little memory, all the compute', [part(100, 10)], ['5GiB', '10GiB']],
    ['very little memory', [part(0, 0.5)], ['512MiB']],
    ['a tenth', [part(10, 7.95)], ['4070MiB', '8140MiB']],
    [
      'half of one, and a whole one',
      [part(50, 39.75), part(100, 79.5)],
      ['0.25', '0.5', '1']
    ],
    [
      'a whole small one',
      [device({ total_mib: 4 * MIB, memory_mib: 3.3 * MIB })],
      ['0.25', '0.5', '1']
    ]
  ])('offers nothing beyond a pool of %s', (_, devices, requests) => {
    for (const told of [undefined, 512]) {
      const all = devices.map(one => ({ ...one, reserve_mib: told }));
      const list = choices(pool({ devices: all }), null, trans);
      expect(list.slice(2).map(choice => choice.request)).toEqual(requests);
    }
  });

  it('judges fractions of a part where it is told what they are of', () => {
    const half = { ...part(50, 39.75), reserve_mib: 512, free_percent: 25 };
    const list = choices(pool({ devices: [half] }), null, trans);
    expect(free(list)).toMatchObject({ '0.25': true, '0.5': false });
    expect(list[3].label).toBe('50% of a device, 39.8 GiB');
  });

  it('offers MIG profiles by name, and several devices', () => {
    const mig = (uuid: string, mib: number) =>
      device({
        uuid,
        kind: 'mig',
        profile: '1g.10gb',
        memory_mib: 9856,
        free_mib: mib
      });
    const list = choices(
      pool({
        devices: [
          device(),
          device({ uuid: 'GPU-2' }),
          mig('a', 0),
          mig('b', 9856)
        ]
      }),
      null,
      trans
    );
    expect(free(list)).toMatchObject({ '1': true, '2': true, '1g.10gb': true });
  });
});

describe('metadata', () => {
  it('changes the request and nothing else', () => {
    expect(METADATA_KEY).toBe('gpuslice');
    expect(withRequest({ request: '1', note: 'x' }, '0.5')).toEqual({
      request: '0.5',
      note: 'x'
    });
    expect(withRequest(undefined, 'auto')).toEqual({ request: 'auto' });
    expect(withRequest('junk', 'auto')).toEqual({ request: 'auto' });
  });
});
