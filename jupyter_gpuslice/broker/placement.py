"""Where a request's slices lie. Pure functions of a pool and what is free of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

from ..devices.models import matches
from ..request import GpuRequest
from .lease import Slice
from .policy import Policy
from .pool import Free, PoolDevice

Nearness = Callable[[str, str], int]

# Beyond this many subsets of devices a bundle is put together greedily.
_MOST_SUBSETS = 5000


def eligible(request: GpuRequest, pool: Sequence[PoolDevice]) -> list[PoolDevice]:
    """The devices of the pool that are of the right kind and model, whatever is free of them."""
    return [
        member
        for member in pool
        if (request.model is None or matches(request.model, member.device))
        and _right_kind(request, member)
    ]


def _right_kind(request: GpuRequest, member: PoolDevice) -> bool:
    device = member.device
    if request.kind == "auto":
        return True
    if request.kind == "mig":
        return device.kind == "mig" and (device.profile or "").lower() == request.profile
    return device.kind != "mig"


def slice_on(request: GpuRequest, member: PoolDevice, policy: Policy) -> Slice | None:
    """The slice that a request is on a device; ``None`` when it would be too small or not whole.

    Fractions are of the physical device and rounded down, so that slices whose fractions add up
    to 1 never add up to more than the device.
    """
    device = member.device
    if request.kind == "mig" or request.whole:
        return Slice(device.uuid, device.grantable_mib, 100, 100) if member.complete else None
    if request.fraction is not None:
        memory = int(device.grantable_mib * request.fraction)
        reserved = int(100 * request.fraction)
        cap = 100 if policy.bursts else reserved
    elif request.memory_mib is not None:
        memory = request.memory_mib
        reserved = request.compute_percent or 0
        cap = request.compute_percent or 100
    else:
        return None
    return Slice(device.uuid, memory, reserved, cap) if memory >= policy.smallest_mib else None


def place(
    request: GpuRequest,
    workers: int,
    pool: Sequence[PoolDevice],
    free: Mapping[str, Free],
    policy: Policy,
    nearness: Nearness | None = None,
    prefer: Collection[str] = (),
) -> tuple[Slice, ...] | None:
    """Slices for every worker, rank after rank, or ``None`` if they do not all fit.

    Each worker's slices lie on as many different devices. Workers are spread over the devices
    first (a rank with a device of its own can use NCCL), then share them. Devices in ``prefer``
    come first: a slice that stays where it was needs no new process.
    """
    if request.kind == "none":
        return ()
    members = [m for m in eligible(request, pool) if m.device.uuid in free]
    if request.kind == "auto":
        return _auto(workers, members, free, policy, prefer)
    left = dict(free)
    used: Counter[str] = Counter()
    placed: list[Slice] = []
    for _ in range(workers):
        rank = _one(request, members, left, used, policy, nearness, prefer)
        if rank is None:
            return None
        for slice_ in rank:
            left[slice_.device] = left[slice_.device].less(slice_)
            used[slice_.device] += 1
        placed += rank
    return tuple(placed)


def _one(
    request: GpuRequest,
    members: Sequence[PoolDevice],
    left: Mapping[str, Free],
    used: Mapping[str, int],
    policy: Policy,
    nearness: Nearness | None,
    prefer: Collection[str],
) -> list[Slice] | None:
    """The slices of one worker: best fit, or the nearest devices for several."""
    fits: list[tuple[tuple[int, bool, float], Slice]] = []
    for member in members:
        slice_ = slice_on(request, member, policy)
        room = left[member.device.uuid]
        if slice_ is not None and room.holds(slice_):
            after = room.less(slice_)
            rest = after.memory_mib / max(1, member.device.grantable_mib)
            rest += after.compute_percent / 100
            uuid = member.device.uuid
            fits.append(((used.get(uuid, 0), uuid not in prefer, rest), slice_))
    if len(fits) < request.count:
        return None
    # The sort is stable: among equals the pool's order decides.
    fits.sort(key=lambda fit: fit[0])
    slices = [slice_ for _, slice_ in fits]
    if request.count == 1 or nearness is None or len(slices) == request.count:
        return slices[: request.count]
    fresh = [slice_ for key, slice_ in fits if key[0] == fits[0][0][0]]
    return _nearest(fresh if len(fresh) >= request.count else slices, request.count, nearness)


def _nearest(slices: Sequence[Slice], count: int, nearness: Nearness) -> list[Slice]:
    """``count`` of the slices whose devices are closest to each other in sum."""

    def spread(group: Iterable[Slice]) -> int:
        return sum(nearness(a.device, b.device) for a, b in combinations(group, 2))

    if comb(len(slices), count) <= _MOST_SUBSETS:
        return list(min(combinations(slices, count), key=spread))
    groups = []
    for start in slices:
        group, rest = [start], [slice_ for slice_ in slices if slice_ is not start]
        while len(group) < count:
            best = min(rest, key=lambda s: sum(nearness(s.device, g.device) for g in group))
            rest.remove(best)
            group.append(best)
        groups.append(group)
    return min(groups, key=spread)


def _auto(
    workers: int,
    members: Sequence[PoolDevice],
    free: Mapping[str, Free],
    policy: Policy,
    prefer: Collection[str],
) -> tuple[Slice, ...] | None:
    """What is free, in equal shares of the devices that the workers end up on."""
    room = {
        m.device.uuid: free[m.device.uuid]
        for m in members
        if free[m.device.uuid].memory_mib >= policy.smallest_mib
    }
    if not room:
        return None
    seats: Counter[str] = Counter()
    order: list[str] = []
    for _ in range(workers):
        best = max(
            room,
            key=lambda uuid: (room[uuid].memory_mib // (seats[uuid] + 1), uuid in prefer),
        )
        seats[best] += 1
        order.append(best)
    slices = []
    for uuid in order:
        memory = room[uuid].memory_mib // seats[uuid]
        if memory < policy.smallest_mib:
            return None
        compute = room[uuid].compute_percent // seats[uuid]
        slices.append(Slice(uuid, memory, compute, 100 if policy.bursts else compute or 100))
    return tuple(slices)
