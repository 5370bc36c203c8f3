import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { IGpuApi } from './api';
import type { IGpuEvent, IGpuEvents } from './events';
import { isNone } from './format';
import { isAuto, isLive, leasesOfKernel } from './rows';
import type { IGpuModel, IGpuState } from './tokens';
import type {
  IExplanation,
  IGroup,
  IHolderRef,
  IKernelInfo,
  ILease,
  INotice,
  IPool,
  IProblem
} from './types';

/** Jupyter's own list of running kernels, as far as the model needs it. */
export interface IKernelList {
  kernels(): IKernelInfo[];
  readonly changed: ISignal<unknown, unknown>;
}

const EMPTY: IGpuState = {
  connection: 'loading',
  problem: null,
  pool: null,
  leases: [],
  ended: new Map(),
  groups: [],
  kernels: []
};

/** Ends that nobody asked for; a kernel that had one is told so. */
const SAD_ENDS: readonly string[] = ['expired', 'revoked', 'lost', 'refused'];

/**
 * Keeps the state: read once over REST, then moved by events alone.
 *
 * Answers and events travel on two connections and may overtake each other,
 * so that an answer counts only where no event about the same thing came
 * after its question, and events that come in while everything is read anew
 * are applied again on top of what was read.
 */
export class GpuModel implements IGpuModel {
  constructor(options: GpuModel.IOptions) {
    this._api = options.api;
    this._events = options.events;
    this._kernels = options.kernels;
    this._state = { ...EMPTY, kernels: options.kernels.kernels() };
    this._events.received.connect(this._onEvent, this);
    this._events.connectionChanged.connect(this._onConnection, this);
    this._kernels.changed.connect(this._onKernels, this);
  }

  get state(): IGpuState {
    return this._state;
  }

  get stateChanged(): ISignal<this, IGpuState> {
    return this._stateChanged;
  }

  get noticed(): ISignal<this, INotice> {
    return this._noticed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._events.dispose();
      Signal.clearData(this);
    }
  }

  async refresh(): Promise<void> {
    if (this._reading) {
      // What is being read may be older than the wish: read once more after.
      this._again = true;
      return this._reading;
    }
    this._reading = (async () => {
      do {
        this._again = false;
        await this._read();
      } while (this._again && !this._isDisposed);
    })();
    try {
      await this._reading;
    } finally {
      this._reading = null;
    }
  }

  async assign(kernelId: string, request: string): Promise<ILease | null> {
    const leases = leasesOfKernel(this._state.leases, kernelId);
    if (isNone(request)) {
      for (const lease of leases) {
        await this.release(lease.id);
      }
      return null;
    }
    const asked = ++this._clock;
    // An automatic slice is not resized: what is asked for by name takes its
    // place, and may wait for its turn while the kernel keeps what it has.
    const named = leases.find(lease => !isAuto(lease));
    const answer = named
      ? await this._api.resize(named.id, request)
      : await this._api.request(request, { kind: 'kernel', id: kernelId });
    return this._answered(asked, answer);
  }

  async release(leaseId: string): Promise<void> {
    await this._api.release(leaseId);
    this._set({ leases: this._state.leases.filter(l => l.id !== leaseId) });
  }

  explain(
    request: string,
    holder?: IHolderRef,
    signal?: AbortSignal
  ): Promise<IExplanation> {
    return this._api.explain(request, holder, signal);
  }

  interruptGroup(groupId: string): Promise<void> {
    return this._api.interruptGroup(groupId);
  }

  async stopGroup(groupId: string): Promise<void> {
    await this._api.stopGroup(groupId);
    this._set({ groups: this._state.groups.filter(g => g.id !== groupId) });
  }

  dismiss(kernelId: string): void {
    const ended = new Map(this._state.ended);
    if (ended.delete(kernelId)) {
      this._set({ ended });
    }
  }

  private async _read(): Promise<void> {
    const meanwhile: IGpuEvent[] = [];
    this._meanwhile = meanwhile;
    try {
      const pool = await this._api.pool();
      // Without a broker there is nothing else to read; the pool says why.
      const [leases, groups] =
        pool.isolation === null
          ? [[], []]
          : await Promise.all([this._api.leases(), this._api.groups()]);
      this._set({
        connection: this._connected ? 'live' : 'interrupted',
        problem: null,
        pool,
        leases: moved(leases.filter(isLive), pool),
        groups: groups.filter(group => group.state !== 'stopped')
      });
      meanwhile.forEach(event => this._apply(event));
    } catch (error) {
      this._set({ problem: error as IProblem });
    } finally {
      this._meanwhile = null;
    }
  }

  private _answered(asked: number, answer: ILease): ILease {
    const told = this._told.get(answer.id) ?? 0;
    if (told > asked) {
      return this._state.leases.find(l => l.id === answer.id) ?? answer;
    }
    this._apply({
      name: 'lease',
      data: { action: 'changed', lease: answer }
    });
    return answer;
  }

  private _onConnection(_: IGpuEvents, open: boolean): void {
    this._connected = open;
    if (open) {
      void this.refresh();
    } else if (this._state.pool) {
      this._set({ connection: 'interrupted' });
    }
  }

  private _onKernels(): void {
    const kernels = this._kernels.kernels();
    const same =
      JSON.stringify(kernels) === JSON.stringify(this._state.kernels);
    if (!same) {
      this._set({ kernels });
    }
  }

  private _onEvent(_: IGpuEvents, event: IGpuEvent): void {
    if (event.name === 'notice') {
      this._noticed.emit(event.data as unknown as INotice);
      return;
    }
    this._meanwhile?.push(event);
    this._apply(event);
  }

  private _apply(event: IGpuEvent): void {
    const { data, name } = event;
    if (name === 'pool') {
      const pool = data.pool as IPool;
      this._set({ pool, leases: moved(this._state.leases, pool) });
    } else if (name === 'lease') {
      this._applyLease(data.lease as ILease, data.action === 'ended');
    } else if (name === 'group') {
      const group = data.group as IGroup;
      const gone = data.action === 'ended' || group.state === 'stopped';
      this._set({ groups: placed(this._state.groups, group, gone) });
    }
  }

  private _applyLease(lease: ILease, ended: boolean): void {
    this._told.set(lease.id, ++this._clock);
    const gone = ended || !isLive(lease);
    const change: { -readonly [K in keyof IGpuState]?: IGpuState[K] } = {
      leases: placed(this._state.leases, lease, gone)
    };
    if (lease.holder.kind === 'kernel') {
      const endings = new Map(this._state.ended);
      if (gone && SAD_ENDS.includes(lease.state)) {
        endings.set(lease.holder.id, lease);
        change.ended = endings;
      } else if (!gone && endings.delete(lease.holder.id)) {
        change.ended = endings;
      }
    }
    if (gone) {
      // Ids are never used twice, so nothing older can come after its end.
      this._told.delete(lease.id);
    }
    this._set(change);
  }

  private _set(change: Partial<IGpuState>): void {
    if (this._isDisposed) {
      return;
    }
    this._state = { ...this._state, ...change };
    this._stateChanged.emit(this._state);
  }

  private readonly _api: IGpuApi;
  private readonly _events: IGpuEvents;
  private readonly _kernels: IKernelList;
  private readonly _stateChanged = new Signal<this, IGpuState>(this);
  private readonly _noticed = new Signal<this, INotice>(this);
  /** When, by `_clock`, news of a lease last came. */
  private readonly _told = new Map<string, number>();
  private _state: IGpuState;
  private _clock = 0;
  private _connected = false;
  private _reading: Promise<void> | null = null;
  private _again = false;
  private _meanwhile: IGpuEvent[] | null = null;
  private _isDisposed = false;
}

export namespace GpuModel {
  export interface IOptions {
    api: IGpuApi;
    events: IGpuEvents;
    kernels: IKernelList;
  }
}

/** Leases with what moves without a change of theirs: use, place, wait. */
function moved(leases: readonly ILease[], pool: IPool): readonly ILease[] {
  return leases.map(lease => {
    const entry = pool.queue.find(({ id }) => id === lease.id);
    return {
      ...lease,
      used: pool.uses?.[lease.id] ?? lease.used,
      position: entry?.position ?? lease.position,
      estimate_s: entry ? entry.estimate_s : lease.estimate_s
    };
  });
}

/** A list with one item put in its place, added at the end, or taken out. */
function placed<T extends { id: string }>(
  items: readonly T[],
  item: T,
  gone: boolean
): readonly T[] {
  if (gone) {
    return items.filter(other => other.id !== item.id);
  }
  return items.some(other => other.id === item.id)
    ? items.map(other => (other.id === item.id ? item : other))
    : [...items, item];
}
