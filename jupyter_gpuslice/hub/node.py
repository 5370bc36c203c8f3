"""What callers may do with the leases of a whole machine: users, admins, and the hub itself."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from ..broker.broker import Broker
from ..broker.lease import Holder, Lease, Slice
from ..broker.ledger import Ledger
from ..broker.limits import NO_LIMITS, Limits
from ..broker.policy import Policy
from ..broker.pool import whole
from ..devices import FAR
from ..devices.device import Device, DeviceSource
from ..devices.process import Process
from ..isolation.levels import node_level
from ..isolation.reaper import Session, end, leftovers, sessions
from ..request import GpuRequest, RequestError
from ..server.api import ApiError, Body, Caller, Holding, LeaseApi
from ..server.grant import Near, grant_of
from ..server.metrics import PoolMetrics
from ..server.runtime import BrokerRuntime
from .availability import availability
from .frame import Frame
from .link import session_id
from .page import index_page

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

FORGET_SECONDS = 20.0
"""A waiting lease that the hub has not asked about for so long belongs to nobody any more."""
ABANDON_SECONDS = 120.0
"""The same for a granted one whose server is being started; a busy hub may be slow to ask."""

START_SECONDS = 86400.0
"""A start may take so long, with pulls of large images and what else there is."""

ASK_BEFORE = 10.0
KILL_BEFORE = 3.0
"""Seconds before the end of its lease at which a server is asked to end, and is ended."""


@dataclass(frozen=True)
class Hub(Caller):
    """The hub's spawner: it alone leases for users, and says which process holds a lease."""


HUB = Hub("", admin=True)


def _resolve(caller: Caller, kind: str | None, holder_id: str | None) -> Holding:
    """Only the hub may say whom a lease is for."""
    if not isinstance(caller, Hub):
        raise ApiError(
            403,
            "forbidden",
            "The GPUs of this machine are leased by starting a server.",
            "Choose a profile on the hub's spawn page.",
        )
    user, slash, server = (holder_id or "").partition("/")
    if kind != "session" or not user or not slash:
        raise ApiError(400, "bad_request", "The holder is a session, by its user and server.")
    return Holding(Holder("session", session_id(user, server), user, server))


@dataclass(frozen=True)
class Machine:
    """What there is: devices, how far they are apart, and how their slices are enforced."""

    devices: list[Device]
    near: Near
    isolation: str

    @classmethod
    def look(cls, source: DeviceSource) -> Machine:
        """Ask ``source`` (blocks)."""
        devices = source.devices()
        near = {
            (a.uuid, b.uuid): source.nearness(a.uuid, b.uuid) for a, b in combinations(devices, 2)
        }
        return cls(devices, near, node_level(source))

    def nearness(self, a: str, b: str) -> int:
        """How far two devices are apart, see `DeviceSource.nearness`."""
        return 0 if a == b else self.near.get((a, b), self.near.get((b, a), FAR))


def _record(lease: Lease) -> None:
    """A line of the log for each change of who holds what, for whoever has to answer for it."""
    holder = lease.holder
    who = f"{holder.user}, {holder.name or holder.id}"
    why = f": {lease.detail}" if lease.detail else ""
    log.info("Lease %s of %s (%s) is %s%s", lease.id, lease.request, who, lease.state, why)


class Node(LeaseApi):
    """The pool of this machine. ``url`` is the address of its REST interface for user servers."""

    place = "this machine"

    def __init__(
        self,
        runtime: BrokerRuntime,
        near: Near,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        hub_began: float = 0.0,
    ) -> None:
        self.streams: Counter[str] = Counter()
        """How many streams of news each user follows."""
        self.groups: dict[str, list[str]] = {}
        super().__init__(runtime, _resolve, groups_of=lambda user: self.groups.get(user, []))
        self.metrics = CollectorRegistry()
        PoolMetrics(lambda: runtime, self.metrics)
        self._node = runtime
        self._near = near
        self._url = url
        self._monotonic = clock
        self._began = clock()
        self._hub_began = hub_began
        self._asked: dict[str, float] = {}
        self._limits: dict[str, Limits] = {}
        self._told: set[str] = set()

    @property
    def broker(self) -> Broker:
        return self._node.broker

    @property
    def note(self) -> str:
        """Why there are no devices, for people; or ``""``."""
        return self._node.note

    @classmethod
    def of(
        cls,
        machine: Machine,
        source: DeviceSource,
        ledger: Ledger,
        url: str,
        hub_began: float = 0.0,
    ) -> Self:
        """A node with a machine's devices; it owns ``source`` and ``ledger`` from now on.

        ``hub_began`` is when the hub's process started (seconds since the epoch): what was asked
        for before that nobody waits for.
        """
        broker = Broker(
            whole(machine.devices),
            ledger,
            time.time,
            isolation=machine.isolation,
            # How long a start takes is the hub's affair: see `forget`.
            policy=Policy(activate_within=START_SECONDS),
            nearness=machine.nearness,
        )
        runtime = BrokerRuntime(broker, ledger, source, note=source.note, log=log)
        return cls(runtime, machine.near, url, hub_began=hub_began)

    async def start(self) -> None:
        """Take over the sessions that live, free those that do not, and begin to measure."""
        if self._node.ledger.fresh and self._url:
            # The first start, or the ledger was lost. Only then is a process's own word taken
            # for what it holds: a user could say anything. Other hubs' servers are not ours, and
            # without an address there are none.
            for session in await asyncio.to_thread(sessions):
                if session.grant.get("url") == self._url:
                    self._adopt(session)
        for lease in self.broker.leases():
            if lease.processes:
                continue
            if lease.state == "granted":
                # The server may have come up while nobody was there to be told: its environment
                # carries the lease.
                found = await asyncio.to_thread(leftovers, lease)
                if found:
                    self.broker.activate(lease.id, found)
                    continue
            if lease.created < self._hub_began:
                self.broker.release(lease.id, "The hub that asked for it is gone.")
        await self._node.start()
        self.broker.subscribe(_record)

    def _adopt(self, session: Session) -> None:
        now = time.time()
        try:
            lease = Lease(
                id=str(session.grant["lease"]),
                request=GpuRequest.parse(session.grant["request"]),
                holder=Holder(
                    "session",
                    session_id(session.user, session.server),
                    session.user,
                    session.server,
                ),
                state="active",
                created=now,
                slices=tuple(Slice.from_dict(slice_) for slice_ in session.grant["slices"]),
                isolation=self.broker.isolation,
                granted_at=now,
                processes=session.processes,
                detail="Its record was lost; its server runs.",
            )
        except (KeyError, TypeError, ValueError):
            return
        if self.broker.adopt(lease):
            log.warning("Took over the running server %s: the ledger is new.", lease.holder.id)
        elif lease.slices:
            log.error("The running server %s holds what cannot be its.", lease.holder.id)

    async def stop(self) -> None:
        await self._node.stop()

    async def start_anew(self, caller: Caller, body: Any) -> tuple[int, dict[str, Any]]:
        """``POST leases``, for the hub alone.

        A new start takes the place of every earlier one of the same server, which the hub knows
        nothing of any more: it may have lost our answer, or have died while the server came up.
        What is left of it is ended, or it would hold its slice for ever.
        """
        if not isinstance(caller, Hub):
            _resolve(caller, None, None)
        holder = body.get("holder") if isinstance(body, dict) else None
        holder_id = holder.get("id") if isinstance(holder, dict) else None
        for lease in self.broker.leases():
            if lease.holder.id == holder_id:
                await self._end(lease, "The server was started anew.")
        limits, user = NO_LIMITS, str(holder_id or "").partition("/")[0]
        if isinstance(body, dict):
            limits = limits_in(body.get("limits"))
            body = {key: value for key, value in body.items() if key != "limits"}
        status, view = self.create(caller, body, limits)
        self._limits[user] = limits
        self._asked[view["id"]] = self._monotonic()
        return status, view

    def limits_of(self, caller: Caller) -> Limits:
        """As the hub told at the user's last start, or as the user's leases say."""
        found = self._limits.get(caller.user)
        if found is not None:
            return found
        mine = (x.limits for x in self.broker.leases() if x.holder.user == caller.user)
        return next(mine, NO_LIMITS)

    def lease(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        if isinstance(caller, Hub):
            self._asked[lease_id] = self._monotonic()
        return super().lease(caller, lease_id)

    def change(self, caller: Caller, lease_id: str, body: Any) -> dict[str, Any]:
        """``PATCH leases/{id}``: an admin may extend; a session's size does not change."""
        self._own(caller, lease_id)
        if isinstance(body, dict) and body.get("request") is not None:
            raise ApiError(
                409,
                "not_supported",
                "The size of a running server's slice cannot be changed.",
                "Stop the server and start it with another profile.",
            )
        if not caller.admin:
            raise ApiError(
                403, "forbidden", "Only an admin may let a server hold its GPU for longer."
            )
        return super().change(caller, lease_id, body)

    async def end(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        """``DELETE leases/{id}``: leave the queue. What a server holds ends with the server.

        An admin's ends the server with it.
        """
        lease = self._own(caller, lease_id)
        if caller.admin:
            # Also what a server holds that the hub does not know: nobody could stop that one.
            await self._end(lease)
            return self._view(self._own(caller, lease_id), caller)
        if lease.holds:
            raise ApiError(
                409,
                "in_use",
                "This slice is held by a server that runs.",
                "Stop the server: its slice is free when it has ended.",
            )
        return self.delete(caller, lease_id)

    async def _end(self, lease: Lease, why: str = "") -> None:
        """End a server and all that it left, then its lease."""
        if lease.holds:
            rest = await asyncio.to_thread(end, lease.processes)
            if rest:
                log.warning("The server %s cannot be ended.", lease.holder.id)
        await self._node.end(lease.id, why)

    def activate(self, caller: Caller, lease_id: str, body: Any) -> dict[str, Any]:
        """``PUT leases/{id}/processes``, for the hub alone: who holds the lease from now on."""
        _hub_only(caller)
        self._own(caller, lease_id)
        try:
            processes = [Process.from_dict(item) for item in body["processes"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiError(
                400, "bad_request", "The body is {processes: [{pid, created}]}."
            ) from error
        try:
            lease = self.broker.activate(lease_id, processes)
        except Exception as error:
            raise ApiError.of(error) from error
        return self._view(lease, caller)

    def grant(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        """``GET leases/{id}/grant``, for the hub alone: what the user's server is told."""
        _hub_only(caller)
        lease = self._own(caller, lease_id)
        if not lease.holds:
            raise ApiError(409, "wrong_state", f"The lease is {lease.state}.")
        return grant_of(lease, [m.device for m in self.broker.pool], self._near, self._url)

    def operate(self, caller: Caller, body: Any) -> dict[str, Any]:
        """``PATCH pool``, for admins: take devices out of service, and put them back.

        ``{devices: [uuid, …] | null, cordoned: bool, why: text, within: seconds}``: without
        devices all of them are meant. What is held on a cordoned device stays, unless ``within``
        says how long it may (a drain): then the servers that hold it end, as at the end of their
        time.
        """
        if not caller.admin or isinstance(caller, Hub):
            raise ApiError(
                403,
                "forbidden",
                "Only an admin may take GPUs out of service.",
                "Run the command as root, or as the account that the broker runs as.",
            )
        fields = Body(body, "devices", "cordoned", "why", "within")
        there = [member.device.uuid for member in self.broker.pool]
        devices = fields.texts("devices") if "devices" in fields else there
        cordoned = fields.flag("cordoned", True)
        within = fields.duration("within")
        why = fields.text("why")
        for device in devices:
            if device not in there:
                raise ApiError(
                    404,
                    "not_found",
                    f"There is no device {device[:80]!r} here.",
                    f"There are {', '.join(there)}." if there else "There is none at all.",
                )
        if within is not None and not cordoned:
            raise ApiError(400, "bad_request", "Devices that are put back are not drained.")
        try:
            for device in devices:
                if cordoned:
                    self.broker.cordon(device, why)
                else:
                    self.broker.uncordon(device)
            if within is not None:
                self._drain(set(devices), time.time() + within, why)
            what = "Out of service" if cordoned else "Back into service"
            when = f", drained within {within:.0f} s" if within is not None else ""
            because = f": {why}" if why else ""
            log.info("%s by %s%s: %s%s", what, caller.user, when, ", ".join(devices), because)
        except Exception as error:
            raise ApiError.of(error) from error
        self._node.pool_changed()
        return self.pool(caller)

    def _drain(self, devices: set[str], when: float, why: str) -> None:
        told = (
            f"Its GPU goes out of service: {why.rstrip('. ')}."
            if why
            else ("Its GPU goes out of service.")
        )
        for lease in self.broker.leases():
            if lease.holds and devices & {slice_.device for slice_ in lease.slices}:
                self.broker.end_by(lease.id, when, told)

    def availability(
        self, caller: Caller, requests: Iterable[str], user: str = ""
    ) -> dict[str, Any]:
        """``GET availability?request=…&request=…&user=…``, for the hub alone.

        How much is free of each, and what the user holds and has used.
        """
        _hub_only(caller)
        try:
            wanted = [GpuRequest.parse(text) for text in requests]
        except RequestError as error:
            raise ApiError.of(error) from error
        return availability(self.broker, wanted, self._node.note, user).to_dict()

    async def end_due(self) -> None:
        """End the servers whose time is over, before their slices go to somebody else.

        First they are asked, so that they can save what they have; a moment before the end
        whatever is left of them is killed.
        """
        for lease in self.broker.leases():
            end = self.broker.ends_at(lease)
            if not lease.holds or end is None:
                continue
            left = end - time.time()
            if left <= KILL_BEFORE:
                await self._end(lease, self.broker.why_ends(lease))
            elif left <= ASK_BEFORE and lease.id not in self._told:
                self._told.add(lease.id)
                for process in lease.processes:
                    log.info("The time of %s is over.", lease.holder.id)
                    _terminate(process)

    def forget(self) -> None:
        """Let go of leases without a server that nobody asks about any more (a hub that died)."""
        now = self._monotonic()
        patience = {
            lease.id: FORGET_SECONDS for lease in self.broker.queue() if not lease.processes
        }
        for lease in self.broker.leases():
            if lease.state == "granted" and not lease.processes:
                patience[lease.id] = ABANDON_SECONDS
        self._asked = {id_: when for id_, when in self._asked.items() if id_ in patience}
        for id_, seconds in patience.items():
            if now - self._asked.get(id_, self._began) > seconds:
                self.broker.release(id_, "Nobody waits for it any more.")

    def page(self, caller: Caller, frame: Frame, token: str) -> str:
        """The page for people, see `index_page`."""
        return index_page(self.pool(caller), self.leases(caller), frame, token)

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """News of leases and of the pool, see `BrokerRuntime.subscribe`."""
        return self._node.subscribe(listener)

    def view(self, lease: Lease, caller: Caller) -> dict[str, Any]:
        """A lease as the caller may see it."""
        return self._view(lease, caller)


def limits_in(value: Any) -> Limits:
    """The limits that the hub tells with a request; none where it tells nothing."""
    if value is None:
        return NO_LIMITS
    try:
        return Limits.from_dict(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise ApiError(400, "bad_request", "The limits are {concurrent, gpu_hours}.") from error


def _hub_only(caller: Caller) -> None:
    if not isinstance(caller, Hub):
        raise ApiError(403, "forbidden", "Only the hub may do this.")


def _terminate(process: Process) -> None:
    try:
        fd = process.open_pidfd()
    except (OSError, AttributeError):
        return
    try:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
    except OSError as error:
        log.warning("Process %s cannot be asked to end: %s", process.pid, error)
    finally:
        os.close(fd)
