"""One measurement of a pool's devices, and whose use it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from ..broker.lease import Lease
from ..devices.device import DeviceSource, DeviceUse


@dataclass(frozen=True)
class Use:
    """What a lease uses of one device; ``None`` is unknown."""

    memory_mib: int | None
    utilization_percent: int | None


@dataclass(frozen=True)
class Measurement:
    """All devices at one instant, and of it what each lease's processes use of each device."""

    devices: Mapping[str, DeviceUse] = field(default_factory=dict)
    leases: Mapping[str, Mapping[str, Use]] = field(default_factory=dict)


Holders = Mapping[str, Mapping[int, str]]
"""Device UUID → pid → lease id."""


def holders_of(leases: Iterable[Lease]) -> dict[str, dict[int, str]]:
    """The processes of the leases that hold slices, by device."""
    found: dict[str, dict[int, str]] = {}
    for lease in leases:
        if not lease.holds:
            continue
        share = max(1, len(lease.slices) // lease.workers)
        for number, slice_ in enumerate(lease.slices):
            pids = found.setdefault(slice_.device, {})
            rank = number // share
            # A group's processes stand in the order of its ranks; each uses only its own slices.
            members = (
                lease.processes[rank : rank + 1]
                if lease.workers > 1 and len(lease.processes) == lease.workers
                else lease.processes
            )
            pids.update({process.pid: lease.id for process in members})
    return found


def measure(source: DeviceSource, holders: Holders) -> Measurement:
    """Sample the source and share out the use of each process, children included (blocks)."""
    uses = source.sample({uuid: sorted(pids) for uuid, pids in holders.items()})
    devices = {use.uuid: use for use in uses}
    owners = _Ancestors()
    leases: dict[str, dict[str, Use]] = {}
    for uuid, pids in holders.items():
        use = devices.get(uuid)
        if use is None or use.used_mib is None:
            continue
        # A holder that the device does not list has nothing on it.
        sums: dict[str, list[int | None]] = {lease: [0, 0] for lease in pids.values()}
        for process in use.processes:
            lease = owners.of(process.pid, pids)
            if lease is not None:
                sums[lease][0] = _plus(sums[lease][0], process.used_mib)
                sums[lease][1] = _plus(sums[lease][1], process.utilization_percent)
        for lease, (memory, busy) in sums.items():
            percent = None if busy is None else min(100, busy)
            leases.setdefault(lease, {})[uuid] = Use(memory, percent)
    return Measurement(devices, leases)


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


class _Ancestors:
    """Whose child a process is; each parent is looked up once for one measurement."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def of(self, pid: int, holders: Mapping[int, str]) -> str | None:
        seen: set[int] = set()
        while pid > 1 and pid not in seen:
            if pid in holders:
                return holders[pid]
            seen.add(pid)
            pid = self._parent(pid)
        return None

    def _parent(self, pid: int) -> int:
        if pid not in self._parents:
            try:
                self._parents[pid] = psutil.Process(pid).ppid()
            except psutil.Error:
                self._parents[pid] = 0
        return self._parents[pid]
