"""The living side of a group: its kernels, their rendezvous, and what is done on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import backend as backends
from .group import Group
from .members import Member, RankDiedError, StartFailedError
from .node import LocalNode, raise_first
from .together import Outcome, Outcomes, together

Say = Callable[[str], None]

MOST_ROUNDS = 4
"""How often ranks that die while others are started anew are started anew themselves."""


class StepFailedError(Exception):
    """A step before the cell itself failed on some ranks."""

    def __init__(self, outcomes: Outcomes) -> None:
        super().__init__("a step failed")
        self.outcomes = outcomes


class Team:
    """The members of one group. One thing is done at a time: hold ``lock`` for it.

    ``nodes`` start and end them, each its own.
    """

    def __init__(self, group: Group, nodes: Sequence[LocalNode], asked_backend: str) -> None:
        self.group = group
        self.lock = asyncio.Lock()
        self.stop = asyncio.Event()
        """Set to end what runs now."""
        self.closing = False
        self.members: dict[int, Member] = {}
        self._nodes = nodes
        self._asked = asked_backend
        self._backend = ""
        self._probes: dict[int, Mapping[str, Any]] = {}
        self._store: tuple[str, int] | None = None
        self._met: set[int] = set()
        self._generation = 0
        self._broken = True

    # Life

    async def start(self) -> None:
        """Start all ranks, or none: then ``StartFailedError`` says what went wrong."""
        try:
            await self._spawn(range(self.group.workers))
            await self._introduce()
            if self._asked == "nccl":
                self._choose()
            self._not_closing()
        except BaseException:
            await self.end(now=True)
            raise
        self.group.ready()

    async def respawn(self, instead_of: str | None = None) -> list[int]:
        """Start the dead ranks anew; returns which. The group is ready afterwards.

        ``instead_of`` names a lease that may give way when all of them had died.
        """
        started: set[int] = set()
        for _ in range(MOST_ROUNDS):
            dead = self.group.dead
            if not dead:
                break
            await self._replace(dead, instead_of)
            started |= set(dead)
        else:
            raise StartFailedError("Its ranks die again and again.")
        if self.group.state in ("broken", "busy"):
            self.group.ready()
        return sorted(started)

    async def _replace(self, dead: Sequence[int], instead_of: str | None) -> None:
        for rank in dead:
            member = self.members.pop(rank, None)
            if member is not None:
                await member.node.end(member, now=True)
        await self._spawn(dead, instead_of)
        self._broken = True
        self._met -= set(dead)
        for rank in dead:
            self._probes.pop(rank, None)
        if 0 in dead:
            self._store = None
        await self._introduce()

    async def end(self, *, now: bool = False) -> None:
        """End all ranks; they are gone when this returns."""
        self.closing = True
        self.stop.set()
        members, self.members = list(self.members.values()), {}
        # A rank in the middle of a cell would not heed a polite word.
        busy = {rank.rank for rank in self.group.ranks if rank.state == "busy"}
        await asyncio.gather(*(m.node.end(m, now=now or m.rank in busy) for m in members))

    async def _spawn(self, ranks: Iterable[int], instead_of: str | None = None) -> None:
        wanted = set(ranks)
        starting = [
            node.spawn(sorted(wanted & set(node.ranks)), instead_of)
            for node in self._nodes
            if wanted & set(node.ranks)
        ]
        results = await asyncio.gather(*starting, return_exceptions=True)
        spawned = [m for result in results if isinstance(result, list) for m in result]
        try:
            raise_first(results)
            self._not_closing()
        except BaseException:
            await asyncio.gather(*(m.node.end(m, now=True) for m in spawned))
            raise
        self.members |= {member.rank: member for member in spawned}
        self.group.lease = next(filter(None, (node.lease_id for node in self._nodes)), None)
        self.group.granted({rank: own for n in self._nodes for rank, own in n.slices().items()})
        for member in spawned:
            member.on_death = self._died
            self.group.spawned(member.rank, member.kernel_id, member.process.pid)
            if not member.alive:
                self._died(member)

    def _not_closing(self) -> None:
        if self.closing:
            raise StartFailedError("The group was stopped.")

    def _died(self, member: Member) -> None:
        if self.closing or self.members.get(member.rank) is not member:
            return
        self._broken = True
        self.group.died(member.rank, f"Rank {member.rank} has died; the next cell starts it anew.")

    @property
    def has_torch(self) -> bool:
        return all(self._probes.get(r, {}).get("torch") for r in range(self.group.workers))

    # Rendezvous

    async def _introduce(self) -> None:
        """Import torch where it is, and tell the ranks of the store, so that ``env://`` works.

        Not having torch is no error here: a group can run other code.
        """
        members = [m for m in self.members.values() if m.rank not in self._probes]
        replies = await asyncio.gather(
            *(m.ask("shell", "probe") for m in members), return_exceptions=True
        )
        for member, reply in zip(members, replies, strict=True):
            if isinstance(reply, RankDiedError):
                raise StartFailedError(f"{reply}{member.tail()}")
            if isinstance(reply, BaseException):
                raise reply
            self._probes[member.rank] = reply
        if self.has_torch:
            try:
                await self._meet(asyncio.Event())
            except StepFailedError:
                pass  # asked for again before the first cell that trains, and told there

    async def _meet(self, stop: asyncio.Event) -> None:
        """Have the leader bind the store, if there is none, and tell all where it is."""
        if self._store is None:
            replies = await self.step([self.members[0]], "open_store", {}, stop)
            self._store = ("127.0.0.1", replies[0]["port"])
            self._met.clear()
            self._broken = True
        new = [m for m in self.members.values() if m.rank not in self._met]
        host, port = self._store
        await self.step(new, "meet", {"host": host, "port": port}, stop)
        self._met |= {m.rank for m in new}

    def _choose(self) -> str:
        """Settle the backend; returns why it is not NCCL, if a person should know."""
        slices = [rank.slices for rank in self.group.ranks]
        probes = [self._probes[rank] for rank in range(self.group.workers)]
        self._backend, why = backends.choose(self._asked, slices, probes)
        if self.group.backend != self._backend:
            self.group.backend = self._backend
            return why
        return ""

    async def rendezvous(self, say: Say, *, anew: bool = False) -> None:
        """See to it that every rank has the default process group."""
        if not self.has_torch:
            # It may have been installed since.
            self._probes.clear()
            await self._introduce()
        why = self._choose()
        members = list(self.members.values())
        await self._meet(self.stop)
        if not (anew or self._broken) and await self._agree(members):
            return
        first = self._generation == 0
        self._generation += 1
        if first:
            because = f": {why}" if why else ""
            say(f"Process group of {len(members)} ranks over {self._backend}{because}.")
        elif self._broken:  # not after the cell's own destroy_process_group(), which is no news
            say(
                f"The process group of {len(members)} ranks was made anew ({self._backend}); "
                "what was built on the old one (DDP models, groups) must be built again."
            )
        content = {"generation": self._generation, "backend": self._backend}
        await self.step(members, "join", content, self.stop)
        self._broken = False

    async def _agree(self, members: Sequence[Member]) -> bool:
        """Whether all ranks have a process group, the same one."""
        outcomes = await together(
            members, lambda m: m.ask("control", "state"), self.stop, self.everybody
        )
        self._note(outcomes)
        if not outcomes.ok:
            raise StepFailedError(outcomes)
        states = [outcomes.by_rank[member.rank].reply for member in members]
        kinds = {(s.get("initialized"), s.get("generation"), s.get("count")) for s in states}
        return len(kinds) == 1 and bool(states[0].get("initialized"))

    # Work

    async def step(
        self,
        members: Sequence[Member],
        operation: str,
        content: Mapping[str, Any],
        stop: asyncio.Event,
    ) -> dict[int, dict[str, Any]]:
        """One of the peers' own operations on some ranks; their replies, or ``StepFailedError``."""
        outcomes = await together(
            members, lambda m: m.ask("shell", operation, content), stop, self.everybody
        )
        self._note(outcomes)
        if not outcomes.ok:
            raise StepFailedError(outcomes)
        return {rank: outcome.reply for rank, outcome in outcomes.by_rank.items()}

    async def run(self, ranks: Sequence[int], act: Callable[[Member], Any]) -> Outcomes:
        """Something of the cell's on some ranks."""
        members = [self.members[rank] for rank in ranks]
        outcomes = await together(members, act, self.stop, self.everybody, script=True)
        self._note(outcomes)
        return outcomes

    def everybody(self) -> list[Member]:
        return list(self.members.values())

    def trim_logs(self) -> None:
        for member in self.members.values():
            member.trim_log()

    def _note(self, outcomes: Outcomes) -> None:
        if not outcomes.ok:
            # Whatever ended early may have left a collective half done.
            self._broken = True


def describe(outcome: Outcome) -> str:
    """What became of a rank that is gone, for people."""
    if outcome.status == "restarted":
        return f"Rank {outcome.rank} did not stop and was ended"
    return f"Rank {outcome.rank} {outcome.how or 'is gone'}"
