"""All peer groups of a server: made, found, used and ended."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..broker.explain import Refused
from ..broker.lease import Holder, Lease
from ..devices.process import Process
from .cell import Cell, run
from .group import Group
from .hold import Hold
from .lease import GroupLease
from .members import Launcher, RankDiedError, StartFailedError
from .node import LocalNode, Share
from .plan import Plan
from .stream import Outbox
from .team import StepFailedError, Team
from .watch import watch

Listener = Callable[[str, dict[str, Any]], None]

WITH_NOTEBOOK = "Its notebook's kernel has ended."
"""Why a group ended that was not stopped by anybody."""


class _Entry:
    """A group with everything that belongs to it."""

    def __init__(self, group: Group, lease: GroupLease) -> None:
        self.group = group
        self.lease = lease
        self.team: Team | None = None
        self.hold: Hold | None = None
        self.starting: asyncio.Task[None] | None = None
        self.cells: dict[asyncio.Task[None], asyncio.Event] = {}
        """What runs or waits to run, and how to stop it."""
        self.ending: asyncio.Task[None] | None = None
        self.unwatch: Callable[[], None] = lambda: None


class GroupManager:
    """Peer groups for the server's user.

    ``serverapp`` gives the kernelspecs and the notebooks' kernels, ``runtime`` the broker (``None``
    where there is no pool). Errors are :class:`Refused`, with the fields of the REST interface.
    """

    def __init__(self, serverapp: Any, runtime: Any, settings: Any = None) -> None:
        self._serverapp = serverapp
        self._runtime = runtime
        self._log: Any = getattr(serverapp, "log", None) or logging.getLogger(__name__)
        self._entries: dict[str, _Entry] = {}
        self._listeners: list[Listener] = []
        self._launcher: Launcher | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unsubscribe = runtime.broker.subscribe(self._lease_changed) if runtime else None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(action, group)`` for every change; actions: created, changed, ended."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Questions

    def list(self, caller: Any) -> list[dict[str, Any]]:
        """The groups that the caller may see."""
        found = [entry.group for entry in self._entries.values() if entry.ending is None]
        return [group.to_dict() for group in found if _owns(caller, group)]

    def get(self, group_id: str) -> dict[str, Any]:
        """One group; :class:`Refused` (``not_found``) if there is none."""
        return self._entry(group_id).group.to_dict()

    def authorise(self, caller: Any, group_id: str) -> None:
        """:class:`Refused` unless the group is there and the caller's."""
        if not _owns(caller, self._entry(group_id).group):
            raise Refused("not_owner", "This group is not yours.")

    # Making

    async def create(self, caller: Any, body: Any) -> dict[str, Any]:
        """Make a group. It is ``ready`` on return, or ``starting`` while its lease is queued.

        Then it starts by itself, and a cell sent to it waits, telling the place in the queue.
        Either all ranks start or nothing stays behind.
        """
        plan = Plan.parse(body, caller)
        await self._ended(plan.kernel)
        for entry in self._entries.values():
            same = (entry.group.name, entry.group.kernel) == (plan.name, plan.kernel)
            if same and entry.ending is None:
                raise Refused(
                    "group_exists",
                    f"There is a group {plan.name!r} already.",
                    "Run the cell on it, stop it first, or choose another name.",
                    {"group": entry.group.to_dict()},
                )
        group = Group(
            f"g{secrets.token_hex(4)}",
            plan.name,
            plan.workers,
            str(plan.request),
            user=caller.user,
            kernel=plan.kernel,
            backend=plan.backend,
            on_change=lambda group: self._tell("changed", group),
        )
        holder = Holder("group", group.id, caller.user, plan.name)
        entry = _Entry(group, GroupLease(self._runtime, plan.request, plan.workers, holder))
        kernel_name = plan.kernel_name or self._kernel_name(plan.kernel)
        self._entries[group.id] = entry
        try:
            at_once = entry.lease.ask(
                wait=plan.wait, instead_of=self._auto_lease(plan.kernel) if plan.lend else None
            )
            group.lease = entry.lease.id
            entry.unwatch = self._watch_notebook(plan.kernel)
        except BaseException:
            del self._entries[group.id]
            raise
        self._tell("created", group)
        entry.starting = self._spawn(self._start(entry, kernel_name, plan))
        if at_once:
            try:
                await asyncio.shield(entry.starting)
            except asyncio.CancelledError:
                # Whoever asked is gone: nobody would ever use it.
                self._begin_end(entry, "It was no longer wanted.")
                raise
        return group.to_dict()

    async def _ended(self, kernel: str | None) -> None:
        """Wait for groups of this notebook that are being ended: what they hold comes back."""
        ending = [e.ending for e in self._entries.values() if e.group.kernel == kernel and e.ending]
        if ending:
            await asyncio.wait(ending)

    async def _start(self, entry: _Entry, kernel_name: str, plan: Plan) -> None:
        group = entry.group

        def say(text: str) -> None:
            group.detail = text
            self._tell("changed", group)

        try:
            await entry.lease.granted(say)
            group.detail = ""
            if self._launcher is None:
                self._launcher = Launcher(self._serverapp)
            node = LocalNode(
                self._serverapp,
                self._runtime,
                self._launcher,
                entry.lease,
                Share(group.id, group.workers, 0, group.workers),
                kernel_name,
                plan.cwd,
            )
            entry.team = Team(group, [node], plan.backend)
            if plan.hold == "cell":
                entry.hold = Hold(group, node)
            await entry.team.start()
        except (StartFailedError, RankDiedError) as error:
            refused = Refused("start_failed", f"The group did not start: {error}")
            await self._give_up(entry, refused.message)
            raise refused from error
        except Refused as refused:
            await self._give_up(entry, refused.message)
            raise
        except BaseException:
            await self._give_up(entry, "It was no longer wanted.")
            raise

    async def _give_up(self, entry: _Entry, why: str) -> None:
        """The group could not be started: nothing of it stays (its ranks have ended already)."""
        if entry.ending is None:
            entry.starting = None
            await self._end(entry, why)

    # Using

    def execute(self, group_id: str, body: Any) -> AsyncIterator[dict[str, Any]]:
        """Run a cell; yields its messages, ``done`` last.

        What is wrong with the call is raised at once. Closing the iterator early interrupts the
        cell. Cells of one group run one after another.
        """
        entry = self._entry(group_id)
        if entry.ending is not None:
            raise Refused("not_found", f"The group has ended. {entry.group.detail}".strip())
        return self._messages(entry, Cell.parse(body, entry.group.workers))

    async def _messages(self, entry: _Entry, cell: Cell) -> AsyncIterator[dict[str, Any]]:
        outbox = Outbox()
        stop = asyncio.Event()
        task = self._spawn(self._run(entry, cell, outbox, stop))
        entry.cells[task] = stop
        task.add_done_callback(lambda task: entry.cells.pop(task, None))
        try:
            while batch := await outbox.batch():
                for message in batch:
                    yield message
        finally:
            stop.set()

    async def _run(self, entry: _Entry, cell: Cell, outbox: Outbox, stop: asyncio.Event) -> None:
        try:
            team = await self._started(entry, outbox, stop)
            if team.lock.locked():
                outbox.put({"type": "status", "text": "Waiting for the cell before this one."})
            async with team.lock:
                if not team.closing:
                    team.stop = stop
                    await run(
                        team, cell, outbox, entry.hold, lambda: self._auto_lease(entry.group.kernel)
                    )
                    return
            raise Refused("group_stopped", "The group was stopped.", entry.group.detail)
        except Refused as error:
            _fail(outbox, cell, error.reason, error.message)
        except Exception as error:
            self._log.exception("A cell of group %s failed", entry.group.id)
            # Whatever state it was left in, the next cell looks after its ranks first.
            entry.group.broke(f"Something unexpected went wrong: {error}")
            _fail(outbox, cell, type(error).__name__, f"Something unexpected went wrong: {error}")
        finally:
            outbox.close()

    async def _started(self, entry: _Entry, outbox: Outbox, stop: asyncio.Event) -> Team:
        """Wait for a group that starts, telling what it waits for."""
        starting = entry.starting
        said = ""
        while starting is not None and not starting.done():
            if stop.is_set():
                raise Refused("KeyboardInterrupt", "The group is still starting.")
            text = entry.group.detail or "The group is starting."
            if text != said:
                outbox.put({"type": "status", "text": text})
                said = text
            await asyncio.wait({starting}, timeout=0.2)
        if starting is None or entry.team is None:
            raise Refused("group_stopped", "The group was stopped.", entry.group.detail)
        starting.result()
        return entry.team

    async def interrupt(self, group_id: str) -> dict[str, Any]:
        """Stop what runs and what waits to run; returns when it has ended."""
        entry = self._entry(group_id)
        await self._stop_cells(entry)
        return entry.group.to_dict()

    async def reset(self, group_id: str) -> dict[str, Any]:
        """Make the process group anew and dead ranks alive; living ranks keep their variables."""
        entry = self._entry(group_id)
        await self._stop_cells(entry)
        team = entry.team
        if team is None:
            raise Refused("wrong_state", f"The group is {entry.group.state}.")
        stop = asyncio.Event()
        work = self._spawn(self._reset(entry, team, stop))
        entry.cells[work] = stop
        work.add_done_callback(lambda task: entry.cells.pop(task, None))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()  # whoever asked has left
            raise
        return entry.group.to_dict()

    async def _reset(self, entry: _Entry, team: Team, stop: asyncio.Event) -> None:
        async with team.lock:
            if team.closing:
                raise Refused("group_stopped", "The group was stopped.")
            team.stop = stop
            try:
                await team.respawn()
                if team.has_torch:
                    await team.rendezvous(lambda text: None, anew=True)
            except (StartFailedError, RankDiedError) as error:
                entry.group.broke(str(error))
                raise Refused("reset_failed", str(error)) from error
            except StepFailedError as error:
                cause = error.outcomes.cause
                why = cause.reply.get("evalue") or cause.how if cause else "It was interrupted."
                raise Refused("reset_failed", f"No process group could be made: {why}") from error

    async def _stop_cells(self, entry: _Entry) -> None:
        cells = dict(entry.cells)
        for stop in cells.values():
            stop.set()
        if cells:
            await asyncio.wait(cells)

    # Ending

    async def stop(self, group_id: str) -> dict[str, Any]:
        """End the group; its processes are gone and its lease is free when this returns."""
        entry = self._entry(group_id)
        await self._end(entry, "It was stopped.")
        return entry.group.to_dict()

    async def kernel_gone(self, kernel_id: str) -> None:
        """A notebook's kernel has ended, and its groups with it."""
        entries = [e for e in self._entries.values() if e.group.kernel == kernel_id]
        await asyncio.gather(*(self._end(e, WITH_NOTEBOOK) for e in entries))

    async def shutdown(self) -> None:
        """End everything: the server stops."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        entries = list(self._entries.values())
        await asyncio.gather(*(self._end(e, "The server stops.") for e in entries))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            await launcher.close()

    async def _end(self, entry: _Entry, why: str) -> None:
        await asyncio.shield(self._begin_end(entry, why))

    def _begin_end(self, entry: _Entry, why: str) -> asyncio.Task[None]:
        if entry.ending is None:
            entry.ending = self._spawn(self._end_now(entry, why))
        return entry.ending

    async def _end_now(self, entry: _Entry, why: str) -> None:
        entry.unwatch()
        entry.group.stopping(why)
        if entry.team is not None:
            await entry.team.end()
        starting = entry.starting
        if starting is not None and not starting.done():
            if entry.team is None:
                starting.cancel()  # it waits in the queue
            await asyncio.wait({starting})
        if entry.cells:
            await asyncio.wait(dict(entry.cells))
        try:
            await entry.lease.release(why)
        finally:
            self._entries.pop(entry.group.id, None)
            entry.group.on_change = lambda group: None
            entry.group.stopped(why)
            self._tell("ended", entry.group)

    def _lease_changed(self, lease: Lease) -> None:
        if lease.holder.kind != "group" or lease.live:
            return
        entry = self._entries.get(lease.holder.id)
        if entry is None or entry.ending is not None or entry.team is None:
            return
        why = entry.lease.ended_by_others(lease)
        if why:
            self._spawn(self._end(entry, why))

    # Around it

    def _entry(self, group_id: str) -> _Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            raise Refused("not_found", "There is no such group.", "It may have ended.")
        return entry

    def _kernel_name(self, kernel: str | None) -> str:
        kernels = getattr(self._serverapp, "kernel_manager", None)
        if kernels is not None and kernel is not None and kernel in kernels:
            return str(kernels.get_kernel(kernel).kernel_name)
        return "python3"

    def _auto_lease(self, kernel: str | None) -> str | None:
        """What the notebook's kernel holds without having asked for it."""
        leases = self._runtime.broker.leases() if self._runtime else []
        for lease in leases:
            own = lease.holder.kind == "kernel" and lease.holder.id == kernel
            if own and lease.holds and lease.request.kind == "auto":
                return str(lease.id)
        return None

    def _watch_notebook(self, kernel: str | None) -> Callable[[], None]:
        """End the group with the process of its notebook's kernel, whoever else tells of it."""
        process = self._process_of(kernel)
        if process is None or kernel is None:
            return lambda: None

        def ended() -> None:
            self._spawn(self.kernel_gone(kernel))

        return watch(process, ended)

    def _process_of(self, kernel: str | None) -> Process | None:
        kernels = getattr(self._serverapp, "kernel_manager", None)
        if kernels is not None and kernel is not None and kernel in kernels:
            provisioner = kernels.get_kernel(kernel).provisioner
            pid = getattr(provisioner, "pid", None)
            if pid:
                try:
                    return Process.of(pid)
                except ProcessLookupError:
                    raise Refused("not_found", "The notebook's kernel has ended.") from None
        for lease in self._runtime.broker.leases() if self._runtime else ():
            if lease.holder.kind == "kernel" and lease.holder.id == kernel and lease.processes:
                return lease.processes[0]  # type: ignore[no-any-return]
        return None

    def _tell(self, action: str, group: Group) -> None:
        for listener in list(self._listeners):
            try:
                listener(action, group.to_dict())
            except Exception:
                self._log.exception("A listener failed on news of group %s", group.id)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Refused):
            self._log.error("A task of a peer group failed", exc_info=error)


def _owns(caller: Any, group: Group) -> bool:
    if caller.admin:
        return True
    if caller.user != group.user:
        return False
    return caller.kernel is None or (group.kernel is not None and caller.stands_for(group.kernel))


def _fail(outbox: Outbox, cell: Cell, ename: str, text: str) -> None:
    outbox.put(
        {
            "type": "error",
            "rank": cell.ranks[0],
            "ename": ename,
            "evalue": text,
            "traceback": [text],
        }
    )
    ranks = {str(rank): "aborted" for rank in cell.ranks}
    outbox.put({"type": "done", "ok": False, "ranks": ranks, "seconds": 0.0})
