"""The leases as they would be: what a change works on before it counts."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from .explain import Refused
from .lease import Lease, State
from .placement import Nearness
from .policy import Policy
from .pool import PoolDevice
from .queue import serve

MOST_PLAYED = 500
"""Ends of leases that are played forward: what lies behind them is too far away to be told."""

BEHIND_EVERYBODY = -1
"""Priority of a lease that gave way: what nobody else asked for comes back to it."""


class Draft:
    """A copy of the leases at the instant ``now``; the broker takes it over once it is written."""

    def __init__(
        self,
        leases: Mapping[str, Lease],
        now: float,
        pool: Sequence[PoolDevice],
        policy: Policy,
        nearness: Nearness | None,
        lost: Collection[str],
        hours: Mapping[str, float] | None = None,
    ) -> None:
        self.leases = dict(leases)
        self.now = now
        self.touched: dict[str, None] = {}
        self._pool = pool
        self._policy = policy
        self._nearness = nearness
        self._lost = lost
        self._hours = hours or {}

    def put(self, lease: Lease) -> Lease:
        self.leases[lease.id] = lease
        self.touched[lease.id] = None
        return lease

    def end(self, lease: Lease, state: State, why: str = "") -> Lease:
        return self.put(
            lease.changed(
                state=state,
                slices=() if state != "lost" else lease.slices,
                ended_at=self.now,
                activate_by=None,
                expires=None,
                detail=why,
            )
        )

    def give_way(self, lease: Lease) -> Lease:
        if lease.request.kind != "auto" or not lease.holds:
            raise Refused(
                "wrong_state",
                "Only an auto lease that holds something can give way.",
                "Release this one instead.",
            )
        return self.put(
            lease.changed(
                state="queued",
                slices=(),
                priority=BEHIND_EVERYBODY,
                queued_at=self.now,
                granted_at=None,
                expires=None,
                activate_by=None,
                detail="It gave way and comes back when there is room.",
            )
        )

    def serve(self) -> list[Lease]:
        """Grant whatever the queue's order allows."""
        served = serve(
            self.leases.values(),
            self._pool,
            self._policy,
            self._nearness,
            self._lost,
            self._hours,
        )
        granted = []
        for id_, slices in served.granted.items():
            lease = self.leases[id_]
            # A holder that lives already needs nobody to take the grant up.
            alive = bool(lease.processes)
            granted.append(
                self.put(
                    lease.changed(
                        state="active" if alive else "granted",
                        slices=slices,
                        granted_at=self.now,
                        expires=None if lease.ttl is None else self.now + lease.ttl,
                        activate_by=None if alive else self.now + self._policy.activate_within,
                        detail="",
                    )
                )
            )
        return granted

    def turns(self) -> dict[str, float]:
        """When each waiting lease is granted (clock time): the ends that are known, played forward.

        Of those that are not in it that is unknown. The draft is of no use afterwards.
        """
        start = self.now
        waiting = sum(lease.state == "queued" for lease in self.leases.values())
        turns: dict[str, float] = {}
        ends = [
            (x.expires, x.id) for x in self.leases.values() if x.holds and x.expires is not None
        ]
        heapq.heapify(ends)
        played = 0
        while ends and len(turns) < waiting and played < MOST_PLAYED:
            played += 1
            when, id_ = heapq.heappop(ends)
            self.now = max(start, when)
            self.end(self.leases[id_], "expired")
            for granted in self.serve():
                turns.setdefault(granted.id, self.now)
                if granted.expires is not None:
                    heapq.heappush(ends, (granted.expires, granted.id))
        return turns
