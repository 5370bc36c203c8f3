import type { Trans } from './format';
import { memory } from './format';
import type { ILease, IPool } from './types';

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

/**
 * Requests to choose from, smallest first, computed from the pool's devices.
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
  const whole = rooms.filter(({ device }) => device.kind !== 'mig');
  const room = (share: number) =>
    whole.filter(
      ({ device, memory, compute }) =>
        // Where the pool has a part of a device, that part's own size is not
        // what a fraction is of: only devices that are here whole are judged.
        device.compute_percent === 100 &&
        memory >= Math.floor(share * device.memory_mib) &&
        compute >= Math.floor(share * 100)
    ).length;
  const partial = whole.some(({ device }) => device.compute_percent < 100);
  const sizes = new Set(whole.map(({ device }) => device.memory_mib));
  const size = sizes.size === 1 && !partial ? [...sizes][0] : null;
  const largest = Math.max(
    0,
    ...whole.map(({ device }) => device.compute_percent / 100)
  );
  for (const share of FRACTIONS.filter(share => share <= largest)) {
    const part = trans.__('%1% of a device', String(share * 100));
    list.push({
      request: String(share),
      label: size ? `${part}, ${memory(size * share, trans)}` : part,
      free: partial ? null : room(share) > 0
    });
  }
  const full = whole.filter(({ device }) => device.compute_percent === 100);
  for (let n = 1; n <= full.length; n *= 2) {
    const text = trans._n('a whole device', '%1 whole devices', n);
    list.push({
      request: String(n),
      label: size ? `${text}, ${memory(size * n, trans)}` : text,
      free: room(1) >= n
    });
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
