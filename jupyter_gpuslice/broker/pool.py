"""What a broker may grant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..devices.device import Device
from .lease import Lease, Slice


@dataclass(frozen=True)
class Free:
    """What is left of one device: MiB of memory and percent of compute."""

    memory_mib: int
    compute_percent: int

    def less(self, slice_: Slice) -> Free:
        return Free(
            self.memory_mib - slice_.memory_mib, self.compute_percent - slice_.compute_percent
        )

    def holds(self, slice_: Slice) -> bool:
        """Whether the slice fits in what is left."""
        return (
            slice_.memory_mib <= self.memory_mib and slice_.compute_percent <= self.compute_percent
        )


@dataclass(frozen=True)
class PoolDevice:
    """A device and the part of it that this pool may grant."""

    device: Device
    memory_mib: int
    compute_percent: int

    def __post_init__(self) -> None:
        if not 0 <= self.memory_mib <= self.device.grantable_mib:
            raise ValueError(f"{self.device.uuid}: {self.memory_mib} MiB are not grantable")
        if not 0 <= self.compute_percent <= 100:
            raise ValueError(f"{self.device.uuid}: {self.compute_percent} % of compute")

    @property
    def capacity(self) -> Free:
        return Free(self.memory_mib, self.compute_percent)

    @property
    def complete(self) -> bool:
        """Whether the pool has the whole device."""
        return self.memory_mib == self.device.grantable_mib and self.compute_percent == 100


def whole(devices: Iterable[Device]) -> list[PoolDevice]:
    """A pool of whole devices: what a node's broker has."""
    return [PoolDevice(device, device.grantable_mib, 100) for device in devices]


def granted(devices: Iterable[Device], slices: Iterable[Slice]) -> list[PoolDevice]:
    """The pool that a grant makes: what a session's broker has.

    ``ValueError`` when a slice lies on a device that is not described or is larger than it.
    """
    by_uuid = {device.uuid: device for device in devices}
    pool: dict[str, PoolDevice] = {}
    for slice_ in slices:
        if slice_.device not in by_uuid:
            raise ValueError(f"the grant does not describe the device {slice_.device}")
        # Memory without reserved compute still computes: its cap is what it may share out.
        compute = slice_.compute_percent or slice_.compute_cap_percent
        before = pool.get(slice_.device)
        pool[slice_.device] = PoolDevice(
            by_uuid[slice_.device],
            slice_.memory_mib + (before.memory_mib if before else 0),
            min(100, compute + (before.compute_percent if before else 0)),
        )
    return list(pool.values())


def free(pool: Iterable[PoolDevice], leases: Iterable[Lease]) -> dict[str, Free]:
    """What the leases that hold slices leave of each device of the pool."""
    left = {member.device.uuid: member.capacity for member in pool}
    for lease in leases:
        if lease.holds:
            for slice_ in lease.slices:
                if slice_.device in left:
                    left[slice_.device] = left[slice_.device].less(slice_)
    return left


def share(slices: Iterable[Slice], pool: Mapping[str, PoolDevice]) -> float:
    """How many devices' worth the slices are: the larger of memory and compute share, summed."""
    total = 0.0
    for slice_ in slices:
        member = pool.get(slice_.device)
        memory = slice_.memory_mib / max(1, member.device.grantable_mib) if member else 0.0
        total += max(memory, slice_.compute_percent / 100)
    return total
