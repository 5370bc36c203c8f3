import type { TranslationBundle } from '@jupyterlab/translation';

import type { IDevice, ILease, ISlice } from './types';

/** What of the translator the texts need. */
export type Trans = Pick<TranslationBundle, '__' | '_n'>;

type Maybe = number | null | undefined;

const MIB_PER_GIB = 1024;

function known(value: Maybe): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

/** A number with at most one decimal, none where it would be a zero. */
function short(value: number): string {
  return value < 100
    ? String(Math.round(value * 10) / 10)
    : String(Math.round(value));
}

/** An amount of memory in MiB as text: "512 MiB", "19.5 GiB", "unknown". */
export function memory(mib: Maybe, trans: Trans): string {
  if (!known(mib)) {
    return trans.__('unknown');
  }
  return mib < MIB_PER_GIB
    ? trans.__('%1 MiB', String(Math.round(mib)))
    : trans.__('%1 GiB', short(mib / MIB_PER_GIB));
}

/** Two amounts in one unit: "3.2 / 20 GiB", "unknown / 20 GiB". */
export function memoryOf(part: Maybe, whole: Maybe, trans: Trans): string {
  if (known(part) && known(whole) && whole >= MIB_PER_GIB) {
    return trans.__(
      '%1 / %2 GiB',
      short(part / MIB_PER_GIB),
      short(whole / MIB_PER_GIB)
    );
  }
  return trans.__('%1 / %2', memory(part, trans), memory(whole, trans));
}

/** "40%" or "unknown". */
export function percent(value: Maybe, trans: Trans): string {
  return known(value) ? `${Math.round(value)}%` : trans.__('unknown');
}

/** A wait in words, rounded as people do. */
export function wait(seconds: Maybe, trans: Trans): string {
  if (!known(seconds)) {
    return trans.__('wait unknown');
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 1) {
    return trans.__('less than a minute');
  }
  if (minutes < 90) {
    return trans.__('about %1 min', String(minutes));
  }
  return trans.__('about %1 h', short(minutes / 60));
}

/** A place in the queue: "1st in the queue" without the ordinals' trouble. */
export function place(position: Maybe, trans: Trans): string {
  return known(position)
    ? trans.__('position %1', String(position))
    : trans.__('position unknown');
}

/** The state of a lease in a word. */
export function leaseState(state: string, trans: Trans): string {
  switch (state) {
    case 'queued':
      return trans.__('queued');
    case 'granted':
      return trans.__('granted');
    case 'active':
      return trans.__('active');
    case 'parked':
      return trans.__('parked');
    case 'released':
      return trans.__('released');
    case 'expired':
      return trans.__('expired');
    case 'revoked':
      return trans.__('revoked');
    case 'lost':
      return trans.__('lost');
    case 'refused':
      return trans.__('refused');
    default:
      return state;
  }
}

/** How a slice is enforced, in a word and in a sentence. */
export function isolation(
  level: string | null,
  trans: Trans
): { word: string; sentence: string } {
  switch (level) {
    case 'mig':
      return {
        word: 'MIG',
        sentence: trans.__('The hardware keeps memory and compute apart.')
      };
    case 'cgroup':
      return {
        word: trans.__('driver limit'),
        sentence: trans.__('The driver holds each slice to its memory.')
      };
    case 'mps':
      return {
        word: 'MPS',
        sentence: trans.__(
          'The MPS server holds each slice to its memory and compute.'
        )
      };
    case 'hami':
      return {
        word: 'HAMi-core',
        sentence: trans.__(
          'A library inside each process holds it to its memory.'
        )
      };
    case 'framework':
      return {
        word: trans.__('framework limit'),
        sentence: trans.__(
          'PyTorch, JAX and CuPy keep to the slice; other programs may not.'
        )
      };
    case 'watch':
      return {
        word: trans.__('watched'),
        sentence: trans.__(
          'Use is measured; nothing stops a program from using more.'
        )
      };
    case 'simulated':
      return {
        word: trans.__('simulated'),
        sentence: trans.__(
          'The devices are simulated: there is no real GPU behind them.'
        )
      };
    default:
      return { word: level || trans.__('unknown'), sentence: '' };
  }
}

/** Whether a request's text asks for no GPU. */
export function isNone(request: string): boolean {
  return /^(0|none)$/i.test(request.trim());
}

/**
 * A device's name, with a word where it is not real, and with the beginning of
 * its UUID where others of the pool have the same name.
 */
export function deviceName(
  device: IDevice,
  devices: readonly IDevice[],
  trans: Trans
): string {
  const name =
    device.kind === 'simulated' && !/simulated/i.test(device.name)
      ? trans.__('%1 (simulated)', device.name)
      : device.name;
  const alone = devices.filter(other => other.name === device.name).length < 2;
  return alone ? name : `${name} ${beginning(device.uuid)}`;
}

/** The first eight digits of a UUID. */
function beginning(uuid: string): string {
  return /[0-9a-f]{8}(?=-|$)/.exec(uuid)?.[0] ?? uuid;
}

/** What of a device is never granted, in a sentence; empty if there is none. */
export function reserve(device: IDevice, trans: Trans): string {
  const total = device.total_mib ?? 0;
  // Of a part of a device the rest is others', not the reserve.
  return device.compute_percent === 100 && total > device.memory_mib
    ? trans.__(
        "%1 of its %2 are kept for CUDA's own use.",
        memory(total - device.memory_mib, trans),
        memory(total, trans)
      )
    : '';
}

/**
 * What a lease holds: memory in MiB over all its devices, and its compute cap
 * in percent of a device (the mean over its devices, as its use is measured).
 */
export function held(slices: readonly ISlice[]): {
  memory_mib: number;
  cap_percent: number;
} {
  const sum = (of: (slice: ISlice) => number) =>
    slices.reduce((total, slice) => total + of(slice), 0);
  const devices = new Set(slices.map(slice => slice.device)).size;
  const caps = sum(slice => slice.compute_cap_percent);
  return {
    memory_mib: sum(slice => slice.memory_mib),
    cap_percent: devices ? Math.min(100, caps / devices) : 0
  };
}

/** Where a lease's slices are: "NVIDIA A100-SXM4-80GB", "2 × …". */
export function where(
  lease: ILease,
  devices: readonly IDevice[],
  trans: Trans
): string {
  const counts = new Map<string, number>();
  for (const slice of lease.slices) {
    const device = devices.find(other => other.uuid === slice.device);
    const name = device ? deviceName(device, devices, trans) : slice.device;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts]
    .map(([name, n]) => (n > 1 ? `${n} × ${name}` : name))
    .join(', ');
}

/** What the toolbar says of a kernel's lease: "0.25 · 40%". */
export function brief(lease: ILease, trans: Trans): string {
  if (lease.state === 'queued') {
    return known(lease.position)
      ? trans.__('%1 · queue %2', lease.request, String(lease.position))
      : trans.__('%1 · queued', lease.request);
  }
  if (lease.state === 'parked') {
    return trans.__('%1 · parked', lease.request);
  }
  const use = lease.used;
  if (known(use?.utilization_percent)) {
    return `${lease.request} · ${Math.round(use.utilization_percent)}%`;
  }
  return known(use?.memory_mib)
    ? `${lease.request} · ${memory(use.memory_mib, trans)}`
    : lease.request;
}
