"""The kernel provisioner: any other provisioner, with a slice for its kernel."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerBase, KernelProvisionerFactory
from traitlets import Any as AnyTrait
from traitlets import Unicode

from ..devices.process import Process
from ..isolation.environment import installed_torch
from .kernels import Launch

LOCAL = "local-provisioner"
KERNEL_PACKAGE = "jupyter_gpuslice_kernel"
EXTENSION = f"--InteractiveShellApp.extra_extensions={KERNEL_PACKAGE}"
"""Adds to the extensions of the user's own configuration (those are ``extensions``)."""
LARGEST_NOTEBOOK = 256 * 2**20
KNOWN_SECONDS = 3.0
"""How long the first kernels wait for the server to have found its devices."""
LOOK_SECONDS = 3.0
"""A notebook on a file system that hangs must not keep its kernel from starting."""


class GpuSliceProvisioner(KernelProvisionerBase):
    """Gives a kernel its slice and leaves everything else to the provisioner inside.

    That is the kernelspec's own, else the server's default one. Outside a server (papermill,
    nbclient) the session's broker is asked over HTTP, and without one nothing is added.
    """

    inner_name = Unicode(LOCAL, help="The provisioner inside, by its entry point's name.").tag(
        config=True
    )
    inner: Any = AnyTrait(help="The provisioner that does the work.")
    server: Any = AnyTrait(None, allow_none=True, help="The server's kernels and slices.")

    def _inner_default(self) -> KernelProvisionerBase:
        factory = KernelProvisionerFactory.instance()
        if not factory._check_availability(self.inner_name):
            raise ModuleNotFoundError(f"Kernel provisioner {self.inner_name!r} is not installed.")
        kind = factory.provisioners[self.inner_name].load()
        return cast(
            KernelProvisionerBase,
            kind(kernel_id=self.kernel_id, kernel_spec=self.kernel_spec, parent=self.parent),
        )

    # Everything that is not about slices

    def __getattr__(self, name: str) -> Any:
        # jupyter_client and others look for pid, process, ip … on the provisioner they know.
        if name.startswith("_") or name in ("inner", "server"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def connection_info(self) -> KernelConnectionInfo:  # type: ignore[override]
        return cast(KernelConnectionInfo, self.inner.connection_info)

    @connection_info.setter
    def connection_info(self, value: KernelConnectionInfo) -> None:
        self.inner.connection_info = value

    @property
    def has_process(self) -> bool:
        return bool(self.inner.has_process)

    async def poll(self) -> int | None:
        return cast("int | None", await self.inner.poll())

    async def wait(self) -> int | None:
        return cast("int | None", await self.inner.wait())

    async def send_signal(self, signum: int) -> None:
        await self.inner.send_signal(signum)

    async def kill(self, restart: bool = False) -> None:
        await self.inner.kill(restart=restart)

    async def terminate(self, restart: bool = False) -> None:
        await self.inner.terminate(restart=restart)

    async def get_provisioner_info(self) -> dict[str, Any]:
        return cast("dict[str, Any]", await self.inner.get_provisioner_info())

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        await self.inner.load_provisioner_info(provisioner_info)
        self.kernel_id = provisioner_info["kernel_id"]

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        return cast(float, self.inner.get_shutdown_wait_time(recommended))

    def get_stable_start_time(self, recommended: float = 10.0) -> float:
        return cast(float, self.inner.get_stable_start_time(recommended))

    def resolve_path(self, path: str) -> str | None:
        return cast("str | None", self.inner.resolve_path(path))

    # The life of a kernel

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """The inner provisioner's preparation, then the slice: what we set has the last word."""
        launch = cast("dict[str, Any]", await self.inner.pre_launch(**kwargs))
        env = dict(launch.get("env") or os.environ)
        try:
            await self._prepare(launch, env)
        except Exception:
            # A kernel without a slice is better than none.
            self.log.exception("No slice could be prepared for kernel %s", self.kernel_id)
            return launch
        launch["env"] = env
        return launch

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        try:
            return cast(KernelConnectionInfo, await self.inner.launch_kernel(cmd, **kwargs))
        except BaseException:
            await self._ended()
            raise

    async def post_launch(self, **kwargs: Any) -> None:
        await self.inner.post_launch(**kwargs)
        if self._managed:
            try:
                await self._launched()
            except Exception:
                self.log.exception("Kernel %s runs without its slice", self.kernel_id)

    async def shutdown_requested(self, restart: bool = False) -> None:
        if self._managed and self.server is not None:
            (self.server.restarting if restart else self.server.ending)(self.kernel_id)
        await self.inner.shutdown_requested(restart=restart)

    async def cleanup(self, restart: bool = False) -> None:
        await self.inner.cleanup(restart=restart)
        if not restart:
            await self._ended()
        elif self._managed and self.server is not None:
            self.server.restarting(self.kernel_id)

    _managed = False
    """Whether this kernel has a slice of its own to look after (a peer's is its group's)."""
    _session: Any = None

    async def _prepare(self, launch: dict[str, Any], env: dict[str, str]) -> None:
        command = list(launch.get("cmd") or ())
        if "JUPYTER_GPUSLICE_RANK" in env and "JUPYTER_GPUSLICE_GROUP" in env:
            # A group's member has what its group gave it, and nothing that is its notebook's.
            for name in ("KERNEL_ID", "TOKEN", "SLICE"):
                env.pop(f"JUPYTER_GPUSLICE_{name}", None)
            return
        if self.server is not None:
            await self.server.known(KNOWN_SECONDS)
            await self.server.buried(self.kernel_id)
        adapts = any("ipykernel" in word for word in command)
        wish = await self._wishes(env)
        torch = await _in_time(lambda: installed_torch(command[0])) if adapts else None
        if self.server is not None:
            changes = self.server.prepare(
                self.kernel_id,
                Launch(
                    wishes=wish,
                    name=self._name(env),
                    notebook=self._notebook(env),
                    adapts=adapts,
                    environ=dict(env),
                    torch=torch,
                    may_return=self._may_return,
                ),
            )
            folder = self.server.kernel_path
        else:
            from .outside import OutsideSession

            self._session = OutsideSession.from_environment(env)
            if self._session is None:
                return
            changes, folder = await self._session.prepare(
                self.kernel_id, wish, self._name(env), adapts
            )
        self._managed = True
        for name, value in changes.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        if adapts and folder:
            # A folder with this one package in it: nothing else becomes importable by it.
            others = env.get("PYTHONPATH")
            env["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else str(folder)
            if EXTENSION not in command:
                launch["cmd"] = [*command, EXTENSION]

    async def _launched(self) -> None:
        pid = getattr(self.inner, "pid", None) or getattr(
            getattr(self.inner, "process", None), "pid", None
        )
        if self._session is not None:
            await self._session.launched(self.kernel_id, pid or os.getpid())
            return
        try:
            # A kernel on another machine has no process here: its lease goes with its manager's
            # clean-up, or with this server.
            process = Process.of(pid or os.getpid())
        except ProcessLookupError:
            process = Process(int(pid or 0), "ended")
        self.server.launched(self.kernel_id, process)

    async def _ended(self) -> None:
        if not self._managed:
            return
        self._managed = False
        if self._session is not None:
            await self._session.ended(self.kernel_id)
        else:
            await self.server.ended(self.kernel_id)

    def _may_return(self) -> bool:
        """Whether the kernel's manager starts it anew when it dies."""
        manager = self.parent
        if getattr(manager, "shutting_down", False):
            return True  # a restart or the end: its clean-up tells which
        restarter = getattr(manager, "_restarter", None)
        return restarter is not None and getattr(restarter, "_pcallback", None) is not None

    # What is asked for

    async def _wishes(self, env: Mapping[str, str]) -> list[tuple[str, Any]]:
        notebook = self._notebook_file(env)
        metadata = await _in_time(lambda: notebook_request(notebook)) if notebook else None
        spec = getattr(self.kernel_spec, "metadata", None) or {}
        section = spec.get("gpuslice")
        return [
            ("JUPYTER_GPUSLICE_REQUEST", env.get("JUPYTER_GPUSLICE_REQUEST")),
            ("the notebook's metadata", metadata),
            (
                "the kernelspec's metadata",
                section.get("request") if isinstance(section, dict) else None,
            ),
        ]

    def _name(self, env: Mapping[str, str]) -> str:
        session = env.get("JPY_SESSION_NAME", "")
        if session:
            return Path(session).name
        return str(getattr(self.kernel_spec, "display_name", "") or "")

    def _notebook_file(self, env: Mapping[str, str]) -> Path | None:
        session = env.get("JPY_SESSION_NAME", "")
        if not session.endswith(".ipynb"):
            return None
        path = Path(session)
        return path if path.is_absolute() else self._root() / path

    def _notebook(self, env: Mapping[str, str]) -> str | None:
        """The notebook's path as Jupyter's contents know it."""
        path = self._notebook_file(env)
        if path is None:
            return None
        try:
            return path.relative_to(self._root()).as_posix()
        except ValueError:
            return path.name

    def _root(self) -> Path:
        return Path(getattr(getattr(self.parent, "parent", None), "root_dir", "") or os.getcwd())


def notebook_request(path: Path) -> Any:
    """``metadata.gpuslice.request`` of a notebook file; ``None`` if there is none (blocks)."""
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > LARGEST_NOTEBOOK:
                return None
            notebook = json.load(file)
        return notebook["metadata"]["gpuslice"]["request"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


async def _in_time(look: Callable[[], Any]) -> Any:
    """The result of a blocking look, ``None`` if it takes too long or fails."""
    task = asyncio.ensure_future(asyncio.to_thread(look))
    await asyncio.wait([task], timeout=LOOK_SECONDS)
    if not task.done() or task.exception() is not None:
        return None
    return task.result()


def wrap_every_kernel(factory: KernelProvisionerFactory, server: Any, log: Any) -> None:
    """Make every provisioner that ``factory`` creates one of ours, with what it made inside.

    The factory is the one in use, whatever its class and whoever made it: another extension's
    choice of provisioner stays, inside ours.
    """
    create = factory.create_provisioner_instance
    if getattr(create, "_gpuslice", None) is server:
        return
    default = factory.default_provisioner_name
    if type(factory) is not KernelProvisionerFactory or default not in (LOCAL, "gpuslice"):
        log.info(
            "Kernels get their slice around the provisioner that is configured: %s by %s.",
            default,
            type(factory).__name__,
        )

    def create_with_slice(kernel_id: str, kernel_spec: Any, parent: Any) -> KernelProvisionerBase:
        inner = create(kernel_id, kernel_spec, parent)
        if isinstance(inner, GpuSliceProvisioner):
            inner.server = server
            return inner
        return GpuSliceProvisioner(
            kernel_id=kernel_id,
            kernel_spec=kernel_spec,
            parent=parent,
            inner=inner,
            server=server,
        )

    create_with_slice._gpuslice = server  # type: ignore[attr-defined]
    factory.create_provisioner_instance = create_with_slice  # type: ignore[method-assign]
