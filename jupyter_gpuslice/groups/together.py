"""Do one thing on several ranks, so that it ends on all of them when it fails on one.

What keeps a rank busy is ended by steps, each harder than the one before:

1. SIGINT to all at once, which Python code sees at its next instruction;
2. its connections to other ranks and to the rendezvous store are shut down, which ends what waits
   in C++;
3. SIGINT once more;
4. a rank that is busy still is killed: its variables are lost, those of the others stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .members import Member, RankDiedError

SETTLE_SECONDS = 0.1
"""After a first failure: ranks that fail by themselves too are not told to stop, and a rank that
died is seen before the others' broken connections are taken for the cause."""
INTERRUPT_SECONDS = 0.5
FREE_SECONDS = 2.0
LAST_SECONDS = 4.5

Status = Literal["ok", "error", "interrupted", "died", "restarted"]

# What ranks say when another one has gone or was stopped.
_CONSEQUENCES = (
    "KeyboardInterrupt",
    "DistNetworkError",
    "DistBackendError",
    "DistStoreError",
)
_CONSEQUENCE_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


@dataclass
class Outcome:
    """How it ended on one rank. ``reply`` is the kernel's, if it could give one."""

    rank: int
    status: Status
    reply: dict[str, Any] = field(default_factory=dict)
    how: str = ""
    tail: str = ""

    @property
    def consequence(self) -> bool:
        """Whether this may be no more than what another rank's failure looks like from here."""
        if self.status != "error":
            return self.status != "died"
        text = str(self.reply.get("evalue", ""))
        return self.reply.get("ename") in _CONSEQUENCES or any(
            words in text for words in _CONSEQUENCE_WORDS
        )


@dataclass
class Outcomes:
    """How it ended, rank by rank, and in which order the ranks failed by themselves."""

    by_rank: dict[int, Outcome]
    failed: list[Outcome]
    interrupted: bool

    @property
    def ok(self) -> bool:
        return all(outcome.status == "ok" for outcome in self.by_rank.values())

    @property
    def cause(self) -> Outcome | None:
        """The failure that the others follow from."""
        died = [outcome for outcome in self.failed if outcome.status == "died"]
        own = [outcome for outcome in self.failed if not outcome.consequence]
        first = next(iter(died or own or self.failed), None)
        if first is None or first.status == "died":
            return first
        same = [o for o in own if _what(o) == _what(first)]
        return min(same, key=lambda outcome: outcome.rank, default=first)


def _what(outcome: Outcome) -> tuple[Any, Any]:
    return outcome.reply.get("ename"), outcome.reply.get("evalue")


async def together(
    members: Sequence[Member],
    act: Callable[[Member], Awaitable[Mapping[str, Any]]],
    stop: asyncio.Event,
    everybody: Callable[[], Sequence[Member]],
    *,
    script: bool = False,
) -> Outcomes:
    """``act`` on all members; ends when it has ended on all.

    ``stop`` ends it early. ``everybody`` are all ranks of the group, also those that do not take
    part: connections to them are the ones to shut down. ``script``: what runs is a cell, which may
    end itself by ``sys.exit()``.
    """
    tasks = {asyncio.create_task(_run(member, act, script)): member for member in members}
    stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    by_rank: dict[int, Outcome] = {}
    failed: list[Outcome] = []
    pending = set(tasks)

    async def wait(seconds: float | None) -> None:
        """Until all have ended, or ``seconds``; without a limit also until one has failed."""
        nonlocal pending
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while pending:
            if end is None and (failed or stop.is_set()):
                return
            left = None if end is None else max(0.0, end - loop.time())
            watched: set[asyncio.Task[Any]] = {*pending}
            if end is None:
                watched.add(stopping)
            done, _ = await asyncio.wait(watched, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
            for task in sorted(pending & done, key=lambda task: tasks[task].rank):
                outcome = task.result()
                by_rank[outcome.rank] = outcome
                if outcome.status != "ok":
                    failed.append(outcome)
            pending -= done

    try:
        await wait(None)
        interrupted = stop.is_set()
        if pending and not interrupted:
            await wait(SETTLE_SECONDS)
        told = set(pending)
        if pending:
            await _each(pending, tasks, lambda member: member.interrupt())
            await wait(INTERRUPT_SECONDS)
        if pending:
            await _each(pending, tasks, lambda member: _free(member, everybody()))
            await wait(FREE_SECONDS)
        if pending:
            await _each(pending, tasks, lambda member: member.interrupt())
            await wait(LAST_SECONDS)
        killed = {tasks[task].rank for task in pending}
        for task in pending:
            tasks[task].kill()
        while pending:
            await wait(5.0)
    finally:
        stopping.cancel()
        for task in pending:
            task.cancel()
    told_ranks = {tasks[task].rank for task in told}
    for rank, outcome in by_rank.items():
        if rank in killed:
            outcome.status = "restarted"
        elif rank in told_ranks and outcome.status == "error":
            outcome.status = "interrupted"
    alone = [outcome for outcome in failed if outcome.rank not in told_ranks]
    outcomes = Outcomes(by_rank, alone, interrupted)
    cause = outcomes.cause
    if cause is not None and not cause.consequence:
        for outcome in by_rank.values():
            if outcome.status == "error" and outcome.consequence:
                outcome.status = "interrupted"
    return outcomes


async def _run(
    member: Member, act: Callable[[Member], Awaitable[Mapping[str, Any]]], script: bool
) -> Outcome:
    try:
        reply = dict(await act(member))
    except RankDiedError as error:
        return Outcome(member.rank, "died", how=error.how, tail=error.tail)
    if reply.get("status") == "ok" or (script and _ended_well(reply)):
        return Outcome(member.rank, "ok", reply)
    return Outcome(member.rank, "error", reply)


def _ended_well(reply: Mapping[str, Any]) -> bool:
    """A script's ``sys.exit()`` or ``sys.exit(0)``."""
    return reply.get("ename") == "SystemExit" and reply.get("evalue") in ("", "0", "None")


async def _each(
    pending: set[asyncio.Task[Outcome]],
    tasks: Mapping[asyncio.Task[Outcome], Member],
    act: Callable[[Member], Awaitable[Any]],
) -> None:
    await asyncio.gather(*(act(tasks[task]) for task in pending))


async def _free(member: Member, everybody: Sequence[Member]) -> None:
    pids = [other.process.pid for other in everybody if other is not member and other.alive]
    asking = member.ask("control", "free", {"pids": pids})
    try:
        await asyncio.wait_for(asking, 0.5)
    except (asyncio.TimeoutError, RankDiedError):
        pass  # its interpreter is held by C code: what is left is to end it
