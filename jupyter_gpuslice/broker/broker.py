"""The broker: grants leases on the devices of a pool, and keeps its word through crashes.

It is a plain object: no threads, no event loop, no I/O but its ledger, and time only as its clock
tells. The same code serves a node, a session and a simulation that replays a month in seconds.
It is not safe for use from several threads at once.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..devices.process import Process
from ..request import GpuRequest
from .accounts import Accounts, spent_words
from .draft import Draft
from .explain import (
    Explanation,
    Refused,
    Why,
    fewer,
    hint,
    never,
    not_now,
    queued,
    wait_text,
    would_fit,
)
from .lease import Holder, Lease, Slice
from .ledger import Change, Ledger, LedgerError
from .limits import NO_LIMITS, Limits, Standing
from .placement import Nearness, place
from .policy import Policy
from .pool import Free, PoolDevice, free, share
from .queue import ordered, serve

Clock = Callable[[], float]
Listener = Callable[[Lease], None]


class Broker:
    """Grants leases on a pool.

    ``clock`` gives seconds since the epoch; ``isolation`` is the level that the node enforces
    and is noted in each lease; ``nearness`` tells how far two devices are apart; ``elsewhere``
    tells people where there may be more than this pool ever has. Leases found in the ledger are
    taken over as they are: whoever runs the broker then reports the processes that are gone.
    """

    def __init__(
        self,
        pool: Sequence[PoolDevice],
        ledger: Ledger,
        clock: Clock,
        policy: Policy | None = None,
        isolation: str = "watch",
        nearness: Nearness | None = None,
        elsewhere: str = "",
    ) -> None:
        self._pool = {member.device.uuid: member for member in pool}
        self._ledger = ledger
        self._clock = clock
        self.policy = policy or Policy()
        self.isolation = isolation
        self._nearness = nearness
        self._elsewhere = elsewhere
        self._lost: dict[str, str] = {}
        self._cordoned = ledger.cordoned()
        self._listeners: list[Listener] = []
        self._turns_found: dict[str, tuple[int, float | None]] | None = None
        self._news: deque[Lease] = deque()
        self._accounts = Accounts(self._pool, ledger, clock, self.policy)
        self._telling = False
        self._leases = {lease.id: lease for lease in ledger.live()}
        with self._change() as draft:
            for lease in list(draft.leases.values()):
                gone = {s.device for s in lease.slices} - self._pool.keys()
                if lease.holds and gone:
                    draft.end(lease, "lost", f"{', '.join(sorted(gone))} is no longer here.")

    # Questions

    @property
    def pool(self) -> list[PoolDevice]:
        return list(self._pool.values())

    @property
    def lost(self) -> dict[str, str]:
        """The devices that failed, and why."""
        return dict(self._lost)

    @property
    def cordoned(self) -> dict[str, str]:
        """The devices on which nothing new is granted, and why; what is held there stays."""
        return {uuid: why for uuid, why in self._cordoned.items() if uuid in self._pool}

    @property
    def _closed(self) -> set[str]:
        """The devices on which nothing can be granted now."""
        return self._lost.keys() | self._cordoned.keys()

    def get(self, lease_id: str) -> Lease | None:
        """A lease by its id, also one that has ended."""
        return self._leases.get(lease_id) or self._ledger.get(lease_id)

    def leases(self) -> list[Lease]:
        """All leases that have not ended."""
        return list(self._leases.values())

    def queue(self) -> list[Lease]:
        """The leases that wait, in their order."""
        return ordered(self._leases.values())

    def position(self, lease_id: str) -> int | None:
        """The place in the queue, from 1; ``None`` for a lease that does not wait."""
        turn = self._turns().get(lease_id)
        return turn[0] if turn is not None else None

    def free(self) -> dict[str, Free]:
        """What nobody holds of each device; nothing of one that failed or is oversubscribed.

        Nothing is granted of a cordoned device, whatever is left of it.
        """
        return {
            uuid: Free(0, 0)
            if uuid in self._lost
            else Free(max(0, room.memory_mib), max(0, room.compute_percent))
            for uuid, room in free(self.pool, self._leases.values()).items()
        }

    def estimate(self, lease_id: str) -> float | None:
        """Seconds until a waiting lease is granted, as far as leases have an end; else ``None``."""
        turn = self._turns().get(lease_id)
        if turn is None or turn[1] is None:
            return None
        return max(0.0, turn[1] - self._clock())

    def _turns(self) -> Mapping[str, tuple[int, float | None]]:
        """Of each waiting lease its place, from 1, and when it is granted (clock time).

        Found out once for each change: everybody who looks asks for every waiting lease.
        """
        if self._turns_found is None:
            queue = self.queue()
            turns = self._draft().turns() if queue else {}
            self._turns_found = {
                lease.id: (n, turns.get(lease.id)) for n, lease in enumerate(queue, 1)
            }
        return self._turns_found

    def standing(self, user: str) -> Standing:
        """What a user holds, and has used of the last seven days."""
        return self._accounts.standing(user, self._leases.values())

    def ends_at(self, lease: Lease) -> float | None:
        """When what a lease holds ends at the latest (clock time); ``None`` has no end.

        At its own end, or when its user's GPU-hours are used up; as old use leaves the seven days
        that count, that instant moves on.
        """
        return self._accounts.ends_at(lease, self._leases.values())

    def held_up(self, lease: Lease) -> str:
        """That a waiting lease waits for its own user's limits, for people; else ``""``."""
        if lease.state != "queued":
            return ""
        user, leases = lease.holder.user, self._leases.values()
        over = self._accounts.against(lease.request, lease.workers, user, lease.limits, leases)
        return f"{over[0].message} {over[0].hint}" if over is not None else ""

    def why_ends(self, lease: Lease) -> str:
        """Why a lease ends when it does, for people."""
        if self.ends_at(lease) != lease.expires:
            return spent_words(lease.limits)
        return lease.detail or "Its time is over."

    def explain(
        self,
        request: GpuRequest,
        *,
        workers: int = 1,
        instead_of: str | None = None,
        user: str = "",
        limits: Limits = NO_LIMITS,
    ) -> Explanation:
        """Would it fit now; if not, why, what would, and how long the wait would be.

        ``instead_of`` names a lease that would be given back for it. ``user`` would hold it, whose
        ``limits`` count.
        """
        if request.kind == "none":
            return Explanation(True, "fits", "No GPU is asked for.")
        draft = self._draft()
        held = draft.leases.get(instead_of or "")
        if held is not None and held.holds and held.workers == workers:
            if held.request == request:
                return Explanation(True, "fits", f"{request} is held already.")
            if self._placed_again(held, request) is not None:
                return Explanation(True, "fits", f"{request} fits now in place of {held.request}.")
        if instead_of is not None and instead_of in draft.leases:
            draft.end(draft.leases[instead_of], "released")
        why = never(request, workers, self.pool, self.policy)
        if why is not None:
            draft.serve()
            options, text = self._options(request, workers, list(draft.leases.values()))
            message = f"{why.message} This can never be granted here."
            text = f"{text} {self._elsewhere}".strip()
            return Explanation(False, why.reason, message, text, True, options)
        over = self._accounts.against(request, workers, user, limits, draft.leases.values())
        if over is not None:
            return over[0]
        holder = Holder("session", "", user)
        probe = self._waiting(request, holder, workers, None, 0, draft.now, limits)
        draft.put(probe)
        draft.serve()
        if draft.leases[probe.id].holds:
            return Explanation(True, "fits", f"{request} fits now.")
        return self._explain_wait(probe, draft)

    def _explain_wait(self, probe: Lease, draft: Draft) -> Explanation:
        room = self._room(draft.leases.values())
        position = [lease.id for lease in ordered(draft.leases.values())].index(probe.id) + 1
        if place(probe.request, probe.workers, self.pool, room, self.policy) is not None:
            why = queued(position - 1)
        elif (closed := self._cordon_binds(probe, draft.leases.values())) is not None:
            why = closed
        else:
            why = not_now(probe.request, probe.workers, self.pool, room, self.policy)
        ahead = [lease for lease in draft.leases.values() if lease.id != probe.id]
        options, text = self._options(probe.request, probe.workers, ahead)
        when = draft.turns().get(probe.id)
        estimate = None if when is None else max(0.0, when - self._clock())
        text = f"{text} It would wait at position {position}, {wait_text(estimate)}."
        return Explanation(False, why.reason, why.message, text, False, options, position, estimate)

    def _cordon_binds(self, probe: Lease, leases: Iterable[Lease]) -> Why | None:
        """That a request only fails for devices that are cordoned, in their reasons' words."""
        room = {
            uuid: left for uuid, left in free(self.pool, leases).items() if uuid not in self._lost
        }
        slices = place(probe.request, probe.workers, self.pool, room, self.policy)
        shut = sorted({s.device for s in slices or ()} & self._cordoned.keys())
        if not shut:
            return None
        whys = {why for uuid in shut if (why := self._cordoned[uuid])}
        names = sorted({self._pool[uuid].device.name for uuid in shut})
        told = f" ({'; '.join(sorted(whys))})" if whys else ""
        return Why(
            "cordoned", f"{probe.request} would fit on {', '.join(names)}, which is closed{told}."
        )

    def _options(
        self, request: GpuRequest, workers: int, leases: Sequence[Lease]
    ) -> tuple[tuple[str, ...], str]:
        """What would fit of what nobody holds or waits for, and that in words."""
        room = self._room(leases)
        awaited = serve(leases, self.pool, self.policy, None, self._closed).awaited
        unclaimed = {uuid: left for uuid, left in room.items() if uuid not in awaited}
        options = would_fit(request, workers, self.pool, unclaimed, self.policy)
        some = fewer(request, workers, self.pool, unclaimed, self.policy) if workers > 1 else 0
        return options, hint(options, workers, some)

    # Changes

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` after every committed change, in order; returns how to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def request(
        self,
        request: GpuRequest,
        holder: Holder,
        *,
        workers: int = 1,
        wait: bool = True,
        ttl: float | None = None,
        priority: int = 0,
        instead_of: str | None = None,
        limits: Limits = NO_LIMITS,
    ) -> Lease:
        """Grant the request, or queue it if ``wait``; a lease of several workers all or nothing.

        ``ttl`` (seconds) ends the grant that long after it was made. ``instead_of`` names an
        ``auto`` lease that gives way for this one. ``limits`` are those of the holder's user: a
        lease waits while they stand against it, and ends when they do. :class:`Refused` when it
        can never fit, or does not fit now and shall not wait; nothing has changed then.
        """
        if request.kind == "none":
            raise Refused("bad_request", "A lease on no GPU is no lease.", "Ask for 0.5, say.")
        if workers < 1:
            raise Refused("bad_request", f"{workers} workers are none.")
        if ttl is not None and not 0 < ttl < float("inf"):
            raise Refused("bad_request", "A time to live is a positive number of seconds.")
        if never(request, workers, self.pool, self.policy) is not None:
            raise Refused.of(self.explain(request, workers=workers, instead_of=instead_of))
        over = self._accounts.against(request, workers, holder.user, limits, self._leases.values())
        if over is not None and not (wait and over[1]):
            raise Refused.of(over[0])
        with self._change() as draft:
            if instead_of is not None:
                draft.give_way(self._live(instead_of))
            lease = self._waiting(request, holder, workers, ttl, priority, draft.now, limits)
            draft.put(lease)
            draft.serve()
            lease = draft.leases[lease.id]
            if lease.state == "queued" and not wait:
                raise Refused.of(self.explain(request, workers=workers, instead_of=instead_of))
        return lease

    def adopt(self, lease: Lease) -> bool:
        """Take over an active lease that the ledger has lost, since its holder lives.

        False, and nothing has changed, if it is known or does not fit in what is free.
        """
        left = free(self.pool, self._leases.values())
        for slice_ in lease.slices:
            room = left.get(slice_.device)
            if room is None or not room.holds(slice_):
                return False
            left[slice_.device] = room.less(slice_)
        if not lease.slices or lease.state != "active" or self.get(lease.id) is not None:
            return False
        with self._change() as draft:
            draft.put(lease)
        return True

    def activate(self, lease_id: str, processes: Iterable[Process]) -> Lease:
        """The holder lives: from now on the lease ends when all of ``processes`` are gone.

        They take the place of those named before (a kernel that was restarted).
        """
        with self._change() as draft:
            lease = self._live(lease_id)
            state = "active" if lease.state == "granted" else lease.state
            lease = draft.put(
                lease.changed(state=state, processes=tuple(processes), activate_by=None)
            )
        return lease

    def resize(self, lease_id: str, request: GpuRequest) -> Lease:
        """Change what a lease asks for: at once or not at all; a waiting one keeps its place.

        It stays on its devices if it can. :class:`Refused` leaves it as it was.
        """
        lease = self._live(lease_id)
        why = never(request, lease.workers, self.pool, self.policy)
        if why is not None or request.kind == "none":
            raise Refused.of(self.explain(request, workers=lease.workers, instead_of=lease.id))
        with self._change() as draft:
            if lease.state == "queued":
                draft.put(lease.changed(request=request))
            elif lease.holds:
                draft.put(lease.changed(request=request, slices=self._moved(lease, request)))
            else:
                raise Refused("wrong_state", f"The lease is {lease.state}.", "Resume it first.")
            draft.serve()
            lease = draft.leases[lease_id]
        return lease

    def _moved(self, lease: Lease, request: GpuRequest) -> tuple[Slice, ...]:
        slices = self._placed_again(lease, request)
        if slices is not None:
            return slices
        if self._placed(lease, request) is None:
            raise Refused.of(self.explain(request, workers=lease.workers, instead_of=lease.id))
        raise Refused(
            "queue",
            "Others wait for this GPU already, so no lease on it may grow.",
            "Ask again when the queue is empty, or release this lease and queue anew.",
        )

    def _placed(self, lease: Lease, request: GpuRequest) -> tuple[Slice, ...] | None:
        """Where another request would lie in place of a lease's, on its own devices if it can."""
        room = self._room(other for other in self._leases.values() if other.id != lease.id)
        own = {slice_.device for slice_ in lease.slices}
        return place(
            request, lease.workers, self.pool, room, self.policy, self._nearness, prefer=own
        )

    def _placed_again(self, lease: Lease, request: GpuRequest) -> tuple[Slice, ...] | None:
        """The same; ``None`` also where it would grow on a device that others wait for."""
        slices = self._placed(lease, request)
        before = {s.device: Free(s.memory_mib, s.compute_percent) for s in lease.slices}
        awaited = serve(self._leases.values(), self.pool, self.policy, None, self._closed).awaited
        for slice_ in slices or ():
            grows = not before.get(slice_.device, Free(0, 0)).holds(slice_)
            if grows and slice_.device in awaited:
                return None
        return slices

    def park(self, lease_id: str) -> Lease:
        """Give the slices back, or the place in the queue, and keep the lease.

        For a holder that lives and uses no device now.
        """
        with self._change() as draft:
            lease = self._live(lease_id)
            if lease.state not in ("active", "queued"):
                raise Refused(
                    "wrong_state", f"The lease is {lease.state}.", "Only an active one is parked."
                )
            lease = draft.put(lease.changed(state="parked", slices=(), expires=None))
            draft.serve()
        return lease

    def resume(self, lease_id: str, instead_of: str | None = None) -> Lease:
        """Ask for a parked lease's slices again: granted at once, or it waits like any other.

        ``instead_of`` names an ``auto`` lease that gives way, as in :meth:`request`.
        """
        with self._change() as draft:
            if instead_of is not None:
                draft.give_way(self._live(instead_of))
            lease = self._live(lease_id)
            if lease.state != "parked":
                raise Refused(
                    "wrong_state", f"The lease is {lease.state}.", "Only a parked one is resumed."
                )
            draft.put(lease.changed(state="queued", queued_at=draft.now, granted_at=None))
            draft.serve()
            lease = draft.leases[lease_id]
        return lease

    def extend(self, lease_id: str, ttl: float) -> Lease:
        """Let the lease last ``ttl`` seconds from now (a waiting one: from its grant)."""
        if not 0 < ttl < float("inf"):
            raise Refused("bad_request", "A time to live is a positive number of seconds.")
        with self._change() as draft:
            lease = self._live(lease_id)
            expires = draft.now + ttl if lease.holds else None
            lease = draft.put(lease.changed(ttl=ttl, expires=expires))
        return lease

    def release(self, lease_id: str, why: str = "") -> Lease:
        """Give the lease back or leave the queue; a lease that has ended stays as it is."""
        return self._end(lease_id, "released", why)

    def revoke(self, lease_id: str, why: str) -> Lease:
        """Take the lease away; ``why`` is shown to its holder."""
        return self._end(lease_id, "revoked", why)

    def process_gone(self, process: Process) -> list[Lease]:
        """A process has ended: the leases that ended with it."""
        ended = []
        with self._change() as draft:
            for lease in list(draft.leases.values()):
                if process in lease.processes:
                    rest = tuple(p for p in lease.processes if p != process)
                    if rest:
                        draft.put(lease.changed(processes=rest))
                    else:
                        ended.append(draft.end(lease, "released", "Its process has ended."))
            draft.serve()
        return ended

    def device_lost(self, uuid: str, why: str) -> list[Lease]:
        """A device has failed: its leases are lost and nothing more is granted on it."""
        if uuid not in self._pool or uuid in self._lost:
            return []
        self._lost[uuid] = why
        self._turns_found = None
        try:
            with self._change() as draft:
                ended = [
                    draft.end(lease, "lost", why)
                    for lease in list(draft.leases.values())
                    if lease.holds and any(slice_.device == uuid for slice_ in lease.slices)
                ]
                draft.serve()
        except LedgerError:
            # Not written down, so not so: whoever reports it does so again.
            del self._lost[uuid]
            raise
        return ended

    def device_back(self, uuid: str) -> None:
        """A device that had failed can be granted again."""
        why = self._lost.pop(uuid, None)
        if why is None:
            return
        self._turns_found = None
        try:
            with self._change() as draft:
                draft.serve()
        except LedgerError:
            self._lost[uuid] = why
            raise

    def cordon(self, uuid: str, why: str = "") -> None:
        """Grant nothing more on a device, also after a restart; what is held there stays.

        :class:`Refused` for a device that is not in the pool.
        """
        if uuid not in self._pool:
            raise Refused("not_found", f"There is no device {uuid[:80]} here.")
        self._set_cordoned({**self._cordoned, uuid: why})

    def uncordon(self, uuid: str) -> None:
        """Let a device be granted again; one that is not cordoned stays as it is."""
        if uuid in self._cordoned:
            self._set_cordoned({u: why for u, why in self._cordoned.items() if u != uuid})

    def _set_cordoned(self, cordoned: dict[str, str]) -> None:
        self._ledger.set_cordoned(cordoned)
        self._cordoned = cordoned
        self._turns_found = None
        with self._change() as draft:
            draft.serve()

    def withdraw(self, why: str) -> None:
        """The whole pool is taken away: every lease ends, and nothing is granted any more."""
        with self._change() as draft:
            for lease in list(draft.leases.values()):
                draft.end(lease, "revoked", why)
        self._pool = {}
        self._elsewhere = why

    def end_by(self, lease_id: str, when: float, why: str = "") -> Lease:
        """Let what is held end at ``when`` (clock time) at the latest; ``why`` is shown."""
        with self._change() as draft:
            lease = self._live(lease_id)
            if not lease.holds:
                raise Refused("wrong_state", f"The lease is {lease.state}.")
            if lease.expires is None or lease.expires > when:
                lease = draft.put(lease.changed(expires=when, detail=why))
        return lease

    def tick(self) -> float | None:
        """End what is due; returns the next instant (clock time) at which something will be."""
        with self._change() as draft:
            for lease in list(draft.leases.values()):
                if not lease.holds:
                    continue
                end = self.ends_at(lease)
                if end is not None and end <= draft.now:
                    draft.end(lease, "expired", self.why_ends(lease))
                elif lease.activate_by is not None and lease.activate_by <= draft.now:
                    draft.end(lease, "expired", "Its holder never came to life.")
            draft.serve()
        due = [
            when
            for lease in self._leases.values()
            if lease.holds
            for when in (self.ends_at(lease), lease.activate_by)
            if when is not None
        ]
        return min(due, default=None)

    # Inside

    def _room(self, leases: Iterable[Lease]) -> dict[str, Free]:
        """What these leases leave of each device that something can be granted on."""
        left = free(self.pool, leases)
        return {uuid: room for uuid, room in left.items() if uuid not in self._closed}

    def _live(self, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            ended = self._ledger.get(lease_id)
            if ended is None:
                raise Refused("not_found", "There is no such lease.")
            raise Refused("wrong_state", f"The lease is {ended.state}.", "Ask for a new one.")
        return lease

    def _end(self, lease_id: str, state: Any, why: str) -> Lease:
        if lease_id not in self._leases:
            ended = self._ledger.get(lease_id)
            if ended is not None:
                return ended
        with self._change() as draft:
            lease = draft.end(self._live(lease_id), state, why)
            draft.serve()
        return lease

    def _waiting(
        self,
        request: GpuRequest,
        holder: Holder,
        workers: int,
        ttl: float | None,
        priority: int,
        now: float,
        limits: Limits = NO_LIMITS,
    ) -> Lease:
        return Lease(
            id=secrets.token_hex(8),
            request=request,
            holder=holder,
            state="queued",
            created=now,
            workers=workers,
            priority=priority,
            isolation=self.isolation,
            queued_at=now,
            ttl=ttl,
            limits=limits,
        )

    def _draft(self) -> Draft:
        limited = {
            lease.holder.user
            for lease in self._leases.values()
            if lease.state == "queued" and lease.limits.gpu_hours is not None
        }
        return Draft(
            self._leases,
            self._clock(),
            self.pool,
            self.policy,
            self._nearness,
            self._closed,
            {user: self.standing(user).gpu_hours or 0.0 for user in limited},
        )

    @contextmanager
    def _change(self) -> Iterator[Draft]:
        """Work on a draft; it counts when the ledger has it, and is forgotten on any error."""
        draft = self._draft()
        yield draft
        if not draft.touched:
            return
        before = {lease.id: n for n, lease in enumerate(self.queue())}
        changes = [self._ledger_change(draft.leases[id_]) for id_ in draft.touched]
        self._ledger.save(changes, draft.now)
        self._accounts.changed(change.lease.holder.user for change in changes)
        self._leases = {id_: lease for id_, lease in draft.leases.items() if lease.live}
        self._turns_found = None
        after = {lease.id: n for n, lease in enumerate(self.queue())}
        moved = [id_ for id_, n in after.items() if id_ not in draft.touched and before[id_] != n]
        self._news.extend(change.lease for change in changes)
        self._news.extend(self._leases[id_] for id_ in moved)
        self._tell()

    def _ledger_change(self, lease: Lease) -> Change:
        before = self._leases.get(lease.id)
        devices = (
            share(lease.slices, self._pool)
            if lease.holds
            else float(lease.request.fraction or 1) * lease.request.count * lease.workers
        )
        kinds = ("held" if x.holds else x.state for x in (before, lease) if x is not None)
        same = before is not None and len(set(kinds)) == 1 and before.slices == lease.slices
        return Change(lease, devices, respan=not same)

    def _tell(self) -> None:
        # A listener may change something itself: that news waits for its turn.
        if self._telling:
            return
        self._telling = True
        try:
            while self._news:
                lease = self._news.popleft()
                for listener in list(self._listeners):
                    listener(lease)
        finally:
            self._telling = False
