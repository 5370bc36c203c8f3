import type { IGpuState } from './tokens';
import type { IKernelInfo, ILease, IPool, IQueueEntry } from './types';

const LIVE: readonly string[] = ['queued', 'granted', 'active', 'parked'];

/** Whether a lease holds something or waits for it. */
export function isLive(lease: ILease): boolean {
  return LIVE.includes(lease.state);
}

/** Whether a lease is what a kernel gets when nobody asked by name. */
export function isAuto(lease: ILease): boolean {
  return /^(.+:)?auto$/.test(lease.request);
}

/**
 * The leases of a kernel, the one that counts first: what it holds before
 * what it waits for, and what was asked for by name before `auto`.
 */
export function leasesOfKernel(
  leases: readonly ILease[],
  kernelId: string
): ILease[] {
  const order = (lease: ILease) =>
    (lease.state === 'queued' ? 2 : 0) + (isAuto(lease) ? 1 : 0);
  return leases
    .filter(({ holder }) => holder.kind === 'kernel' && holder.id === kernelId)
    .sort((a, b) => order(a) - order(b));
}

/** A kernel of the caller's, with its slices. */
export interface IKernelRow {
  kernel: IKernelInfo;
  /** Empty where it has none and waits for none. */
  leases: ILease[];
  /** How its last lease ended, if nobody asked for that. */
  ended: ILease | null;
}

/** All kernels of the caller's: Jupyter's own and those that hold a slice. */
export function kernelRows(state: IGpuState): IKernelRow[] {
  const kernels = new Map(state.kernels.map(kernel => [kernel.id, kernel]));
  const user = state.pool?.user;
  for (const { holder, notebook } of state.leases) {
    const mine = !user || !holder.user || holder.user === user;
    if (holder.kind === 'kernel' && mine && !kernels.has(holder.id)) {
      kernels.set(holder.id, {
        id: holder.id,
        name: basename(notebook ?? '') || holder.name || holder.id.slice(0, 8),
        path: notebook ?? null
      });
    }
  }
  const rank = (row: IKernelRow) => (row.leases.length ? 0 : 1);
  return [...kernels.values()]
    .map(kernel => ({
      kernel,
      leases: leasesOfKernel(state.leases, kernel.id),
      ended: state.ended.get(kernel.id) ?? null
    }))
    .sort(
      (a, b) => rank(a) - rank(b) || a.kernel.name.localeCompare(b.kernel.name)
    );
}

/** The last part of a path. */
export function basename(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** Somebody in the queue, as the caller may see them. */
export interface IQueueRow {
  key: string;
  request: string;
  position: number | null;
  estimate_s: number | null;
  mine: boolean;
  /** Empty where the server doesn't tell. */
  name: string;
}

/** The queue, in order, with the caller's own places marked. */
export function queueRows(state: IGpuState): IQueueRow[] {
  const names = new Map(state.kernels.map(k => [k.id, k.name]));
  const listed = new Set<string>();
  const rows: IQueueRow[] = [];
  const add = (entry: IQueueEntry, own: ILease | undefined) => {
    const holder = own?.holder ?? entry.holder;
    const workers = entry.workers ?? 1;
    rows.push({
      key: entry.id ?? `place-${entry.position ?? rows.length}`,
      request: workers > 1 ? `${workers} × ${entry.request}` : entry.request,
      position: entry.position ?? own?.position ?? null,
      estimate_s: entry.estimate_s ?? own?.estimate_s ?? null,
      mine: isMine(holder?.user, state.pool, !!own),
      name: names.get(holder?.id ?? '') || holder?.name || holder?.user || ''
    });
  };
  for (const entry of state.pool?.queue ?? []) {
    if (entry.id) {
      listed.add(entry.id);
    }
    add(
      entry,
      state.leases.find(lease => lease.id === entry.id)
    );
  }
  for (const lease of state.leases) {
    if (lease.state === 'queued' && !listed.has(lease.id)) {
      // Queued a moment ago: the pool's own list of the queue is on its way.
      add(lease, lease);
    }
  }
  const last = Number.MAX_SAFE_INTEGER;
  return rows.sort((a, b) => (a.position ?? last) - (b.position ?? last));
}

function isMine(
  owner: string | null | undefined,
  pool: IPool | null,
  otherwise: boolean
): boolean {
  return owner && pool?.user ? owner === pool.user : otherwise;
}

/** The caller's best place in the queue, or null where they wait for nothing. */
export function ownPosition(state: IGpuState): number | null {
  const places = queueRows(state)
    .filter(row => row.mine)
    .map(row => row.position);
  return places.length ? (places[0] ?? null) : null;
}
