"""A lease: who asked for what, and what was granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ..devices.process import Process
from ..request import GpuRequest
from .limits import NO_LIMITS, Limits

HolderKind = Literal["session", "kernel", "group"]
State = Literal[
    "queued", "granted", "active", "parked", "released", "expired", "revoked", "lost", "refused"
]
HOLDING: frozenset[str] = frozenset({"granted", "active"})
"""States in which a lease holds its slices."""
LIVE: frozenset[str] = HOLDING | {"queued", "parked"}
"""States that can still change."""


@dataclass(frozen=True)
class Slice:
    """A part of one device: memory in MiB, compute in percent of the device."""

    device: str
    memory_mib: int
    compute_percent: int
    """Compute reserved; over all slices of a device never more than 100."""
    compute_cap_percent: int
    """Compute that the holder may use while others leave it idle."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "memory_mib": self.memory_mib,
            "compute_percent": self.compute_percent,
            "compute_cap_percent": self.compute_cap_percent,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Slice:
        return cls(
            str(data["device"]),
            int(data["memory_mib"]),
            int(data["compute_percent"]),
            int(data["compute_cap_percent"]),
        )


@dataclass(frozen=True)
class Holder:
    """Who holds a lease: a session (user server), a kernel or a peer group."""

    kind: HolderKind
    id: str
    user: str
    name: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "id": self.id, "user": self.user, "name": self.name}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Holder:
        """``ValueError`` for an unknown kind."""
        if data["kind"] not in get_args(HolderKind):
            raise ValueError(f"a holder is a session, a kernel or a group, not {data['kind']!r}")
        return cls(data["kind"], str(data["id"]), str(data["user"]), str(data.get("name") or ""))


@dataclass(frozen=True)
class Lease:
    """One request and what became of it. Values change by replacement, in the broker alone.

    ``workers`` is the number of a group's ranks (1 for all others); ``slices`` holds
    ``workers * request.count`` slices, rank after rank, and is empty while nothing is held.
    Times are seconds since the epoch. ``processes`` are those whose end is the lease's end.
    """

    id: str
    request: GpuRequest
    holder: Holder
    state: State
    created: float
    workers: int = 1
    priority: int = 0
    slices: tuple[Slice, ...] = ()
    isolation: str = "watch"
    queued_at: float | None = None
    """When it joined the queue (it may do so again after giving way)."""
    granted_at: float | None = None
    ended_at: float | None = None
    expires: float | None = None
    ttl: float | None = None
    """How long a grant lasts; ``None`` is as long as the holder lives."""
    activate_by: float | None = None
    """A grant that nobody has taken up by then expires: its holder never came to life."""
    processes: tuple[Process, ...] = field(default=())
    limits: Limits = NO_LIMITS
    """What its user might hold when it was asked for."""
    detail: str = ""
    """Why the lease is in its state, for people, where the state alone does not say."""

    @property
    def holds(self) -> bool:
        return self.state in HOLDING

    @property
    def live(self) -> bool:
        return self.state in LIVE

    def slices_of(self, rank: int) -> tuple[Slice, ...]:
        """The slices of one rank; ``IndexError`` if there is no such rank."""
        if not 0 <= rank < self.workers:
            raise IndexError(f"rank {rank} of {self.workers}")
        share = len(self.slices) // self.workers
        return self.slices[rank * share : (rank + 1) * share]

    def to_dict(self) -> dict[str, Any]:
        """The lease as the REST interface shows it, but for what changes while it queues."""
        return {
            "id": self.id,
            "request": str(self.request),
            "workers": self.workers,
            "state": self.state,
            "holder": self.holder.to_dict(),
            "slices": [slice_.to_dict() for slice_ in self.slices],
            "isolation": self.isolation,
            "created": self.created,
            "granted": self.granted_at,
            "expires": self.expires,
            "priority": self.priority,
            "detail": self.detail,
        }

    def changed(self, **changes: Any) -> Lease:
        return replace(self, **changes)
