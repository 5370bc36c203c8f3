"""Spawners on a node of ours: the queue, the grant, and giving it back."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from traitlets import Float, Unicode

from ..devices.process import Process
from ..server.grant import grant_environment, no_grant
from ..server.link import LinkError
from . import form
from .availability import Availability
from .choice import ChoiceError, Selection
from .link import HubLink, hub_secret, session_id
from .progress import Progress, amount_words, waiting_words
from .spawner import GpuSliceSpawner, GpuSpawnError

KEEP_SECONDS = 10.0
LEASE_VARIABLE = "JUPYTER_GPUSLICE_LEASE"
GRANT_VARIABLE = "JUPYTER_GPUSLICE_GRANT"


class LeasedSpawner(GpuSliceSpawner):
    """Leases a slice from the node's broker before a server starts, until it has ended."""

    service_url = Unicode(
        help="""
        The API of the GPU service, such as http://127.0.0.1:8079/services/gpuslice/api/v1/.

        `jupyter_gpuslice.hub.configure` sets it together with the service itself.
        """,
    ).tag(config=True)

    queue_timeout = Float(
        3600.0,
        min=0.0,
        help="""
        Seconds that a start may wait in the queue for its slice; 0 never waits.

        Time in the queue does not count towards `start_timeout`, which begins when the slice is
        there. A start that waited for too long ends with a message and leaves the queue.
        """,
    ).tag(config=True)

    service_timeout = Float(
        60.0,
        min=0.0,
        help="""
        Seconds to wait for a GPU service that does not answer.

        It may be starting: JupyterHub notices within 30 seconds that a service has died, and
        starts it again. Its leases are on disk, so nothing is lost meanwhile.
        """,
    ).tag(config=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lease_id = ""
        self._grant: dict[str, Any] = {}
        self._progress = Progress()

    async def availability(self, requests: Sequence[str]) -> Availability:
        return await self._link().availability(requests, self.user.name)

    # Before the start: outside of start_timeout, which JupyterHub counts from start() on

    async def run_pre_spawn_hook(self) -> None:
        hook = super().run_pre_spawn_hook()
        if isawaitable(hook):
            await hook
        try:
            await self.reserve()
        finally:
            self._progress.close()

    async def reserve(self) -> None:
        """Check the choice, ask for its slice and wait for it."""
        self._chosen = chosen = await self.select_for_start()
        if chosen.request.kind == "none":
            self._grant = no_grant(self.service_url)
            return
        self._progress.tell(f"Asking for {amount_words(str(chosen.request))}.", 5)
        asking = asyncio.ensure_future(self._ask(chosen))
        try:
            lease = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The question is out, and its answer is a lease that nobody wants any more.
            _in_background(self._unask(asking))
            raise
        except LinkError as error:
            raise await self._refusal(error, chosen) from error
        try:
            await self._wait_for(lease, chosen)
        except LinkError as error:
            await _finish(self._release(lease["id"]))
            raise self._words(error) from error
        except BaseException:
            # Also when the start was cancelled: the place in the queue is somebody else's.
            await _finish(self._release(lease["id"]))
            raise
        self._lease_id = lease["id"]

    async def _ask(self, chosen: Selection) -> dict[str, Any]:
        return await self._link().ask(
            session_id(self.user.name, self.name),
            str(chosen.request),
            chosen.ttl,
            self.queue_timeout > 0,
            self.service_timeout,
            chosen.terms.priority,
            chosen.terms.limits.to_dict(),
        )

    async def _unask(self, asking: asyncio.Future[dict[str, Any]]) -> None:
        try:
            lease = await asking
        except LinkError:
            return
        await self._release(lease["id"])

    async def _wait_for(self, lease: dict[str, Any], chosen: Selection) -> None:
        link, patience = self._link(), self.service_timeout
        if lease["state"] == "queued":
            try:
                lease = await asyncio.wait_for(
                    link.wait(lease, self._waiting, patience), self.queue_timeout
                )
            except asyncio.TimeoutError:
                raise GpuSpawnError(
                    503,
                    "queue_timeout",
                    f"{amount_words(str(chosen.request))} was not free within "
                    f"{form.duration(self.queue_timeout)}.",
                    "Try again later, or choose less.",
                ) from None
        if lease["state"] not in ("granted", "active"):
            why = lease.get("detail") or f"The lease is {lease['state']}."
            raise GpuSpawnError(409, str(lease["state"]), f"The start left the queue: {why}")
        self._grant = await link.grant(lease["id"], patience)
        self._progress.tell(f"You have {amount_words(str(chosen.request))}: the server starts.", 40)

    def _waiting(self, lease: Mapping[str, Any]) -> None:
        self._progress.tell(waiting_words(lease), 10)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        async for event in self._progress.follow():
            yield event
        async for event in super().progress():
            yield event

    # The start and the end

    def get_env(self) -> dict[str, str]:
        env: dict[str, str] = super().get_env()
        if not self._grant:
            return env
        if self._chosen is not None:
            env |= self._chosen.profile.environment
            if self._chosen.profile.default_url:
                url = self.format_string(self._chosen.profile.default_url)
                env["JUPYTERHUB_DEFAULT_URL"] = url
        env[GRANT_VARIABLE] = json.dumps(self._grant, separators=(",", ":"))
        if self._grant["lease"]:
            env[LEASE_VARIABLE] = self._grant["lease"]
        for name, value in grant_environment(self._grant, env).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    async def start(self) -> Any:
        keeping = _in_background(self._keep())
        try:
            address = await super().start()
            await self._take_up()
        except LinkError as error:
            await self._abandon()
            raise self._words(error) from error
        except BaseException:
            await self._abandon()
            raise
        finally:
            keeping.cancel()
        return address

    async def _keep(self) -> None:
        """Ask for the lease while the server starts: what nobody asks for is given to others."""
        while self._lease_id:
            await asyncio.sleep(KEEP_SECONDS)
            try:
                await self._link().call("GET", f"leases/{self._lease_id}")
            except LinkError as error:
                self.log.info("Lease %s cannot be asked for: %s", self._lease_id, error)

    async def _take_up(self) -> None:
        """Tell the service which process holds the slice: it is free when that one ends."""
        process = await self.server_process()
        if self._lease_id and process is not None:
            await self._link().take_up(self._lease_id, process, self.service_timeout)

    async def server_process(self) -> Process | None:
        """The process of the server that was started, where it is one of this machine."""
        pid = getattr(self, "pid", 0)
        try:
            return Process.of(pid) if pid else None
        except ProcessLookupError as error:
            raise GpuSpawnError(500, "exited", "The server ended at once; see its log.") from error

    async def stop(self, now: bool = False) -> None:
        # Looking at a server that has ended clears its state: what it held is noted before.
        lease_id = self._lease_id
        await super().stop(now)
        await self._give_back(lease_id)

    async def _abandon(self) -> None:
        """A start that failed or was cancelled leaves neither a server nor a lease behind."""
        lease_id = self._lease_id

        async def end() -> None:
            if await self.poll() is None:
                await super(LeasedSpawner, self).stop(now=True)
            await self._give_back(lease_id)

        await _finish(end())

    async def _give_back(self, lease_id: str) -> None:
        self._lease_id = ""
        if lease_id:
            await _finish(self._release(lease_id))

    async def _release(self, lease_id: str) -> None:
        try:
            await self._link().release(lease_id)
        except LinkError as error:
            # The service finds out by itself: it watches the server's process, and forgets who
            # no longer asks.
            self.log.info("Lease %s was not given back by hand: %s", lease_id, error)

    # What the hub keeps of a server

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._lease_id:
            state["gpuslice_lease"] = self._lease_id
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._lease_id = str(state.get("gpuslice_lease", ""))

    def clear_state(self) -> None:
        super().clear_state()
        self._lease_id, self._grant, self._chosen = "", {}, None
        # JupyterHub does this before each start, and nobody follows the old start any more.
        self._progress = Progress()

    def _link(self) -> HubLink:
        return HubLink(self.service_url, hub_secret())

    async def _refusal(self, error: LinkError, chosen: Selection) -> GpuSpawnError:
        """A refusal of the service, whose hint knows the pool but not the profile."""
        told = ChoiceError(error.reason, error.message, error.hint, error.status)
        here = told.of(chosen.profile)
        if error.reason == "unreachable" or here is told:
            return self._words(error)
        return GpuSpawnError.of(await self._with_what_is_here(here))

    def _words(self, error: LinkError) -> GpuSpawnError:
        if error.reason == "unreachable":
            return GpuSpawnError(
                503,
                "gpu_service",
                "The hub's GPU service does not answer, so no GPU can be given.",
                "Try again in a minute; an administrator finds the reason in the hub's log.",
            )
        return GpuSpawnError.of(error)


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Do all of it, also when whoever waits for it is cancelled meanwhile."""
    await asyncio.shield(_in_background(work))


def _in_background(work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    task = asyncio.ensure_future(work)
    # The loop itself keeps only a weak reference.
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    return task


_unfinished: set[asyncio.Future[None]] = set()


def with_commands(
    env: Mapping[str, str], cmd: Sequence[str] | None, python: str = sys.executable
) -> dict[str, str]:
    """The environment with a server's own commands on its path: `jupyter` and `python` work in it.

    A hub that runs as a system service often has system folders only on its own path, and a server
    gets the hub's. They are beside the server's command, or else beside the hub's ``python``.
    """
    first = cmd[0] if cmd else ""
    folder = os.path.dirname(first if os.path.isabs(first) else python)
    path = env.get("PATH") or os.defpath
    if folder in path.split(os.pathsep):
        return {**env, "PATH": path}
    return {**env, "PATH": f"{folder}{os.pathsep}{path}"}


class GpuSliceLocalSpawner(LeasedSpawner, LocalProcessSpawner):
    """Servers are processes of the users' own accounts on the hub's machine."""

    def get_env(self) -> dict[str, str]:
        return with_commands(super().get_env(), self.cmd)


class GpuSliceDemoSpawner(LeasedSpawner, SimpleLocalProcessSpawner):
    """Servers are processes of the hub's own account: for trying out, never for real users."""

    def get_env(self) -> dict[str, str]:
        return with_commands(super().get_env(), self.cmd)
