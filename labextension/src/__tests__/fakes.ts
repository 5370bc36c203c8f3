import { Signal } from '@lumino/signaling';

import type { IGpuApi } from '../api';
import { GpuApiError } from '../api';
import type { EventName, IGpuEvent, IGpuEvents } from '../events';
import type { Trans } from '../format';
import type { IKernelList } from '../model';
import type {
  IDevice,
  IExplanation,
  IGroup,
  IKernelInfo,
  ILease,
  IPool
} from '../types';

/** Texts in English, with %1, %2 … filled in as the real translator does. */
export const trans: Trans = {
  __: (text, ...args: unknown[]) => fill(text, args),
  _n: (one, many, n, ...args: unknown[]) =>
    fill(n === 1 ? one : many, [n, ...args])
};

function fill(text: string, args: unknown[]): string {
  return text.replace(/%(\d)/g, (_, n: string) => String(args[Number(n) - 1]));
}

export function device(change: Partial<IDevice> = {}): IDevice {
  return {
    uuid: 'GPU-1',
    name: 'NVIDIA A100 80GB',
    kind: 'gpu',
    memory_mib: 80 * 1024,
    free_mib: 80 * 1024,
    compute_percent: 100,
    free_percent: 100,
    used_mib: 0,
    utilization_percent: 0,
    health: 'ok',
    leases: [],
    ...change
  };
}

export function lease(change: Partial<ILease> = {}): ILease {
  return {
    id: 'l1',
    request: '0.25',
    state: 'active',
    holder: { kind: 'kernel', id: 'k1', user: 'ada', name: 'python3' },
    slices: [
      {
        device: 'GPU-1',
        memory_mib: 20 * 1024,
        compute_percent: 25,
        compute_cap_percent: 25
      }
    ],
    isolation: 'watch',
    used: { memory_mib: 2048, utilization_percent: 10 },
    ...change
  };
}

export function queued(change: Partial<ILease> = {}): ILease {
  return lease({
    id: 'q1',
    state: 'queued',
    slices: [],
    used: null,
    position: 2,
    estimate_s: 200,
    ...change
  });
}

export function group(change: Partial<IGroup> = {}): IGroup {
  return {
    id: 'g1',
    name: 'train',
    state: 'busy',
    workers: 2,
    request: '0.25',
    backend: 'gloo',
    lease: 'l2',
    kernel: 'k1',
    ranks: [
      { rank: 0, state: 'busy', pid: 11 },
      { rank: 1, state: 'dead', pid: null }
    ],
    ...change
  };
}

export function pool(change: Partial<IPool> = {}): IPool {
  return {
    devices: [device()],
    isolation: 'watch',
    queue: [],
    note: '',
    user: 'ada',
    admin: false,
    session: {
      entitled: { memory_mib: 80 * 1024, devices: 1, text: '1 GPU' },
      held: { memory_mib: 20 * 1024, percent: 25 },
      used: { memory_mib: 2048, percent: 10 }
    },
    ...change
  };
}

export const refusal = new GpuApiError(
  {
    message: '2 devices are wanted, the pool has 1.',
    reason: 'insufficient_devices',
    hint: 'Ask for 1.'
  },
  409
);

/** A server in memory; a test changes what it answers. */
export class FakeApi implements IGpuApi {
  thePool = pool();
  theLeases: ILease[] = [];
  theGroups: IGroup[] = [];
  explanation: IExplanation = { fits: true, message: 'Fits now.' };
  /** Thrown by every call while set. */
  failure: Error | null = null;
  /** Every call waits for this. */
  gate: Promise<void> = Promise.resolve();
  readonly calls: unknown[][] = [];
  /** What the next request or resize answers. */
  answer: ILease = lease();

  pool = () => this._call(['pool'], () => this.thePool);
  leases = () => this._call(['leases'], () => this.theLeases);
  groups = () => this._call(['groups'], () => this.theGroups);
  request = (request: string, holder: unknown) =>
    this._call(['request', request, holder], () => this.answer);
  resize = (id: string, request: string) =>
    this._call(['resize', id, request], () => this.answer);
  release = (id: string) => this._call(['release', id], () => undefined);
  explain = (request: string, holder?: unknown) =>
    this._call(['explain', request, holder], () => this.explanation);
  interruptGroup = (id: string) =>
    this._call(['interrupt', id], () => undefined);
  stopGroup = (id: string) => this._call(['stop', id], () => undefined);

  private async _call<T>(call: unknown[], result: () => T): Promise<T> {
    this.calls.push(call);
    // The answer is made when the question comes, and arrives when it may.
    const made = result();
    await this.gate;
    if (this.failure) {
      throw this.failure;
    }
    return made;
  }
}

export class FakeEvents implements IGpuEvents {
  readonly received = new Signal<this, IGpuEvent>(this);
  readonly connectionChanged = new Signal<this, boolean>(this);
  isDisposed = false;

  dispose(): void {
    this.isDisposed = true;
  }

  send(name: EventName, data: Record<string, unknown>): void {
    this.received.emit({ name, data });
  }

  sendLease(action: string, value: ILease): void {
    this.send('lease', { action, lease: value });
  }
}

export class FakeKernels implements IKernelList {
  list: IKernelInfo[] = [
    { id: 'k1', name: 'train.ipynb', path: 'train.ipynb' }
  ];
  readonly changed = new Signal<this, void>(this);
  kernels = () => this.list;
}

/** A promise and its key. */
export function gate(): { promise: Promise<void>; open: () => void } {
  let open = () => {};
  const promise = new Promise<void>(resolve => {
    open = resolve;
  });
  return { promise, open };
}
