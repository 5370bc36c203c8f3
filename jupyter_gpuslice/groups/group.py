"""A peer group as a value: who is in it and what state it is in. No Jupyter, no event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..broker.lease import Slice

GroupState = Literal["starting", "ready", "busy", "broken", "stopped"]
RankState = Literal["starting", "idle", "busy", "dead"]


class WrongStateError(Exception):
    """A step that the group cannot take in its state."""


@dataclass
class Rank:
    """One member: a kernel, its process and its part of the lease."""

    rank: int
    state: RankState = "starting"
    kernel: str | None = None
    pid: int | None = None
    slices: tuple[Slice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "state": self.state,
            "kernel": self.kernel,
            "pid": self.pid,
            "slices": [slice_.to_dict() for slice_ in self.slices],
        }


@dataclass
class Group:
    """A group's life: ``starting → ready ⇄ busy``, ``broken`` while a rank is dead, ``stopped``.

    ``kernel`` is the notebook's kernel, with which the group ends. ``on_change`` is called after
    every change of state.
    """

    id: str
    name: str
    workers: int
    request: str
    user: str = ""
    kernel: str | None = None
    backend: str = "auto"
    lease: str | None = None
    detail: str = ""
    """For people: why the group is in its state, where the state alone does not say."""
    state: GroupState = "starting"
    ranks: list[Rank] = field(default_factory=list)
    on_change: Callable[[Group], None] = field(default=lambda group: None, repr=False)

    def __post_init__(self) -> None:
        self.ranks = [Rank(number) for number in range(self.workers)]

    def granted(self, slices: Mapping[int, tuple[Slice, ...]]) -> None:
        """The leases hold ``slices``, rank by rank."""
        for rank, own in slices.items():
            self.ranks[rank].slices = own
        self._changed()

    def spawned(self, rank: int, kernel: str, pid: int) -> None:
        """A rank's kernel runs and answers."""
        self._expect("starting", "broken", "busy")
        member = self.ranks[rank]
        member.kernel, member.pid, member.state = kernel, pid, "idle"
        self._changed()

    def ready(self) -> None:
        """All ranks live and wait for a cell."""
        self._expect("starting", "broken", "busy")
        if any(rank.state in ("starting", "dead") for rank in self.ranks):
            raise WrongStateError("not every rank is there")
        for rank in self.ranks:
            rank.state = "idle"
        self.state, self.detail = "ready", ""
        self._changed()

    def begin(self, ranks: Iterable[int]) -> None:
        """A cell starts on some ranks."""
        self._expect("ready")
        self.state = "busy"
        for rank in ranks:
            self.ranks[rank].state = "busy"
        self._changed()

    def died(self, rank: int, detail: str = "") -> None:
        """A rank's process is gone. During a cell the group stays busy until that has ended."""
        if self.state == "stopped":
            return
        member = self.ranks[rank]
        member.state, member.kernel, member.pid = "dead", None, None
        if self.state == "ready":
            self.state, self.detail = "broken", detail
        self._changed()

    def broke(self, detail: str) -> None:
        """The group cannot run cells for now."""
        if self.state != "stopped":
            self.state, self.detail = "broken", detail
            for rank in self.ranks:
                if rank.state == "busy":
                    rank.state = "idle"
            self._changed()

    def stopping(self, detail: str) -> None:
        """The end has begun: nothing more can be asked of the group."""
        self.state, self.detail = "stopped", detail
        self._changed()

    def stopped(self, detail: str = "") -> None:
        """The end; nothing of the group runs any more."""
        self.state, self.detail = "stopped", detail or self.detail
        for rank in self.ranks:
            rank.state, rank.kernel, rank.pid = "dead", None, None
        self._changed()

    @property
    def dead(self) -> list[int]:
        return [rank.rank for rank in self.ranks if rank.state == "dead"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "workers": self.workers,
            "request": self.request,
            "backend": self.backend,
            "lease": self.lease,
            "kernel": self.kernel,
            "detail": self.detail,
            "ranks": [rank.to_dict() for rank in self.ranks],
        }

    def _expect(self, *states: str) -> None:
        if self.state not in states:
            raise WrongStateError(f"a group that is {self.state} is not {' or '.join(states)}")

    def _changed(self) -> None:
        self.on_change(self)
