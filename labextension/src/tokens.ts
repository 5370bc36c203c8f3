import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';

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

/** What is known now. A state is never changed, only replaced. */
export interface IGpuState {
  /**
   * `loading`: nothing is known yet; `live`: news come in; `interrupted`: the
   * stream is down and what is shown may be old.
   */
  readonly connection: 'loading' | 'live' | 'interrupted';
  /** Why the server could not be read, if it could not. */
  readonly problem: IProblem | null;
  readonly pool: IPool | null;
  /** Live leases: those that hold something or wait for it. */
  readonly leases: readonly ILease[];
  /** By kernel, the lease that last ended there against the holder's will. */
  readonly ended: ReadonlyMap<string, ILease>;
  readonly groups: readonly IGroup[];
  readonly kernels: readonly IKernelInfo[];
}

/**
 * The GPU slices of this server: one model for every view.
 *
 * Every action rejects with a `GpuApiError` (message, reason, hint) if the
 * server refuses it, and leaves the state as it was.
 */
export interface IGpuModel extends IDisposable {
  readonly state: IGpuState;
  readonly stateChanged: ISignal<IGpuModel, IGpuState>;
  /** A word from the server for the person at the screen. */
  readonly noticed: ISignal<IGpuModel, INotice>;
  /** Read everything anew. Never rejects: a failure is in the state. */
  refresh(): Promise<void>;
  /**
   * Give a kernel the slice asked for, whatever it has now; "none" releases.
   * Returns its lease, or null where it has none any more.
   */
  assign(kernelId: string, request: string): Promise<ILease | null>;
  release(leaseId: string): Promise<void>;
  /** Would it fit now, and if not, why and what would. */
  explain(
    request: string,
    holder?: IHolderRef,
    signal?: AbortSignal
  ): Promise<IExplanation>;
  interruptGroup(groupId: string): Promise<void>;
  stopGroup(groupId: string): Promise<void>;
  /** Forget that a kernel's lease ended badly. */
  dismiss(kernelId: string): void;
}

export const IGpuModel = new Token<IGpuModel>(
  'jupyter-gpuslice:IGpuModel',
  'The GPU slices of this server: the pool, leases and peer groups, live.'
);
