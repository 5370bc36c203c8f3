"""Who is served next: first come, first served, device by device.

Nobody overtakes on a device that somebody ahead waits for; a request that can only be served by
other devices is not held up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .accounts import Quota
from .lease import Lease, Slice
from .placement import Nearness, eligible, place
from .policy import Policy
from .pool import Free, PoolDevice, free


@dataclass(frozen=True)
class Served:
    """What can be granted now, and the devices that somebody still waits for."""

    granted: Mapping[str, tuple[Slice, ...]]
    awaited: frozenset[str]


def ordered(leases: Iterable[Lease]) -> list[Lease]:
    """The waiting leases in their order: by priority, then by when they joined."""
    waiting = [lease for lease in leases if lease.state == "queued"]
    return sorted(waiting, key=lambda lease: (-lease.priority, lease.queued_at or lease.created))


def serve(
    leases: Iterable[Lease],
    pool: Sequence[PoolDevice],
    policy: Policy,
    nearness: Nearness | None = None,
    lost: Collection[str] = (),
    hours: Mapping[str, float] | None = None,
) -> Served:
    """Go through the queue once and place all that may be placed.

    ``hours`` are the GPU-hours that users have used, see `Quota`. A lease that waits for nothing
    but its own user's limits holds nobody up.
    """
    leases = list(leases)
    members = {member.device.uuid: member for member in pool}
    capacity = {uuid: member.capacity for uuid, member in members.items()}
    quota = Quota(leases, members, hours or {})
    left: dict[str, Free] = {u: room for u, room in free(pool, leases).items() if u not in lost}
    awaited: set[str] = set()
    granted: dict[str, tuple[Slice, ...]] = {}
    for lease in ordered(leases):
        open_ = {uuid: room for uuid, room in left.items() if uuid not in awaited}
        if not lease.limits.none:
            least = place(lease.request, lease.workers, pool, capacity, policy)
            if not quota.allows(lease, least or ()):
                continue
        slices = place(lease.request, lease.workers, pool, open_, policy, nearness)
        if slices:
            if not quota.allows(lease, slices):
                continue
            quota.take(lease, slices)
            granted[lease.id] = slices
            for slice_ in slices:
                left[slice_.device] = left[slice_.device].less(slice_)
        else:
            awaited |= {m.device.uuid for m in eligible(lease.request, pool)}
    return Served(granted, frozenset(awaited))
