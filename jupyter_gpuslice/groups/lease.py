"""The one lease that all ranks of a group share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..broker.explain import Refused
from ..broker.lease import Holder, Lease, Slice
from ..broker.ledger import LedgerError
from ..devices.process import Process
from ..isolation.reaper import reap_group
from ..request import GpuRequest

Slices = list[tuple[Slice, ...]]


class GroupLease:
    """Asked for, waited for, and given back when the last rank is gone.

    ``runtime`` is what runs the broker, or ``None`` where there is no pool. A group that asks for
    no GPU has no lease at all.
    """

    def __init__(self, runtime: Any, request: GpuRequest, workers: int, holder: Holder) -> None:
        self._runtime = runtime
        self._request = request
        self._workers = workers
        self._holder = holder
        self.id: str | None = None

    def ask(self, *, wait: bool, instead_of: str | None = None) -> bool:
        """Whether it was granted at once; :class:`Refused` if it cannot be, or not without a wait.

        ``instead_of``: the ``auto`` lease of the notebook's kernel, which gives way.
        """
        if self._request.kind == "none":
            return True
        if self._runtime is None:
            raise Refused(
                "no_devices",
                "There are no GPUs to be granted on this server.",
                "A group with the request 0 runs on the CPU.",
            )
        lease = self._runtime.broker.request(
            self._request,
            self._holder,
            workers=self._workers,
            wait=wait,
            instead_of=instead_of,
        )
        self.id = lease.id
        return bool(lease.holds)

    async def granted(self, say: Callable[[str], None], stop: asyncio.Event | None = None) -> None:
        """Wait for the grant, or for ``stop``.

        ``say`` gets a sentence whenever the place in the queue changes. :class:`Refused` if the
        lease ended before.
        """
        if self.id is None:
            return
        broker = self._runtime.broker
        moved = asyncio.Event()
        unsubscribe = broker.subscribe(lambda lease: moved.set())
        try:
            while True:
                lease = self._current()
                if lease.holds:
                    return
                if not lease.live:
                    raise Refused(
                        lease.state, f"The group's lease was {lease.state}. {lease.detail}".strip()
                    )
                moved.clear()
                position = broker.position(lease.id)
                many = f"{self._workers} workers of " if self._workers > 1 else ""
                say(f"Waiting for {many}{self._request}: place {position} in the queue.")
                await _either(moved, stop)
                if stop is not None and stop.is_set():
                    return
        finally:
            unsubscribe()

    def slices(self) -> Slices:
        """What each rank holds."""
        if self.id is None:
            return [()] * self._workers
        lease = self._current()
        return [lease.slices_of(rank) for rank in range(self._workers)]

    @property
    def isolation(self) -> str:
        return self._current().isolation if self.id is not None else "watch"

    def activate(self, pids: Sequence[Process]) -> None:
        """These processes hold it now. :class:`Refused` if it has ended meanwhile."""
        if self.id is not None:
            self._runtime.broker.activate(self.id, pids)

    @property
    def parked(self) -> bool:
        return self.id is not None and self._current().state == "parked"

    def park(self) -> None:
        """The ranks use no device until the next cell."""
        if self.id is not None and self._current().state in ("active", "queued"):
            with _worded():
                self._runtime.broker.park(self.id)

    def resume(self, instead_of: str | None) -> None:
        """They need it again; :meth:`granted` waits for it."""
        with _worded():
            self._runtime.broker.resume(self.id, instead_of)

    async def release(self, why: str) -> None:
        """Give it back; to be called when the ranks are gone."""
        if self.id is not None:
            await self._runtime.end(self.id, why)
        else:
            # Nothing to give back; children that its ranks left go all the same.
            await asyncio.to_thread(reap_group, self._holder.id)

    async def anew(self, instead_of: str | None) -> None:
        """After the death of all ranks, with which it ended: ask again, without a wait.

        ``instead_of``: the notebook's ``auto`` lease, which has got what the dead ranks held.
        """
        if self.id is not None:
            await self.release("All of its ranks had died.")
            self.ask(wait=False, instead_of=instead_of)

    def ended_by_others(self, lease: Lease) -> str:
        """Why the group must end with this change of a lease, or an empty text."""
        if lease.id != self.id or lease.live:
            return ""
        if lease.state == "released" and not lease.detail:
            return "Its lease was released."
        if lease.state == "released":
            return ""  # by its ranks' death, or by us
        return f"Its lease is {lease.state}. {lease.detail}".strip()

    def _current(self) -> Lease:
        lease: Lease | None = self._runtime.broker.get(self.id)
        if lease is None:
            raise Refused("not_found", "The group's lease is gone.")
        return lease


@contextmanager
def _worded() -> Iterator[None]:
    """A ledger that cannot be written refuses, in words."""
    try:
        yield
    except LedgerError as error:
        raise Refused(error.reason, error.message, error.hint) from error


async def _either(moved: asyncio.Event, stop: asyncio.Event | None) -> None:
    events = [event for event in (moved, stop) if event is not None]
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
