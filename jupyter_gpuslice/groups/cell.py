"""One cell on the ranks of a group, from its request to its last message."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..broker.explain import Refused
from .body import fields
from .hold import Hold
from .members import Member, RankDiedError, StartFailedError, execution
from .stream import Outbox, translate
from .team import StepFailedError, Team, describe
from .together import Outcomes

_FIELDS = ("code", "ranks", "train", "silent", "push", "pull", "lend")


@dataclass(frozen=True)
class Cell:
    """What is asked for. ``push`` is a base64 pickle of a dict, ``pull`` names of variables.

    ``lend``: the notebook's own ``auto`` lease may give way for the cell's time.
    """

    code: str
    ranks: tuple[int, ...]
    train: bool = False
    silent: bool = False
    push: str | None = None
    pull: tuple[str, ...] = ()
    lend: bool = False

    @classmethod
    def parse(cls, body: Any, workers: int) -> Cell:
        """The cell that a call's JSON body describes; :class:`Refused` says what is wrong."""
        body = fields(body, _FIELDS)
        code, push, pull = body.get("code") or "", body.get("push"), body.get("pull") or []
        if not isinstance(code, str) or not isinstance(push, (str, type(None))):
            raise Refused("bad_request", "'code' and 'push' are texts.")
        if not isinstance(pull, list) or not all(isinstance(name, str) for name in pull):
            raise Refused("bad_request", "'pull' is a list of names.")
        if not _encodable(code):
            raise Refused("bad_request", "The code is no text that can be sent: a lone surrogate.")
        if not code and push is None and not pull:
            raise Refused("bad_request", "There is nothing to do: give code, push or pull.")
        train, silent, lend = (body.get(name, False) for name in ("train", "silent", "lend"))
        if not all(isinstance(flag, bool) for flag in (train, silent, lend)):
            raise Refused("bad_request", "'train', 'silent' and 'lend' are true or false.")
        ranks = _ranks(body.get("ranks"), workers)
        if train and len(ranks) < workers:
            raise Refused(
                "bad_request",
                "A cell that trains runs on every rank: a collective waits for all of them.",
                "Use %%gpu run for some of the ranks.",
            )
        return cls(code, ranks, train, silent, push, tuple(pull), lend)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ranks(value: Any, workers: int) -> tuple[int, ...]:
    if value is None:
        return tuple(range(workers))
    valid = isinstance(value, list) and all(type(rank) is int for rank in value)
    if not valid or not value:
        raise Refused("bad_request", "'ranks' is a list of numbers.")
    for rank in value:
        if not 0 <= rank < workers:
            raise Refused("bad_request", f"There is no rank {rank}: they are 0 to {workers - 1}.")
    return tuple(sorted(set(value)))


async def run(
    team: Team,
    cell: Cell,
    outbox: Outbox,
    hold: Hold | None = None,
    lent: Callable[[], str | None] = lambda: None,
) -> None:
    """Run the cell; everything that is to be said of it goes to ``outbox``, ``done`` last.

    The caller holds the team's lock. ``hold``: the group has its slices only while code runs;
    ``lent`` then names the lease that gives way for it.
    """
    began = time.monotonic()
    statuses: dict[int, str] = {}
    ok = False
    if team.stop.is_set():
        _interrupted(cell, outbox)
        _done(cell, outbox, began, statuses)
        return
    hold = hold if cell.code else None
    try:
        if hold is not None:
            await hold.take(team, outbox, lent() if cell.lend else None)
        _late(team, outbox)
        await _revive(team, outbox, lent() if cell.lend else None)
    except (StartFailedError, RankDiedError, StepFailedError, Refused) as error:
        text = f"{error.message} {error.hint}".strip() if isinstance(error, Refused) else str(error)
        team.group.broke(text)
        _fail(outbox, "StartFailed", text)
        _done(cell, outbox, began, statuses)
        return
    try:
        if team.stop.is_set():
            _interrupted(cell, outbox)
        else:
            ok = await _run(team, cell, outbox, statuses)
    except StepFailedError as error:
        _tell(error.outcomes, outbox)
        statuses.update({r: o.status for r, o in error.outcomes.by_rank.items()})
    except StartFailedError as error:
        _fail(outbox, "StartFailed", str(error))
    except RankDiedError as error:
        _fail(outbox, "RankDied", str(error), error.rank)
    except Refused as error:
        _fail(outbox, error.reason, f"{error.message} {error.hint}".strip())
    if team.closing:
        _notice(outbox, f"The group was stopped. {team.group.detail}".strip())
    else:
        await _mend(team, outbox, lent() if cell.lend else None)
        if hold is not None:
            await hold.give_back(team, outbox)
    _done(cell, outbox, began, statuses, ok)


def _done(
    cell: Cell, outbox: Outbox, began: float, statuses: Mapping[int, str], ok: bool = False
) -> None:
    outbox.put(
        {
            "type": "done",
            "ok": ok,
            "ranks": {str(rank): statuses.get(rank, "aborted") for rank in cell.ranks},
            "seconds": round(time.monotonic() - began, 3),
        }
    )


async def _run(team: Team, cell: Cell, outbox: Outbox, statuses: dict[int, str]) -> bool:
    group = team.group
    group.begin(cell.ranks)
    if cell.train:
        await team.rendezvous(lambda text: outbox.put({"type": "status", "text": text}))
    members = [team.members[rank] for rank in cell.ranks]
    if cell.push is not None:
        await team.step(members, "push", {"pickle": cell.push}, team.stop)
    outbox.put({"type": "started", "ranks": list(cell.ranks)})
    if cell.code:
        outcomes = await team.run(cell.ranks, lambda member: _execute(member, cell, outbox))
        statuses.update({rank: o.status for rank, o in outcomes.by_rank.items()})
        if not outcomes.ok:
            _tell(outcomes, outbox)
            return False
    if cell.pull:
        replies = await team.step(members, "pull", {"names": list(cell.pull)}, team.stop)
        for rank, reply in sorted(replies.items()):
            for name, value in reply["values"].items():
                outbox.put({"type": "value", "rank": rank, "name": name, "pickle": value})
    statuses.update(dict.fromkeys(cell.ranks, "ok"))
    return True


async def _execute(member: Member, cell: Cell, outbox: Outbox) -> dict[str, Any]:
    def output(kind: str, content: dict[str, Any]) -> None:
        message = translate(member.rank, kind, content)
        if message is not None:
            outbox.put(message)

    content = execution(cell.code, silent=cell.silent)
    return await member.request("shell", "execute_request", content, output)


def _late(team: Team, outbox: Outbox) -> None:
    """What threads of the ranks have printed since the cell before."""
    for member in team.everybody():
        for name, text in member.late_output():
            outbox.put({"type": "stream", "rank": member.rank, "name": name, "text": text})


async def _revive(team: Team, outbox: Outbox, instead_of: str | None) -> None:
    """Ranks that died while nothing ran."""
    for rank in await team.respawn(instead_of):
        _notice(outbox, f"Rank {rank} had died and was started anew: its variables are gone.")


async def _mend(team: Team, outbox: Outbox, instead_of: str | None) -> None:
    """After the cell: start dead ranks anew, and say so."""
    group = team.group
    dead = group.dead
    try:
        if dead:
            dead = await team.respawn(instead_of)
            numbers = ", ".join(map(str, dead))
            many, rest = len(dead) > 1, len(dead) < group.workers
            _notice(
                outbox,
                f"Rank{'s' if many else ''} {numbers} {'were' if many else 'was'} started anew: "
                f"{'their' if many else 'its'} variables are gone"
                + (", those of the others are kept." if rest else "."),
            )
        if group.state == "busy":
            group.ready()
        team.trim_logs()
    except (StartFailedError, RankDiedError, Refused) as error:
        text = error.message if isinstance(error, Refused) else str(error)
        group.broke(text)
        _notice(outbox, f"{text} The next cell tries again.")


def _tell(outcomes: Outcomes, outbox: Outbox) -> None:
    """The one failure that matters, with that rank's own traceback."""
    cause = outcomes.cause
    if cause is not None and cause.status == "died":
        text = f"{describe(cause)}."
        outbox.put(
            {
                "type": "error",
                "rank": cause.rank,
                "ename": "RankDied",
                "evalue": text,
                "traceback": [f"{text}{cause.tail}"],
            }
        )
    elif cause is not None:
        outbox.put(_error(cause.rank, cause.reply))
    elif outcomes.interrupted:
        stopped = [o for o in outcomes.by_rank.values() if o.reply.get("traceback")]
        first = min(stopped, key=lambda outcome: outcome.rank, default=None)
        if first is not None and first.reply.get("ename") == "KeyboardInterrupt":
            outbox.put(_error(first.rank, first.reply))
        else:
            rank = min(outcomes.by_rank)
            outbox.put(_error(rank, {"ename": "KeyboardInterrupt", "evalue": ""}))
    for outcome in outcomes.by_rank.values():
        if outcome.status == "restarted":
            _notice(outbox, f"{describe(outcome)}.")


def _interrupted(cell: Cell, outbox: Outbox) -> None:
    outbox.put(_error(cell.ranks[0], {"ename": "KeyboardInterrupt", "evalue": ""}))


def _error(rank: int, reply: Mapping[str, Any]) -> dict[str, Any]:
    ename, evalue = str(reply.get("ename", "Error")), str(reply.get("evalue", ""))
    traceback = reply.get("traceback") or [f"{ename}: {evalue}".rstrip(": ")]
    return {
        "type": "error",
        "rank": rank,
        "ename": ename,
        "evalue": evalue,
        "traceback": list(traceback),
    }


def _fail(outbox: Outbox, ename: str, text: str, rank: int = 0) -> None:
    outbox.put(_error(rank, {"ename": ename, "evalue": text, "traceback": [text]}))


def _notice(outbox: Outbox, text: str) -> None:
    outbox.put({"type": "notice", "text": text})
