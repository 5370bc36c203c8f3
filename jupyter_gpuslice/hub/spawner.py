"""What every spawner of ours shares: the spawn page's form, and the check of what was chosen."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jupyterhub.spawner import Spawner
from tornado.web import HTTPError
from traitlets import Dict, Unicode, Union, default
from traitlets.config import LoggingConfigurable

from ..broker.limits import Standing
from ..server.link import LinkError
from . import form
from .availability import Availability
from .choice import ChoiceError, Profiles, Selection
from .policies import not_now, worth
from .profiles import ProfileError, load_profiles, parse_profiles

try:
    from jupyterhub.spawner import SpawnException
except ImportError:

    class SpawnException(HTTPError):  # type: ignore[no-redef]  # noqa: N818
        """As in JupyterHub 6. JupyterHub 5 shows its words, too, but counts it as a failure."""

        def __init__(self, message: str, *, reason: str, status_code: int = 400) -> None:
            super().__init__(status_code, message, reason=reason)
            self.reason, self.message = reason, message


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
    """Lets users choose a profile, by form and by REST alike.

    The base of all spawners of ours, to be mixed in before a spawner class; those say by
    :meth:`availability` what there is, and give what was chosen to the server. Everything is
    computed from the configuration at every start: nothing of one start is left for the next.
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

    _chosen: Selection | None = None
    """What the server was started for, from the check of its options to its end."""

    _good_options: Mapping[str, str] = MappingProxyType({})
    """The last options that were not refused."""

    def get_args(self) -> list[str]:
        """With the rule for servers that nobody uses: the server itself knows best.

        A kernel that computes is never culled, and a server ends when it has had no kernel, no
        terminal and no visitor for as long.
        """
        args: list[str] = super().get_args()
        idle = self._chosen.idle if self._chosen is not None else None
        return args if idle is None else [*args, *idle_arguments(idle)]

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
        # JupyterHub would warn that nobody looks at the options; the start does.
        return lambda spawner, user_options: None

    def declared(self) -> Profiles:
        """The hub's profiles, as they are declared now."""
        return declared(self.profiles, self.log)

    def groups(self) -> list[str]:
        return [group.name for group in self.user.groups]

    async def select(self, options: Mapping[str, Any] | None) -> Selection:
        """The choice that options mean. :class:`GpuSpawnError` for one that is not to be had."""
        try:
            return self.declared().select(options, self.user.name, self.groups())
        except ChoiceError as error:
            raise GpuSpawnError.of(await self._with_what_is_here(error)) from error

    async def select_for_start(self) -> Selection:
        """The choice that the server starts with. :class:`GpuSpawnError`.

        JupyterHub has noted the options by now, to start with them again: those that were refused
        would be refused for ever, also to who says nothing next time.
        """
        try:
            chosen = await self.select(self.user_options)
        except GpuSpawnError as error:
            if error.status_code in (400, 403) and self.orm_spawner is not None:
                self.orm_spawner.user_options = dict(self._good_options)
                self.db.commit()
            raise
        self._good_options = chosen.to_options()
        return chosen

    async def _with_what_is_here(self, error: ChoiceError) -> ChoiceError:
        """A refusal whose hint offers only what this machine could grant."""
        named = sorted({str(request) for request in error.named})
        if not named:
            return error
        available = await self.availability(named)
        return error.among(lambda request: not available.offer(request).never)

    async def gpu_form(self) -> str:
        """The spawn page's form: profiles, what is free now, and the user's last choice."""
        profiles = self.declared()
        offered = profiles.visible(self.user.name, self.groups())
        available = await self.availability(form.asked_about(offered))
        if available.standing is None:
            available = replace(available, standing=Standing(self.held_elsewhere()))
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

    # Limits, where no broker of ours keeps them

    def within_limits(self, chosen: Selection) -> Selection:
        """A choice that the user's other servers leave room for. :class:`GpuSpawnError`.

        For spawners whose cluster knows nothing of the hub's policies. There a GPU-hour is the
        cluster's to count.
        """
        held = self.held_elsewhere()
        # An amount of memory counts as the others are counted: as whole devices. The only one may
        # be a part of what the user may have.
        unknown = float(chosen.request.count) if held else 0.0
        words, _ = not_now(chosen.request, chosen.terms, Standing(held), unknown)
        if words:
            hint = "Stop another server of yours first."
            raise GpuSpawnError(409, "over_quota", f"{words}.", hint)
        return chosen

    def held_elsewhere(self) -> float:
        """How many GPUs' worth the user's other servers hold; a part whose size is not known here
        (an amount of memory) counts as a whole one."""
        held = 0.0
        for spawner in self.user.spawners.values():
            if spawner is self or not isinstance(spawner, GpuSliceSpawner):
                continue
            chosen = spawner._chosen
            if chosen is None and spawner.ready:
                # It was started by an earlier process of the hub.
                try:
                    chosen = self.declared().select(
                        spawner.user_options, self.user.name, self.groups()
                    )
                except ChoiceError:
                    continue
            if chosen is not None and chosen.request.kind != "none":
                held += worth(chosen.request) or chosen.request.count
        return held

    async def availability(self, requests: Sequence[str]) -> Availability:
        """What there is for each request now; never fails."""
        raise NotImplementedError


def idle_arguments(seconds: float) -> list[str]:
    """The settings of a Jupyter server by which it ends after so long without activity.

    Source: https://jupyter-server.readthedocs.io/en/latest/other/full-config.html
    """
    whole = max(1, round(seconds))
    return [
        f"--ServerApp.shutdown_no_activity_timeout={whole}",
        f"--MappingKernelManager.cull_idle_timeout={whole}",
        f"--MappingKernelManager.cull_interval={max(1, min(300, whole // 4))}",
        "--MappingKernelManager.cull_connected=True",
        "--MappingKernelManager.cull_busy=False",
        f"--TerminalManager.cull_inactive_timeout={whole}",
        f"--TerminalManager.cull_interval={max(1, min(300, whole // 4))}",
    ]


def declared(profiles: str | dict[str, Any], log: Any) -> Profiles:
    """What a file or a dictionary declares now. :class:`GpuSpawnError`; ``log`` has the reason."""
    try:
        if isinstance(profiles, str):
            return _read(profiles, os.stat(profiles).st_mtime_ns)
        return parse_profiles(profiles)
    except (ProfileError, OSError) as error:
        log.error("The profiles cannot be used: %s", error)
        raise GpuSpawnError(
            503,
            "profiles",
            "The hub's profiles cannot be read.",
            "An administrator finds the reason in the hub's log.",
        ) from error


@lru_cache(maxsize=8)
def _read(path: str, mtime_ns: int) -> Profiles:
    return load_profiles(path)
