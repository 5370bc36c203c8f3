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

/** The same in GiB, however little it is: "0.5 GiB". */
function gib(mib: number, trans: Trans): string {
  return trans.__('%1 GiB', short(mib / MIB_PER_GIB));
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
  return [kindName(device, trans), mark(device, devices)].join(' ').trim();
}

function kindName(device: IDevice, trans: Trans): string {
  return device.kind === 'simulated' && !/simulated/i.test(device.name)
    ? trans.__('%1 (simulated)', device.name)
    : device.name;
}

/** What tells a device from others of its name; empty if there are none. */
function mark(device: IDevice, devices: readonly IDevice[]): string {
  const others = devices.filter(
    other => other.name === device.name && other.uuid !== device.uuid
  );
  const short = beginning(device.uuid);
  return !others.length
    ? ''
    : others.some(other => beginning(other.uuid) === short)
      ? device.uuid
      : short;
}

/** The first eight digits of a UUID. */
function beginning(uuid: string): string {
  return /[0-9a-f]{8}(?=-|$)/.exec(uuid)?.[0] ?? uuid;
}

/** What of a device may be a reserve; more than that is somebody else's. */
function mostReserve(total: number): number {
  return Math.max(2 * MIB_PER_GIB, total / 20);
}

/**
 * Whether a device is in the pool as a whole: all of its compute, and all of
 * its memory but for a reserve.
 */
export function isWhole(device: IDevice): boolean {
  const total = device.total_mib ?? device.memory_mib;
  return (
    device.compute_percent === 100 &&
    device.memory_mib >= total - mostReserve(total)
  );
}

/** What of the whole device can be granted in all; null where it isn't told. */
export function grantable(device: IDevice): number | null {
  if (known(device.reserve_mib) && known(device.total_mib)) {
    return device.total_mib - device.reserve_mib;
  }
  return isWhole(device) ? device.memory_mib : null;
}

/** Whether a part of the whole device is not more than what the pool has of it. */
export function hasRoomFor(device: IDevice, share: number): boolean {
  const total = device.total_mib ?? 0;
  const whole = grantable(device) ?? total - mostReserve(total);
  return (
    device.compute_percent >= Math.floor(100 * share) &&
    device.memory_mib >= Math.floor(whole * share)
  );
}

/** What of these devices is never granted, in a sentence; empty if nothing. */
export function reserve(devices: readonly IDevice[], trans: Trans): string {
  const sizes = devices
    .map(device => (device.total_mib ?? 0) - (grantable(device) ?? Infinity))
    .filter(mib => mib > 0)
    .sort((a, b) => a - b);
  if (!sizes.length) {
    return '';
  }
  const [least, most] = [sizes[0], sizes[sizes.length - 1]];
  return trans.__(
    "%1 of each GPU is kept for the driver and CUDA's contexts.",
    least === most
      ? gib(least, trans)
      : trans.__('%1 to %2', gib(least, trans), gib(most, trans))
  );
}

/** What a lease holds over all its devices, compute in percent of one GPU. */
export function held(slices: readonly ISlice[]): {
  memory_mib: number;
  cap_percent: number;
  devices: number;
} {
  const sum = (of: (slice: ISlice) => number) =>
    slices.reduce((total, slice) => total + of(slice), 0);
  const devices = new Set(slices.map(slice => slice.device)).size;
  return {
    memory_mib: sum(slice => slice.memory_mib),
    cap_percent: Math.min(
      100 * devices,
      sum(slice => slice.compute_cap_percent)
    ),
    devices
  };
}

/** The compute that a lease uses, in percent of one GPU: its mean, times all. */
export function busy(lease: ILease): number | null {
  const mean = lease.used?.utilization_percent;
  return known(mean) ? mean * held(lease.slices).devices : null;
}

/** What is counted: "Compute", and of how many GPUs where it is several. */
export function compute(devices: number, trans: Trans): string {
  return devices > 1
    ? trans.__('Compute of %1 GPUs', String(devices))
    : trans.__('Compute');
}

/** Levels at which nobody's compute can be beyond their part. */
const COMPUTE_HELD: readonly (string | null)[] = ['mig', 'mps'];

/**
 * Whether busy time says that a part of the compute was exceeded. Where the
 * level keeps compute apart, a small part may well be busy all the time.
 */
export function judgesCompute(isolation: string | null): boolean {
  return !COMPUTE_HELD.includes(isolation);
}

/** Why a lease's bars are beyond their ends. */
export function excess(trans: Trans): { memory: string; compute: string } {
  return {
    memory: trans.__(
      'It uses more device memory than its slice. Release what it does not need, or resize the slice.'
    ),
    compute: trans.__(
      'It keeps the GPU busy for more of the time than its slice allows. Nothing stops that here.'
    )
  };
}

/** Where slices are: "NVIDIA A100-SXM4-80GB 1a2b3c4d, 5e6f7a8b". */
export function where(
  slices: readonly ISlice[],
  devices: readonly IDevice[],
  trans: Trans
): string {
  const marks = new Map<string, Set<string>>();
  for (const { device: uuid } of slices) {
    const device = devices.find(other => other.uuid === uuid);
    const name = device ? kindName(device, trans) : uuid;
    const known = marks.get(name) ?? new Set<string>();
    marks.set(name, known.add(device ? mark(device, devices) : ''));
  }
  return [...marks]
    .map(([name, all]) => `${name} ${[...all].join(', ')}`.trim())
    .join('; ');
}

/** The UUIDs of the devices of slices, a line each. */
export function uuids(slices: readonly ISlice[]): string {
  return [...new Set(slices.map(slice => slice.device))].join('\n');
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
  const used = busy(lease);
  if (used !== null) {
    const { devices } = held(lease.slices);
    return devices > 1
      ? trans.__(
          '%1 · %2 of %3',
          lease.request,
          percent(used, trans),
          percent(100 * devices, trans)
        )
      : `${lease.request} · ${percent(used, trans)}`;
  }
  return known(lease.used?.memory_mib)
    ? `${lease.request} · ${memory(lease.used.memory_mib, trans)}`
    : lease.request;
}
