"""What callers may do with leases, without a web framework: the server and the hub share it.

Every method raises :class:`ApiError`, which is also the JSON of every error answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from typing import Any

from ..broker.explain import Refused
from ..broker.lease import Holder, Lease
from ..broker.ledger import LedgerError, Span
from ..broker.limits import NO_LIMITS, Limits
from ..devices.process import Process
from ..request import GpuRequest, RequestError
from .runtime import BrokerRuntime
from .view import Viewer, empty_pool_view

USAGE_SECONDS = 7 * 86400
"""``usage`` looks back for a week."""
MOST_TTL = 366 * 86400

_STATUS = {
    "not_found": 404,
    "not_owner": 403,
    "forbidden": 403,
    "bad_request": 400,
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class ApiError(Exception):
    """A call that was not done: an HTTP status and the four fields of every error of ours."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def to_dict(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "reason": self.reason,
            "hint": self.hint,
            "details": self.details,
        }

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """The answer to an error of the request grammar, the broker or the ledger."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, RequestError):
            return cls(400, error.reason, error.message, error.hint)
        if isinstance(error, Refused):
            status = _STATUS.get(error.reason, 409)
            return cls(status, error.reason, error.message, error.hint, error.details)
        if isinstance(error, LedgerError):
            return cls(503, error.reason, error.message, error.hint)
        return cls(500, "internal", "Something unexpected went wrong; the server's log has it.")


@dataclass(frozen=True)
class Caller:
    """Who calls. ``kernel`` is set for a kernel's capability: then only what is that kernel's.

    ``kernels`` are further kernels that the same capability stands for: those that were started
    from within it.
    """

    user: str
    admin: bool = False
    kernel: str | None = None
    kernels: frozenset[str] = field(default_factory=frozenset)

    def owns(self, lease: Lease) -> bool:
        """Whether the caller may see and change the lease."""
        if self.admin:
            return True
        if lease.holder.user != self.user:
            return False
        return self.kernel is None or (
            lease.holder.kind == "kernel" and self.stands_for(lease.holder.id)
        )

    def stands_for(self, kernel_id: str) -> bool:
        """Whether the caller may act for a kernel."""
        return self.kernel is None or kernel_id == self.kernel or kernel_id in self.kernels


@dataclass(frozen=True)
class Holding:
    """For whom a lease is made, and the processes that hold it already (if any run)."""

    holder: Holder
    processes: Sequence[Process] = ()


Resolve = Callable[[Caller, str | None, str | None], Holding]
"""``(caller, kind, id)`` → who will hold; without a kind it is the caller's session.
Raises :class:`ApiError` for holders that the caller may not name."""


class LeaseApi:
    """Leases for callers. Without a runtime the pool says why and everything else is refused.

    ``about(lease)`` adds the server's own knowledge of a lease; ``entitled(caller)`` is what the
    caller's profile allows (``None``: the whole pool); ``hub`` is the path of the page of the hub
    whose session the pool is; ``groups_of(user)`` serves usage by group.
    """

    def __init__(
        self,
        runtime: BrokerRuntime | None,
        resolve: Resolve,
        *,
        problem: ApiError | None = None,
        about: Callable[[Lease], Mapping[str, Any]] | None = None,
        entitled: Callable[[Caller], Mapping[str, Any] | None] = lambda caller: None,
        hub: str | None = None,
        groups_of: Callable[[str], Iterable[str]] = lambda user: (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.runtime = runtime
        self.problem = problem
        self._resolve = resolve
        self._about = about
        self._entitled = entitled
        self._hub = hub
        self._groups_of = groups_of
        self._clock = clock

    def viewer(self, caller: Caller) -> Viewer:
        extra: dict[str, Any] = {"about": self._about} if self._about else {}
        return Viewer(
            caller.user,
            caller.admin,
            entitled=self._entitled(caller),
            hub=self._hub,
            limits=self.limits_of(caller),
            **extra,
        )

    def pool(self, caller: Caller) -> dict[str, Any]:
        """``GET pool``."""
        if self.runtime is None:
            note = self.problem.message if self.problem else ""
            return empty_pool_view(self.viewer(caller), note)
        return self.runtime.pool_dict(self.viewer(caller))

    def leases(self, caller: Caller) -> list[dict[str, Any]]:
        """``GET leases``: those that have not ended and are the caller's."""
        runtime = self._running()
        found = [lease for lease in runtime.broker.leases() if caller.owns(lease)]
        return [self._view(lease, caller) for lease in found]

    def lease(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        """``GET leases/{id}``, also of one that has ended."""
        return self._view(self._own(caller, lease_id), caller)

    def limits_of(self, caller: Caller) -> Limits:
        """What the caller's leases may come to together."""
        return NO_LIMITS

    def create(
        self, caller: Caller, body: Any, limits: Limits = NO_LIMITS
    ) -> tuple[int, dict[str, Any]]:
        """``POST leases``: status 201 (granted) or 202 (queued), and the lease.

        ``limits`` are those of the user who will hold it.
        """
        runtime = self._running()
        fields = Body(body, "request", "holder", "wait", "ttl", "priority")
        request = fields.request("request")
        kind, holder_id = fields.holder()
        wait = fields.flag("wait", True)
        ttl = fields.duration("ttl")
        priority = fields.priority()
        if priority > 0 and not caller.admin:
            raise ApiError(403, "forbidden", "Only an admin may give a lease priority.")
        holding = self._resolve(caller, kind, holder_id)
        with _translated():
            lease = self._ask(runtime, holding, request, wait, ttl, priority, limits)
        return (202 if lease.state == "queued" else 201), self._view(lease, caller)

    def _ask(
        self,
        runtime: BrokerRuntime,
        holding: Holding,
        request: GpuRequest,
        wait: bool,
        ttl: float | None,
        priority: int,
        limits: Limits = NO_LIMITS,
    ) -> Lease:
        broker, holder = runtime.broker, holding.holder
        auto = None
        if holder.kind == "kernel":
            for lease in leases_of_kernel(broker.leases(), holder.id):
                if lease.request.kind != "auto":
                    raise ApiError(
                        409,
                        "already_held",
                        f"This kernel has a lease of {lease.request} already ({lease.state}).",
                        "Resize it, or release it first.",
                        {"lease": lease.id},
                    )
                if request.kind == "auto":
                    return lease
                auto = lease
        lease = broker.request(
            request,
            holder,
            wait=wait,
            ttl=ttl,
            priority=priority,
            instead_of=auto.id if auto and auto.holds else None,
            limits=limits,
        )
        if auto is not None and (lease.holds or not auto.holds):
            # What was asked for by name takes the place of what came by itself. While it waits,
            # the auto lease waits behind everybody and may bridge the time.
            broker.release(auto.id, f"{request} was asked for instead.")
        if holding.processes:
            lease = broker.activate(lease.id, holding.processes)
        return lease

    def change(self, caller: Caller, lease_id: str, body: Any) -> dict[str, Any]:
        """``PATCH leases/{id}``: ``{request}`` resizes, ``{ttl}`` extends."""
        runtime = self._running()
        lease = self._own(caller, lease_id)
        fields = Body(body, "request", "ttl", "state")
        if "state" in fields:
            raise ApiError(
                409,
                "not_supported",
                "This pool cannot park or resume leases.",
                "Release the lease to give its device memory back.",
            )
        if "request" not in fields and "ttl" not in fields:
            raise ApiError(400, "bad_request", "Nothing is to be changed: give request or ttl.")
        request = fields.request("request") if "request" in fields else None
        ttl = fields.duration("ttl")
        if request is not None and request.kind == "none":
            raise ApiError(400, "bad_request", "A lease on no GPU is no lease.", "Release it.")
        if request is not None and lease.holder.kind == "group":
            raise ApiError(
                409,
                "wrong_state",
                "The slices of a group stay as they are: its ranks have them already.",
                "`%%gpu train --fresh` makes the group anew with another request.",
            )
        with _translated():
            if request is not None:
                lease = runtime.broker.resize(lease.id, request)
            if ttl is not None:
                lease = runtime.broker.extend(lease.id, ttl)
        return self._view(lease, caller)

    def delete(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        """``DELETE leases/{id}``: give it back, or leave the queue."""
        runtime = self._running()
        lease = self._own(caller, lease_id)
        with _translated():
            lease = runtime.broker.release(lease.id)
        return self._view(lease, caller)

    def explain(self, caller: Caller, body: Any) -> dict[str, Any]:
        """``POST explain``: would it fit in place of what the holder has now."""
        runtime = self._running()
        fields = Body(body, "request", "workers", "holder")
        request = fields.request("request")
        workers = fields.count("workers")
        kind, holder_id = fields.holder()
        instead_of = None
        if kind is not None:
            holder = self._resolve(caller, kind, holder_id).holder
            for lease in runtime.broker.leases():
                same = (lease.holder.kind, lease.holder.id) == (holder.kind, holder.id)
                # Of several, the one that holds something is what would be given back.
                if same and (instead_of is None or lease.holds):
                    instead_of = lease.id
        with _translated():
            explanation = runtime.broker.explain(
                request,
                workers=workers,
                instead_of=instead_of,
                user=caller.user,
                limits=self.limits_of(caller),
            )
        return explanation.to_dict()

    def usage(self, caller: Caller, by: str) -> list[dict[str, Any]]:
        """``GET usage``: device-seconds of the last week, summed by user, group or day."""
        runtime = self._running()
        if by not in ("user", "group", "day"):
            raise ApiError(
                400, "bad_request", f"Usage is summed by user, group or day, not by {by[:40]!r}."
            )
        now = self._clock()
        since = now - USAGE_SECONDS
        with _translated():
            spans = list(runtime.ledger.spans(since, now))
        # Asked for once each: it may be a directory service that knows.
        groups_of = cache(lambda user: tuple(self._groups_of(user)) or ("",))
        rows: dict[str, _Sums] = {}
        for span in spans:
            if caller.admin or span.user == caller.user:
                for key, start, stop in self._parts(span, by, since, now, groups_of):
                    rows.setdefault(key, _Sums()).add(span, start, stop, now)
        return [{by: key, **rows[key].to_dict()} for key in sorted(rows)]

    def _parts(
        self,
        span: Span,
        by: str,
        since: float,
        now: float,
        groups_of: Callable[[str], Iterable[str]],
    ) -> Iterable[tuple[str, float, float]]:
        start, stop = max(span.start, since), min(span.stop or now, now)
        if by == "user":
            return [(span.user, start, stop)]
        if by == "group":
            return [(group, start, stop) for group in groups_of(span.user)]
        days = []
        while start < stop:
            midnight = (start // 86400 + 1) * 86400
            day = datetime.fromtimestamp(start, timezone.utc).date().isoformat()
            days.append((day, start, min(stop, midnight)))
            start = midnight
        return days

    def _running(self) -> BrokerRuntime:
        if self.runtime is None:
            raise self.problem or ApiError(503, "starting", "The pool is not there yet.")
        return self.runtime

    def _own(self, caller: Caller, lease_id: str) -> Lease:
        with _translated():
            lease = self._running().broker.get(lease_id)
        if lease is None:
            raise ApiError(404, "not_found", "There is no such lease.")
        if not caller.owns(lease):
            raise ApiError(403, "not_owner", "This lease is not yours.")
        return lease

    def _view(self, lease: Lease, caller: Caller) -> dict[str, Any]:
        return self._running().lease_dict(lease, self.viewer(caller))


def leases_of_kernel(leases: Iterable[Lease], kernel_id: str) -> list[Lease]:
    """A kernel's own leases, what it holds first, what it asked for by name before ``auto``."""
    found = [
        lease
        for lease in leases
        if lease.live and lease.holder.kind == "kernel" and lease.holder.id == kernel_id
    ]
    return sorted(found, key=lambda lease: (not lease.holds, lease.request.kind == "auto"))


class _translated:  # noqa: N801 (used as a statement)
    """Errors of the broker, the ledger and the grammar leave as :class:`ApiError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (Refused, LedgerError, RequestError)):
            raise ApiError.of(error) from error


@dataclass
class _Sums:
    held: float = 0.0
    busy: float = 0.0
    waited: float = 0.0

    def add(self, span: Span, start: float, stop: float, now: float) -> None:
        seconds = span.devices * max(0.0, stop - start)
        if span.kind == "waited":
            self.waited += seconds
            return
        self.held += seconds
        # Busy time is known for a whole span only: each part gets its share.
        whole = (span.stop or now) - span.start
        share = (stop - start) / whole if whole > 0 else 0.0
        self.busy += min(span.busy_s * share, seconds)

    def to_dict(self) -> dict[str, float]:
        values = {
            "held_s": self.held,
            "busy_s": self.busy,
            "idle_s": self.held - self.busy,
            "waited_s": self.waited,
        }
        return {name: round(value, 1) for name, value in values.items()}


class Body:
    """The JSON object of a call; every field is checked here and nowhere else."""

    def __init__(self, body: Any, *known: str) -> None:
        if not isinstance(body, dict):
            raise _bad("The body of this call is a JSON object.")
        unknown = sorted(set(body) - set(known))
        if unknown:
            raise _bad(f"Unknown field {unknown[0][:40]!r}.", f"Known are {', '.join(known)}.")
        self._body = body

    def __contains__(self, name: str) -> bool:
        return self._body.get(name) is not None

    def request(self, name: str) -> GpuRequest:
        if name not in self:
            raise _bad(f"The field {name!r} is missing.", "It says what is asked for: 0.5, say.")
        with _translated():
            return GpuRequest.parse(self._body[name])

    def flag(self, name: str, default: bool) -> bool:
        value = self._body.get(name, default)
        if not isinstance(value, bool):
            raise _bad(f"{name!r} is true or false.")
        return value

    def text(self, name: str) -> str:
        """A text of one line, "" if it is not there."""
        value = self._body.get(name)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
            raise _bad(f"{name!r} is a text of one line, of 200 characters at most.")
        return value.strip()

    def texts(self, name: str) -> list[str]:
        value = self._body.get(name)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _bad(f"{name!r} is a list of texts.")
        return list(dict.fromkeys(value))

    def count(self, name: str) -> int:
        value = self._body.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
            raise _bad(f"{name!r} is a whole number from 1 to 1024.")
        return value

    def priority(self) -> int:
        value = self._body.get("priority", 0)
        if isinstance(value, bool) or not isinstance(value, int) or not -100 <= value <= 100:
            raise _bad("'priority' is a whole number from -100 to 100.")
        return value

    def duration(self, name: str) -> float | None:
        """Seconds, as a number or as a text such as ``90s``, ``30m``, ``2h``, ``1d``."""
        value = self._body.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([smhd]?)\s*", value)
            value = float(match[1]) * _UNITS[match[2] or "s"] if match else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _bad(f"{name!r} is a number of seconds or a time such as 90s, 30m, 2h or 1d.")
        if not 0 < value <= MOST_TTL:
            raise _bad(f"{name!r} is more than nothing and at most a year.")
        return float(value)

    def holder(self) -> tuple[str | None, str | None]:
        value = self._body.get("holder")
        if value is None:
            return None, None
        if not isinstance(value, dict) or value.get("kind") not in ("session", "kernel"):
            raise _bad("'holder' is an object whose kind is session or kernel.")
        holder_id = value.get("id")
        if holder_id is not None and not isinstance(holder_id, str):
            raise _bad("A holder's id is a text.")
        if value["kind"] == "kernel" and not holder_id:
            raise _bad("Which kernel holds the lease: give its id.")
        return value["kind"], holder_id


def _bad(message: str, hint: str = "") -> ApiError:
    return ApiError(400, "bad_request", message, hint)
