"""Why not: which constraint binds, what would fit, how long the wait is."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..request import GpuRequest
from .placement import eligible, place, slice_on
from .policy import Policy
from .pool import Free, PoolDevice

_STEPS = [Fraction(n, 20) for n in range(19, 0, -1)]


@dataclass(frozen=True)
class Explanation:
    """Whether a request fits now and, if not, why.

    ``never`` is true when it would not fit in the empty pool either. ``position`` (from 1) and
    ``estimate_s`` (seconds) are what it would have in the queue; ``None`` is unknown.
    """

    fits: bool
    reason: str
    message: str
    hint: str = ""
    never: bool = False
    would_fit: tuple[str, ...] = ()
    position: int | None = None
    estimate_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "reason": self.reason,
            "message": self.message,
            "hint": self.hint,
            "never": self.never,
            "would_fit": list(self.would_fit),
            "position": self.position,
            "estimate_s": self.estimate_s,
        }


class Refused(Exception):  # noqa: N818 (a refusal is an answer, the design's word for it)
    """A request that is not granted, with the four fields of every error of ours."""

    def __init__(
        self, reason: str, message: str, hint: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{message} {hint}".strip())
        self.reason = reason
        self.message = message
        self.hint = hint
        self.details = details or {}

    @classmethod
    def of(cls, explanation: Explanation) -> Refused:
        return cls(explanation.reason, explanation.message, explanation.hint, explanation.to_dict())


@dataclass(frozen=True)
class Why:
    """The constraint that binds, in a stable word and a sentence."""

    reason: str
    message: str


def never(
    request: GpuRequest, workers: int, pool: Sequence[PoolDevice], policy: Policy
) -> Why | None:
    """Why the request could not be granted if nobody else were there; ``None`` if it could."""
    capacity = {member.device.uuid: member.capacity for member in pool}
    if place(request, workers, pool, capacity, policy) is not None:
        return None
    if not pool:
        return Why("no_devices", "There is no GPU in this pool.")
    if request.model and not eligible(GpuRequest("auto", model=request.model), pool):
        names = ", ".join(sorted({member.device.name for member in pool}))
        return Why("unknown_model", f"There is no {request.model} here, only {names}.")
    fitting = eligible(request, pool)
    if not fitting and request.kind == "mig":
        profiles = sorted({m.device.profile for m in pool if m.device.profile})
        there = ", ".join(profiles) or "no MIG device at all"
        return Why(
            "unknown_profile", f"No device has the MIG profile {request.profile}: there is {there}."
        )
    if not fitting:
        return Why("unknown_model", "Every GPU here is a MIG device: ask for it by its profile.")
    return _too_much(request, workers, fitting, policy)


def _too_much(
    request: GpuRequest, workers: int, fitting: Sequence[PoolDevice], policy: Policy
) -> Why:
    sizes = [(member, slice_on(request, member, policy)) for member in fitting]
    if all(size is None for _, size in sizes):
        if request.whole:
            return Why(
                "insufficient_memory",
                "Only a part of each GPU belongs to this pool, so no whole one can be granted.",
            )
        return Why(
            "too_small", f"{request} is less than the smallest slice, {policy.smallest_mib} MiB."
        )
    able = sum(1 for m, size in sizes if size is not None and m.capacity.holds(size))
    if able == 0:
        most = amount(max(member.memory_mib for member in fitting))
        percent = max(member.compute_percent for member in fitting)
        return Why(
            "insufficient_memory",
            f"{request} is more than any GPU of this pool has: at most {most} and "
            f"{percent} % of compute on one.",
        )
    if workers > 1:
        return Why(
            "insufficient_devices", f"{workers} workers of {request} are more than the whole pool."
        )
    return Why(
        "insufficient_devices",
        f"{request} needs {request.count} GPUs, and the pool has {able} that could serve.",
    )


def not_now(
    request: GpuRequest,
    workers: int,
    pool: Sequence[PoolDevice],
    free: Mapping[str, Free],
    policy: Policy,
) -> Why:
    """Which constraint binds for a request that does not fit now but could."""
    fitting = [m for m in eligible(request, pool) if m.device.uuid in free]
    if not fitting:
        return Why("device_lost", "Every GPU that could serve this has failed.")
    if request.kind == "auto":
        return Why("insufficient_memory", "Nothing is free.")
    sizes = [(slice_on(request, m, policy), free[m.device.uuid]) for m in fitting]
    able = sum(1 for size, room in sizes if size is not None and room.holds(size))
    if able:
        needed = f"{workers} workers of {request} need" if workers > 1 else f"{request} needs"
        has = "GPU that has" if able == 1 else "GPUs that have"
        return Why("insufficient_devices", f"{needed} more than the {able} {has} room now.")
    if any(size is not None and size.memory_mib <= room.memory_mib for size, room in sizes):
        percent = max(room.compute_percent for _, room in sizes)
        return Why(
            "insufficient_compute", f"Of one GPU at most {percent} % of compute is free now."
        )
    most = amount(max(room.memory_mib for _, room in sizes))
    return Why("insufficient_memory", f"Of one GPU at most {most} of memory is free now.")


def queued(ahead: int) -> Why:
    """There would be room, but others wait for it already."""
    waits = "request waits" if ahead == 1 else "requests wait"
    return Why("queue", f"{ahead} {waits} for these GPUs already.")


def would_fit(
    request: GpuRequest,
    workers: int,
    pool: Sequence[PoolDevice],
    free: Mapping[str, Free],
    policy: Policy,
) -> tuple[str, ...]:
    """The largest requests of each shape that fit in what is free, for that many workers.

    The model is kept if it can be.
    """
    model = (
        request.model
        if request.model and eligible(GpuRequest("auto", model=request.model), pool)
        else None
    )

    def fits(candidate: GpuRequest) -> bool:
        return place(candidate, workers, pool, free, policy) is not None

    found: list[str] = []
    whole_devices = range(len(pool), 0, -1)
    candidates = [
        GpuRequest("fraction", n, fraction=Fraction(1), model=model) for n in whole_devices
    ]
    candidates += [GpuRequest("fraction", fraction=step, model=model) for step in _STEPS]
    largest = next((candidate for candidate in candidates if fits(candidate)), None)
    if largest is not None:
        found.append(str(largest))
    rooms = [
        free[m.device.uuid].memory_mib
        for m in eligible(GpuRequest("memory", memory_mib=1, model=model), pool)
        if m.device.uuid in free
    ]
    size = _each(rooms, workers)
    memory = GpuRequest("memory", memory_mib=size, model=model) if size else None
    if memory is not None and size >= policy.smallest_mib and fits(memory):
        found.append(str(memory))
    for profile in sorted({m.device.profile for m in pool if m.device.profile}):
        mig = GpuRequest("mig", profile=profile.lower(), model=model)
        if fits(mig):
            found.append(str(mig))
    return tuple(found)


def _each(rooms: Sequence[int], workers: int) -> int:
    """The most memory (MiB; whole GiB where it is that much) that as many slices can have."""
    shares = sorted({room // n for room in rooms for n in range(1, workers + 1)}, reverse=True)
    rounded = (share - share % 1024 if share >= 1024 else share for share in shares)
    enough = (size for size in rounded if size and sum(r // size for r in rooms) >= workers)
    return next(enough, 0)


def fewer(
    request: GpuRequest,
    workers: int,
    pool: Sequence[PoolDevice],
    free: Mapping[str, Free],
    policy: Policy,
) -> int:
    """How many workers of that request fit in what is free, of at most ``workers``."""
    # Where some fit, fewer fit as well.
    return bisect(
        range(1, workers + 1), 0, key=lambda n: place(request, n, pool, free, policy) is None
    )


def hint(options: Sequence[str], workers: int = 1, some: int = 0) -> str:
    """What would fit, as a sentence; ``some``: that many workers of what was asked for would."""
    found = [" or ".join(options)] if options else []
    if found and workers > 1:
        found = [f"{workers} workers of {found[0]}"]
    if some and workers > 1:
        found.append(f"{some} worker{'s' if some > 1 else ''} as asked for")
    return f"Would fit now: {', or '.join(found)}." if found else "Nothing would fit now."


def amount(mib: int) -> str:
    """Memory in words for people."""
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"


def clock_text(when: float, now: float) -> str:
    """A time of the day where the machine is, with the date where that is another one.

    Both are seconds since the epoch.
    """
    then, today = time.localtime(when), time.localtime(now)
    clock = time.strftime("%H:%M", then)
    same = then[:3] == today[:3]
    return clock if same else f"{time.strftime('%Y-%m-%d', then)} {clock}"


def wait_text(seconds: float | None) -> str:
    """How long a wait is, for people."""
    if seconds is None:
        return "for how long is unknown, since what is held has no set end"
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
