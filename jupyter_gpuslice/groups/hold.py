"""A group whose slices are held only while a cell runs; its ranks stay warm in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ..broker.explain import Refused
from .group import Group
from .node import LocalNode
from .stream import Outbox
from .team import StepFailedError, Team

KEPT = (
    "{user} is in use in the worker, so its device memory cannot be given back yet: it keeps its "
    "slice until `%gpu stop --name {name}`."
)


PATIENCE_SECONDS = 10.0
"""How long a rank whose cell was interrupted may take to lay its slice down."""


def _patience(team: Team) -> asyncio.Event:
    """What ends a step after the cell: an interrupt, or time where there was one already."""
    if not team.stop.is_set():
        return team.stop
    limit = asyncio.Event()
    asyncio.get_running_loop().call_later(PATIENCE_SECONDS, limit.set)
    return limit


class Hold:
    """Takes the slices of a group on this server before a cell and gives them back after it."""

    def __init__(self, group: Group, node: LocalNode) -> None:
        self._group = group
        self._node = node
        self._lease = node.lease

    async def take(self, team: Team, outbox: Outbox, instead_of: str | None) -> None:
        """Get the slices back, waiting in the queue if need be, and put them in place.

        ``instead_of``: an ``auto`` lease that gives way. :class:`Refused` and
        :class:`StepFailedError` leave the group without them.
        """
        if not self._lease.parked:
            return
        self._lease.resume(instead_of)
        try:
            await self._lease.granted(
                lambda text: outbox.put({"type": "status", "text": text}), team.stop
            )
            if team.stop.is_set():
                self._lease.park()
                return
            self._node.take_up()
            await self._put_in_place(team, team.stop)
        except BaseException:
            # Held but not in place, the next cell would find its rank without a device.
            await self._lay_down(team)
            raise

    async def give_back(self, team: Team, outbox: Outbox) -> None:
        """Give the slices back unless something in a rank still uses its device."""
        if self._lease.parked or self._group.dead:
            return
        try:
            replies = await team.step(team.everybody(), "hold", {}, _patience(team))
        except StepFailedError:
            return
        users = [str(reply["cuda"]) for reply in replies.values() if reply.get("cuda")]
        if users:
            text = KEPT.format(user=users[0], name=self._group.name)
            outbox.put({"type": "notice", "text": text})
            return
        try:
            await self._lay_down(team)
        except Refused as error:
            text = f"The slice could not be given back: {error.message} {error.hint}".strip()
            outbox.put({"type": "notice", "text": text})

    async def _lay_down(self, team: Team) -> None:
        """Whatever runs between cells shall find no device."""
        self._node.lay_down()
        with suppress(StepFailedError):
            # A rank that died meanwhile is started anew without one.
            await self._put_in_place(team, _patience(team))
        self._lease.park()

    async def _put_in_place(self, team: Team, stop: asyncio.Event) -> None:
        self._group.granted(self._node.slices())
        for member in team.everybody():
            content = {"environment": self._node.slice_environment(member.rank)}
            await team.step([member], "hold", content, stop)
