import type { Trans } from './format';
import { grantable, hasRoomFor, isWhole, memory } from './format';
import type { IDevice, ILease, IPool } from './types';

/** A request that makes sense on this pool. */
export interface IChoice {
  request: string;
  /** What it comes to, in words. */
  label: string;
  /**
   * Whether it would be granted at once by what the pool shows; null where
   * only the server can say.
   */
  free: boolean | null;
}

const FRACTIONS = [0.25, 0.5];

/** Parts with less memory than this are not halved, in MiB. */
const SMALL = 1024;

/**
 * Requests to choose from, smallest first, computed from the pool's devices:
 * none that this pool could not grant if it were idle.
 *
 * `own` is what the holder has now, which would be free for the new request.
 */
export function choices(
  pool: IPool | null,
  own: ILease | null,
  trans: Trans
): IChoice[] {
  const list: IChoice[] = [
    { request: 'none', label: trans.__('no GPU'), free: true }
  ];
  const devices = (pool?.devices ?? []).filter(d => d.health !== 'lost');
  if (!devices.length) {
    return list;
  }
  list.push({
    request: 'auto',
    label: trans.__('what is free, up to one device'),
    free: null
  });
  const mine = (uuid: string) =>
    own?.slices.filter(slice => slice.device === uuid) ?? [];
  const rooms = devices.map(device => ({
    device,
    memory:
      device.free_mib +
      mine(device.uuid).reduce((sum, s) => sum + s.memory_mib, 0),
    compute:
      device.free_percent +
      mine(device.uuid).reduce((sum, s) => sum + s.compute_percent, 0)
  }));
  const gpus = rooms.filter(({ device }) => device.kind !== 'mig');
  // What a fraction is of. Of a part of a device that is not always told.
  const sizes = new Set(gpus.map(({ device }) => grantable(device)));
  const size = sizes.size === 1 ? [...sizes][0] : null;
  const sized = (text: string, count: number) =>
    size ? `${text}, ${memory(size * count, trans)}` : text;
  const room = (share: number) =>
    gpus.filter(
      ({ device, memory, compute }) =>
        memory >= Math.floor(share * (grantable(device) ?? Infinity)) &&
        compute >= Math.floor(share * 100)
    ).length;
  for (const share of FRACTIONS) {
    const able = gpus.filter(({ device }) => hasRoomFor(device, share));
    if (able.length) {
      const told = able.every(({ device }) => grantable(device) !== null);
      list.push({
        request: String(share),
        label: sized(trans.__('%1% of a device', String(share * 100)), share),
        free: room(share) > 0 || (told ? false : null)
      });
    }
  }
  const full = gpus.filter(({ device }) => isWhole(device));
  for (let n = 1; n <= full.length; n *= 2) {
    list.push({
      request: String(n),
      label: sized(trans._n('a whole device', '%1 whole devices', n), n),
      free: room(1) >= n
    });
  }
  if (gpus.length && list.length === 2) {
    // Parts too small for a fraction, or without compute of their own.
    list.push(...amounts(gpus, trans));
  }
  const profiles = new Map<string, { memory: number; free: boolean }>();
  for (const { device, memory } of rooms) {
    if (device.kind === 'mig' && device.profile) {
      const free = memory >= device.memory_mib;
      const known = profiles.get(device.profile);
      profiles.set(device.profile, {
        memory: device.memory_mib,
        free: free || !!known?.free
      });
    }
  }
  for (const [profile, { memory: mib, free }] of [...profiles].sort(
    (a, b) => a[1].memory - b[1].memory
  )) {
    list.push({
      request: profile,
      label: trans.__('MIG instance, %1', memory(mib, trans)),
      free
    });
  }
  return list;
}

/** The largest part of a device that is here, and half of it, by memory. */
function amounts(
  rooms: readonly { device: IDevice; memory: number }[],
  trans: Trans
): IChoice[] {
  const most = Math.max(...rooms.map(({ device }) => device.memory_mib));
  const half = Math.floor(most / 2);
  return (half < SMALL ? [most] : [half, most]).map(mib => ({
    request: mib % 1024 ? `${mib}MiB` : `${mib / 1024}GiB`,
    label: trans.__('%1 of a device', memory(mib, trans)),
    free: rooms.some(room => room.memory >= mib)
  }));
}
