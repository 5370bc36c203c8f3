"""What each user holds and has used, and what their limits say to that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..request import GpuRequest
from .explain import Explanation, wait_text
from .lease import Lease, Slice
from .ledger import Ledger, Span
from .limits import ROUNDING, WINDOW_SECONDS, Limits, Standing, back_in, used_seconds
from .placement import place
from .policy import Policy
from .pool import PoolDevice, share

LEAST_SECONDS = 20.0
"""For how long a user's GPU-hours have to last for a lease to be worth its start."""


class Quota:
    """Who may be granted more in one pass over the queue: see `queue.serve`.

    ``hours`` are the GPU-hours that users have used of the last seven days, where it matters.
    """

    def __init__(
        self, leases: Iterable[Lease], pool: Mapping[str, PoolDevice], hours: Mapping[str, float]
    ) -> None:
        self._pool = pool
        self._hours = hours
        self._held: dict[str, float] = {}
        for lease in leases:
            if lease.holds:
                self.take(lease, lease.slices)

    def take(self, lease: Lease, slices: Iterable[Slice]) -> None:
        """The lease's user holds these slices from now on."""
        user = lease.holder.user
        self._held[user] = self._held.get(user, 0.0) + share(slices, self._pool)

    def allows(self, lease: Lease, slices: Iterable[Slice]) -> bool:
        """Whether the lease's user may hold these slices as well."""
        limits = lease.limits
        user = lease.holder.user
        if limits.gpu_hours is not None and self._hours.get(user, 0.0) >= limits.gpu_hours:
            return False
        if limits.concurrent is None:
            return True
        more = self._held.get(user, 0.0) + share(slices, self._pool)
        return more <= limits.concurrent + ROUNDING


class Accounts:
    """The use of a pool by user. What the ledger says of a user is asked for once, and kept until
    the broker tells that it has :meth:`changed`."""

    def __init__(
        self,
        pool: Mapping[str, PoolDevice],
        ledger: Ledger,
        clock: Callable[[], float],
        policy: Policy,
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._clock = clock
        self._policy = policy
        self._spans: dict[str, list[Span]] = {}

    def changed(self, users: Iterable[str]) -> None:
        """What these users hold is another thing now."""
        for user in users:
            self._spans.pop(user, None)

    def standing(self, user: str, leases: Iterable[Lease]) -> Standing:
        """What a user holds, and has used of the last seven days."""
        used = used_seconds(self._spans_of(user), self._clock())
        return Standing(self._held(user, leases), used / 3600)

    def ends_at(self, lease: Lease, leases: Iterable[Lease]) -> float | None:
        """See `Broker.ends_at`."""
        if not lease.holds or lease.limits.gpu_hours is None:
            return lease.expires
        now, held = self._clock(), self._held(lease.holder.user, leases)
        if held <= 0:
            return lease.expires
        used = used_seconds(self._spans_of(lease.holder.user), now)
        when = now + max(0.0, 3600 * lease.limits.gpu_hours - used) / held
        return when if lease.expires is None else min(when, lease.expires)

    def against(
        self,
        request: GpuRequest,
        workers: int,
        user: str,
        limits: Limits,
        leases: Iterable[Lease],
    ) -> tuple[Explanation, bool] | None:
        """What a user's limits say against a request, and whether to wait may help."""
        if limits.none:
            return None
        capacity = {uuid: member.capacity for uuid, member in self._pool.items()}
        pool = list(self._pool.values())
        worth = share(place(request, workers, pool, capacity, self._policy) or (), self._pool)
        most = limits.concurrent
        if most is not None and worth > most + ROUNDING:
            message = f"{request} is {gpus(worth)}, and you may hold {gpus(most)} at once."
            hint = f"Ask for {most:g} at most." if most else "Ask an administrator for more."
            return Explanation(False, "over_quota", message, hint, True), False
        if limits.gpu_hours is not None:
            spans, now = self._spans_of(user), self._clock()
            used, most_s = used_seconds(spans, now), 3600 * limits.gpu_hours
            # What would be held for a moment only is of no use to anybody.
            enough = most_s - LEAST_SECONDS * worth
            if used >= min(enough, most_s):
                message = (
                    f"You have used {used / 3600:.4g} of your {limits.gpu_hours:g} GPU-hours of 7 "
                    f"days, which leaves too little for {request}."
                )
                hint = f"Enough of them come back in {wait_text(back_in(spans, now, enough))}."
                if enough <= 0:
                    hint = "Ask an administrator for more."
                return Explanation(False, "over_quota", message, hint, enough <= 0), False
        held = self._held(user, leases)
        if most is not None and held + worth > most + ROUNDING:
            message = f"You hold {gpus(held)} already, and may hold {gpus(most)} at once."
            hint = "Stop another server of yours to make room for it."
            return Explanation(False, "over_quota", message, hint), True
        return None

    def _held(self, user: str, leases: Iterable[Lease]) -> float:
        return sum(
            share(lease.slices, self._pool)
            for lease in leases
            if lease.holds and lease.holder.user == user
        )

    def _spans_of(self, user: str) -> list[Span]:
        if user not in self._spans:
            self._spans[user] = self._ledger.held_by(user, self._clock() - WINDOW_SECONDS)
        return self._spans[user]


def gpus(number: float) -> str:
    """So many devices' worth, for people."""
    return f"{number:.4g} GPU{'' if number == 1 else 's'}"


def spent_words(limits: Limits) -> str:
    """That all GPU-hours are used up."""
    return f"All {limits.gpu_hours or 0:g} GPU-hours of 7 days are used up."
