"""Spawners whose servers get a slice: the choice, the queue, the grant, and giving it back."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from contextvars import ContextVar
from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from jupyterhub.spawner import (
    LocalProcessSpawner,
    SimpleLocalProcessSpawner,
    Spawner,
    SpawnException,
)
from traitlets import Dict, Float, Unicode, Union, default
from traitlets.config import LoggingConfigurable

from ..devices.process import Process
from . import form
from .choice import ChoiceError, Profiles, Selection
from .grant import grant_environment, no_grant
from .link import Link, LinkError, hub_secret, session_id
from .profiles import ProfileError, load_profiles, parse_profiles
from .progress import Progress, waiting_words

LEASE_VARIABLE = "JUPYTER_GPUSLICE_LEASE"
GRANT_VARIABLE = "JUPYTER_GPUSLICE_GRANT"

_submitted: ContextVar[form.Submitted | None] = ContextVar("submitted", default=None)
"""The form that the hub's request at hand came with: when it is refused, the hub asks for the form
once more, and of another spawner than that of a named server."""

# A mixin has no start, stop and poll of its own, and JupyterHub insists on them in a spawner.
_Base: Any = Spawner if TYPE_CHECKING else LoggingConfigurable


class GpuSpawnError(SpawnException):
    """A start that was refused, in words: JupyterHub shows them and does not count a failure."""

    def __init__(self, status: int, reason: str, message: str, hint: str = "") -> None:
        text = f"{message} {hint}".strip()
        super().__init__(text, reason=reason, status_code=status)
        # What the spawn and progress pages show: without it, they print the exception's name too.
        self.jupyterhub_message = text

    @classmethod
    def of(cls, error: ChoiceError | LinkError) -> GpuSpawnError:
        return cls(error.status, error.reason, error.message, error.hint)


class GpuSliceSpawner(_Base):  # type: ignore[misc]
    """Gives a server a slice before it starts, and takes it back when it has ended.

    To be mixed in before a spawner class. Everything is computed from the configuration at every
    start: nothing of one start is left for the next.
    """

    profiles = Union(
        [Unicode(), Dict()],
        help="""
        What users may choose from: the path of a profiles.yaml, or the same declaration as a
        dictionary.

        `jupyter_gpuslice.hub.configure` sets it. Check a file with
        `jupyter gpuslice profiles check FILE`; a change is read at the next start of a server.
        """,
    ).tag(config=True)

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
        self._chosen: Selection | None = None
        self._progress = Progress()

    # What the user chose

    @default("options_form")
    def _default_options_form(self) -> Any:
        # The form asks the service, so it is made for each view.
        return lambda spawner: spawner.gpu_form()

    @default("options_from_form")
    def _default_options_from_form(self) -> Any:
        return self.gpu_options

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        # JupyterHub would warn that nobody looks at the options; `reserve` does.
        return lambda spawner, user_options: None

    def declared(self) -> Profiles:
        """The hub's profiles, as they are declared now."""
        try:
            if isinstance(self.profiles, str):
                return _read(self.profiles, os.stat(self.profiles).st_mtime_ns)
            return parse_profiles(self.profiles)
        except (ProfileError, OSError) as error:
            self.log.error("The profiles cannot be used: %s", error)
            raise GpuSpawnError(
                503,
                "profiles",
                "The hub's profiles cannot be read.",
                "An administrator finds the reason in the hub's log.",
            ) from error

    def groups(self) -> list[str]:
        return [group.name for group in self.user.groups]

    async def select(self, options: Mapping[str, Any] | None) -> Selection:
        """The choice that options mean. :class:`GpuSpawnError` for one that is not to be had."""
        try:
            return self.declared().select(options, self.user.name, self.groups())
        except ChoiceError as error:
            raise GpuSpawnError.of(await self._with_what_is_here(error)) from error

    async def _with_what_is_here(self, error: ChoiceError) -> ChoiceError:
        """A refusal whose hint offers only what this machine could grant."""
        named = sorted({str(request) for request in error.named})
        if not named:
            return error
        available = await self._link().availability(named)
        return error.among(lambda request: not available.offer(request).never)

    async def gpu_form(self) -> str:
        """The spawn page's form: profiles, what is free now, and the user's last choice."""
        profiles = self.declared()
        offered = profiles.visible(self.user.name, self.groups())
        available = await self._link().availability(form.asked_about(offered))
        # The hub gives the last options of this server, or none.
        last = self.orm_spawner.user_options if self.orm_spawner else None
        return form.spawn_form(
            profiles, available, last, self.user.name, self.groups(), _submitted.get()
        )

    def gpu_options(self, form_data: Mapping[str, Any]) -> Awaitable[dict[str, str]]:
        """The user's options from a submitted form or a link, checked."""
        submitted = form.Submitted(form_data)
        # Here, not in the coroutine: the hub runs that in a task, with a context of its own.
        _submitted.set(submitted)
        return self._options(submitted)

    async def _options(self, submitted: form.Submitted) -> dict[str, str]:
        try:
            try:
                options = form.options_from_form(submitted.fields)
            except ChoiceError as error:
                raise GpuSpawnError.of(error) from error
            return (await self.select(options)).to_options()
        except GpuSpawnError:
            submitted.refused = True
            raise

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
        self._chosen = chosen = await self.select(self.user_options)
        if chosen.request.kind == "none":
            self._grant = no_grant(self.service_url)
            return
        self._progress.tell(f"Asking for {chosen.request}", 5)
        asking = asyncio.ensure_future(self._ask(chosen))
        try:
            lease = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The question is out, and its answer is a lease that nobody wants any more.
            _in_background(self._unask(asking))
            raise
        except LinkError as error:
            raise self._words(error) from error
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
            chosen.profile.ttl,
            self.queue_timeout > 0,
            self.service_timeout,
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
                    f"{chosen.request} was not free within {form.duration(self.queue_timeout)}.",
                    "Try again later, or choose less.",
                ) from None
        if lease["state"] not in ("granted", "active"):
            why = lease.get("detail") or f"The lease is {lease['state']}."
            raise GpuSpawnError(409, str(lease["state"]), f"The start left the queue: {why}")
        self._grant = await link.grant(lease["id"], patience)
        self._progress.tell(f"{chosen.request} is there: starting the server", 40)

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
        try:
            address = await super().start()
            await self._take_up()
        except LinkError as error:
            await self._abandon()
            raise self._words(error) from error
        except BaseException:
            await self._abandon()
            raise
        return address

    async def _take_up(self) -> None:
        """Tell the service which process holds the slice: it is free when that one ends."""
        process = self.server_process()
        if self._lease_id and process is not None:
            await self._link().take_up(self._lease_id, process, self.service_timeout)

    def server_process(self) -> Process | None:
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
                await super(GpuSliceSpawner, self).stop(now=True)
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

    def _link(self) -> Link:
        return Link(self.service_url, hub_secret())

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


@lru_cache(maxsize=8)
def _read(path: str, mtime_ns: int) -> Profiles:
    return load_profiles(path)


class GpuSliceLocalSpawner(GpuSliceSpawner, LocalProcessSpawner):
    """Servers are processes of the users' own accounts on the hub's machine."""


class GpuSliceDemoSpawner(GpuSliceSpawner, SimpleLocalProcessSpawner):
    """Servers are processes of the hub's own account: for trying out, never for real users."""
