/**
 * The JSON that the server's REST interface and its events speak.
 *
 * A value that cannot be known is `null`, and is shown as "unknown".
 */

export type LeaseState =
  | 'queued'
  | 'granted'
  | 'active'
  | 'parked'
  | 'released'
  | 'expired'
  | 'revoked'
  | 'lost'
  | 'refused';

export interface ISlice {
  /** The UUID of the device. */
  device: string;
  memory_mib: number;
  compute_percent: number;
  compute_cap_percent: number;
}

export interface IHolder {
  kind: 'session' | 'kernel' | 'group';
  id: string;
  user: string | null;
  name: string;
}

/** The same, with null for what the caller may not see. */
export type Nullable<T> = { [K in keyof T]?: T[K] | null };

export interface IUse {
  memory_mib: number | null;
  utilization_percent: number | null;
}

export interface ILease {
  id: string;
  request: string;
  state: LeaseState;
  holder: IHolder;
  slices: ISlice[];
  isolation: string;
  position?: number | null;
  estimate_s?: number | null;
  used?: IUse | null;
  notebook?: string | null;
  needs_restart?: boolean;
  detail?: string;
  workers?: number;
}

export interface IDevice {
  uuid: string;
  name: string;
  kind: 'gpu' | 'mig' | 'simulated';
  memory_mib: number;
  free_mib: number;
  compute_percent: number;
  free_percent: number;
  used_mib: number | null;
  utilization_percent: number | null;
  health: string;
  /** What the device has in all, what is never granted included. */
  total_mib?: number;
  /** What of the whole device is never granted. */
  reserve_mib?: number | null;
  /** The MIG profile, of MIG devices. */
  profile?: string | null;
  /** The ids of the leases on this device, as far as the caller may see. */
  leases: string[];
}

export interface IAmount {
  memory_mib: number | null;
  percent: number | null;
}

export interface ISessionNumbers {
  entitled: {
    memory_mib: number | null;
    devices: number | null;
    text: string | null;
  };
  held: IAmount;
  used: IAmount;
}

export interface IQueueEntry {
  /** Null for a stranger's. */
  id: string | null;
  request: string;
  workers?: number;
  position?: number | null;
  estimate_s?: number | null;
  holder?: Nullable<IHolder> | null;
}

export interface IPool {
  devices: IDevice[];
  /** Null where there is no broker. */
  isolation: string | null;
  queue: IQueueEntry[];
  /** Why there are no devices, or "". */
  note?: string;
  session?: ISessionNumbers;
  /** What the caller's leases use, by their ids. */
  uses?: Record<string, IUse>;
  user?: string | null;
  admin?: boolean;
  /** The path of the hub's page of all GPUs, where this pool is a session of its. */
  hub?: string | null;
}

export interface IRank {
  rank: number;
  state: 'starting' | 'idle' | 'busy' | 'dead';
  kernel?: string | null;
  pid?: number | null;
  slices?: ISlice[];
}

export interface IGroup {
  id: string;
  name: string;
  state: 'starting' | 'ready' | 'busy' | 'broken' | 'stopped';
  workers: number;
  request: string;
  backend: string;
  lease?: string | null;
  /** The id of the notebook's kernel. */
  kernel?: string | null;
  ranks: IRank[];
}

export interface IExplanation {
  fits: boolean;
  /** True where it could not be granted even on an idle pool. */
  never?: boolean;
  message: string;
  reason?: string | null;
  hint?: string | null;
  would_fit?: string[];
  position?: number | null;
  estimate_s?: number | null;
}

export interface INotice {
  level: 'info' | 'warning' | 'error';
  message: string;
  kernel: string | null;
}

/** The one shape of every refusal and failure. */
export interface IProblem {
  message: string;
  reason: string;
  hint: string;
}

/** A running kernel as Jupyter's own sessions know it. */
export interface IKernelInfo {
  id: string;
  /** What to call it: its notebook or console. */
  name: string;
  /** The document's path, where it has one. */
  path: string | null;
}

/** Whose slice a request is for. */
export interface IHolderRef {
  kind: 'kernel';
  id: string;
}
