"""What a broker does not have itself: a clock, timers, eyes for its holders and its devices.

The server extension and the hub's service each run one runtime. It needs an asyncio loop and
nothing of Jupyter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from ..broker.broker import Broker
from ..broker.lease import Lease
from ..broker.ledger import Ledger, LedgerError
from ..devices.device import DeviceSource
from ..devices.process import Process
from ..isolation.reaper import reap
from .measure import Measurement, holders_of, measure
from .view import EVERYTHING, Viewer, lease_view, pool_view
from .watch import ProcessWatch
from .worker import UnansweredError, Worker

SAMPLE_SECONDS = 2.0
IDLE_SAMPLE_SECONDS = 10.0
"""How often devices that nobody holds are looked at: only their health can change."""
SAMPLE_TIMEOUT = 5.0
BUSY_SECONDS = 10.0
"""How often busy time goes to the ledger."""
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class News:
    """Something changed: a lease (then ``lease`` is it), or a number of the pool."""

    kind: Literal["lease", "pool"]
    lease: Lease | None = None


Listener = Callable[[News], None]


class BrokerRuntime:
    """Runs one broker on the current event loop, between :meth:`start` and :meth:`stop`.

    It owns ``ledger`` and ``source`` and closes them. ``patience(lease, process)`` says for how
    many seconds yet (asked again and again) a lease shall outlive ``process``, which is dead: a
    kernel that is being restarted. ``note`` is the pool's sentence for people.
    """

    def __init__(
        self,
        broker: Broker,
        ledger: Ledger,
        source: DeviceSource,
        *,
        note: str = "",
        patience: Callable[[Lease, Process], float] | None = None,
        log: logging.Logger | logging.LoggerAdapter[Any] | None = None,
    ) -> None:
        self.broker = broker
        self.ledger = ledger
        self.note = note
        self.latest = Measurement()
        self.busy_seconds = 0.0
        """Measured busy device-seconds of all leases since the start."""
        self.patience = patience or (lambda lease, process: 0.0)
        self._source = source
        self._log = log or logging.getLogger(__name__)
        self._worker = Worker("gpuslice-sampler")
        self._watch = ProcessWatch(self._process_ended)
        self._listeners: list[Listener] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sampling: asyncio.Task[None] | None = None
        self._awaited: asyncio.Future[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._settle: asyncio.Handle | None = None
        self._pool_moved = False
        self._busy: dict[str, float] = {}
        self._busy_due = 0.0
        self._sampled = time.monotonic()
        self._unsubscribe: Callable[[], None] | None = None

    async def start(self) -> None:
        """Watch what lives, free what died meanwhile, and begin to measure."""
        self._unsubscribe = self.broker.subscribe(self._changed)
        gone = {p for lease in self.broker.leases() for p in lease.processes if not p.alive()}
        await asyncio.gather(*(self._bury(process) for process in gone))
        self._settle_now()
        self._sampling = asyncio.create_task(self._sample_for_ever())

    async def stop(self) -> None:
        """Stop everything and close ledger and source; leases stay as the ledger has them."""
        tasks = [*self._tasks, *([self._sampling] if self._sampling else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for handle in (self._tick, self._settle):
            if handle is not None:
                handle.cancel()
        self._watch.close()
        self._flush_busy()
        try:
            await self._worker.call(self._source.close, SAMPLE_TIMEOUT)
        except Exception as error:
            self._log.debug("The device source was left open: %s", error)
        self._worker.close()
        self.ledger.close()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` on the loop for every :class:`News`; returns how to stop it.

        A pool's news are coalesced, and come only when a number moved.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def pool_changed(self) -> None:
        """Tell of the pool: something changed in it that is no lease (a cordon)."""
        self._tell(News("pool"))

    def pool_dict(self, viewer: Viewer = EVERYTHING) -> dict[str, Any]:
        """The pool as ``viewer`` may see it (the JSON of ``GET pool``)."""
        return pool_view(self.broker, self.latest, viewer, self.note)

    def lease_dict(self, lease: Lease, viewer: Viewer = EVERYTHING) -> dict[str, Any]:
        """A lease as ``viewer`` may see it (the JSON of ``GET leases/{id}``)."""
        return lease_view(self.broker, self.latest, lease, viewer)

    async def end(self, lease_id: str, why: str = "") -> None:
        """The holder has ended: end what it left behind, then release its lease."""
        lease = self.broker.get(lease_id)
        if lease is None or not lease.live:
            return
        await self._reap(lease)
        self._flush_busy()
        self.broker.release(lease_id, why)

    # Deaths

    def _process_ended(self, process: Process) -> None:
        self._spawn(self._bury(process))

    async def _bury(self, process: Process) -> None:
        while True:
            leases = [lease for lease in self.broker.leases() if process in lease.processes]
            if not leases:
                return
            wait = max(self.patience(lease, process) for lease in leases)
            if wait <= 0:
                break
            await asyncio.sleep(min(wait, 0.1))
        for lease in leases:
            if lease.processes == (process,):
                await self._reap(lease)
        self._flush_busy()
        while True:
            try:
                self.broker.process_gone(process)
                return
            except LedgerError as error:
                self._log.error("The end of process %s waits: %s", process.pid, error.message)
                await asyncio.sleep(RETRY_SECONDS)

    async def _reap(self, lease: Lease) -> None:
        if not lease.holds:
            return
        others = [
            process
            for other in self.broker.leases()
            if other.id != lease.id
            for process in other.processes
        ]
        # A thread for each: one that clings to life must not hold up the next lease's end.
        rest = await asyncio.to_thread(reap, lease, others)
        if rest:
            self._log.warning(
                "Processes of lease %s cannot be ended: %s",
                lease.id,
                ", ".join(str(process.pid) for process in rest),
            )

    # Changes and timers

    def _changed(self, lease: Lease) -> None:
        self._pool_moved = True
        self._tell(News("lease", lease))
        if self._settle is None:
            self._settle = asyncio.get_running_loop().call_soon(self._settle_now)

    def _settle_now(self) -> None:
        """After one or many changes: watch the right processes, set the timer, tell of the pool."""
        self._settle = None
        self._watch.only({p for lease in self.broker.leases() for p in lease.processes})
        self._set_timer()
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)
        if self._pool_moved:
            self._pool_moved = False
            self._tell(News("pool"))

    def _set_timer(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        try:
            due = self.broker.tick()
        except LedgerError as error:
            self._log.error("Expiry waits: %s", error.message)
            due = time.time() + RETRY_SECONDS
        if due is not None:
            # Far instants are looked at again now and then: the wall clock may be set.
            delay = min(max(0.0, due - time.time()) + 0.01, 60.0)
            self._tick = asyncio.get_running_loop().call_later(delay, self._set_timer)

    def _tell(self, news: News) -> None:
        for listener in list(self._listeners):
            try:
                listener(news)
            except Exception:
                self._log.exception("A listener failed on news of a %s", news.kind)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("A task of the broker failed", exc_info=task.exception())

    # Measuring

    async def _sample_for_ever(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._sample()
            except Exception:
                self._log.exception("Measuring failed")
                self._take(Measurement())
            if not self.broker.pool:
                return
            held = any(lease.holds for lease in self.broker.leases())
            self._awaited = asyncio.get_running_loop().create_future()
            await asyncio.sleep(max(0.1, SAMPLE_SECONDS - (time.monotonic() - began)))
            if not held:
                # Nothing moves until somebody comes, so wait for that.
                await asyncio.wait([self._awaited], timeout=IDLE_SAMPLE_SECONDS - SAMPLE_SECONDS)

    async def _sample(self) -> None:
        holders = holders_of(self.broker.leases())
        was_stuck = self._worker.stuck
        try:
            taken = await self._worker.call(lambda: measure(self._source, holders), SAMPLE_TIMEOUT)
        except UnansweredError as error:
            if not was_stuck:
                self._log.warning("The devices cannot be measured now: %s", error)
            self._take(Measurement())
            return
        for uuid, use in taken.devices.items():
            if use.health == "lost":
                self.broker.device_lost(uuid, "The device has failed.")
            elif use.health == "ok" and uuid in self.broker.lost:
                self.broker.device_back(uuid)
        now = time.monotonic()
        # Longer gaps (nothing held, a driver that hung) were not measured and count as idle.
        self._count_busy(taken, min(now - self._sampled, 2 * SAMPLE_SECONDS))
        self._sampled = now
        self._take(taken)

    def _take(self, taken: Measurement) -> None:
        ours = {member.device.uuid for member in self.broker.pool}
        devices = {uuid: use for uuid, use in taken.devices.items() if uuid in ours}
        taken = Measurement(devices, taken.leases)
        moved = taken != self.latest
        self.latest = taken
        if moved:
            self._tell(News("pool"))

    def _count_busy(self, taken: Measurement, seconds: float) -> None:
        for lease, uses in taken.leases.items():
            percent = sum(use.utilization_percent or 0 for use in uses.values())
            if percent:
                self._busy[lease] = self._busy.get(lease, 0.0) + seconds * percent / 100
                self.busy_seconds += seconds * percent / 100
        if time.monotonic() >= self._busy_due:
            self._flush_busy()

    def _flush_busy(self) -> None:
        self._busy_due = time.monotonic() + BUSY_SECONDS
        busy, self._busy = self._busy, {}
        if busy:
            try:
                self.ledger.add_busy(busy)
            except LedgerError as error:
                self._log.warning("Busy time was not recorded: %s", error.message)
