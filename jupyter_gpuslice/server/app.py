"""The Jupyter Server extension."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory
from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir
from jupyter_server.extension.application import ExtensionApp
from traitlets import Int, TraitError, Unicode
from traitlets.config import Configurable

from ..devices import SimulatedSource
from ..groups.manager import WITH_NOTEBOOK, GroupManager
from ..isolation.folder import OwnFolder
from ..request import GpuRequest, RequestError
from .address import broker_socket, server_address
from .api import ApiError, Caller, LeaseApi
from .events import Events
from .kernels import Kernels
from .metrics import PoolMetrics
from .opening import Found, ledger_name, open_pool
from .provisioner import KERNEL_PACKAGE, wrap_every_kernel
from .routes import routes
from .runtime import BrokerRuntime
from .upstream import Upstream
from .visitors import Visitors
from .websocket import make_prompt

GRANT = "JUPYTER_GPUSLICE_GRANT"
SHARE = "JUPYTER_GPUSLICE_SHARE"


class GpuSlice(Configurable):
    """Settings of the GPU slices of a server, as ``c.GpuSlice.…`` in ``jupyter_server_config.py``.

    All of them have command-line forms: ``jupyter lab --GpuSlice.simulate=a100-80gb:2``.
    """

    simulate = Unicode(
        "",
        help="""Devices to simulate where there is no real GPU, such as "a100-80gb:2,h100-80gb".

        Everything works on them but computing: leases, queues, groups and panels, with the CPU
        and memory of your kernels shown as the devices' use. They are marked as simulated
        everywhere. Where NVML finds a real GPU this setting is not used.
        """,
    ).tag(config=True)
    default_request = Unicode(
        "auto",
        help="""What a kernel gets that does not say what it needs.

        "auto" is what is free in the session's pool, up to one device; "0" gives a GPU only to
        those that ask for one (in the notebook's or the kernelspec's metadata, with the item in
        the notebook's toolbar, or with %gpu request); "0.25" a quarter of a device to each.
        """,
    ).tag(config=True)
    ledger = Unicode(
        "",
        help="""The file that records who holds what, on a local disk.

        By default it is in the folder "gpuslice" of Jupyter's data directory, one for each
        session of a hub, else one for this machine. A second server that uses the same file
        starts without GPUs and says so, since two brokers would grant the same device twice.
        """,
    ).tag(config=True)
    broker = Unicode(
        "",
        help="""The Unix socket of this machine's GPU broker, which shares its GPUs among users.

        Without it the usual one (/run/jupyter-gpuslice/broker.sock) is used where it is there; a
        machine without a broker gives all of its GPUs to every server. With it a server never
        takes GPUs that it was not given: where the broker does not answer there are none. A
        session that a hub started does not ask.
        """,
    ).tag(config=True)
    session_request = Unicode(
        "",
        help="""What this server asks of the machine's GPU broker: "0.5", "10GiB", "2"; "0" is none.

        Without it the broker gives what its administrator set. The server's kernels share it.
        """,
    ).tag(config=True)
    reserve_mib = Int(
        None,
        allow_none=True,
        min=0,
        help="""MiB of each device that are never granted (contexts and the driver need some).

        By default it is chosen from the device's size. The hub's node broker has a setting of
        its own; a session that got its slice from a hub does not use this one.
        """,
    ).tag(config=True)

    def check(self) -> None:
        """``ValueError`` for values of the right type that mean nothing."""
        if self.simulate.strip():
            SimulatedSource(self.simulate)
        try:
            GpuRequest.parse(self.default_request)
        except RequestError as error:
            raise ValueError(
                f"GpuSlice.default_request cannot be {self.default_request!r}: {error}"
            ) from error
        try:
            request = GpuRequest.parse(self.session_request or "1")
        except RequestError as error:
            raise ValueError(
                f"GpuSlice.session_request cannot be {self.session_request!r}: {error}"
            ) from error
        if request.kind == "auto":
            raise ValueError("GpuSlice.session_request is an amount, such as 0.5 or 10GiB.")


class GpuSliceApp(ExtensionApp):
    """Slices of GPUs for the kernels of a server."""

    name = "jupyter_gpuslice"
    app_name = "GPU slices"
    load_other_extensions = True
    classes = [GpuSlice]  # noqa: RUF012 (how traitlets' applications spell it)

    runtime: BrokerRuntime | None = None
    groups: GroupManager | None = None
    api: LeaseApi
    kernels: Kernels
    gpuslice: GpuSlice
    events: Events
    _opening: asyncio.Task[None] | None = None
    _following: asyncio.Task[None] | None = None
    _metrics: PoolMetrics | None = None

    def initialize_settings(self) -> None:
        serverapp: Any = self.serverapp
        make_prompt(serverapp, self.settings)
        self.gpuslice = self._read_settings()
        self.user = os.environ.get("JUPYTERHUB_USER") or getpass.getuser()
        self._folder = make_folder()
        self.events = Events(serverapp.event_logger, self.log)
        self.kernels = Kernels(
            self.user,
            self._folder.path / "slices",
            lambda: server_address(serverapp),
            self._notice,
            self.log,
            kernel_path=str(self._folder.path / "path"),
        )
        self.visitors = Visitors(self.kernels)
        self.kernels.default_request = self.gpuslice.default_request
        self.api = LeaseApi(
            None,
            self.kernels.resolve,
            problem=ApiError(
                503, "starting", "The GPUs of this server are being looked for.", "Ask again soon."
            ),
            about=self.kernels.about,
        )
        self._wrap()
        self.settings["gpuslice_app"] = self

    def _read_settings(self) -> GpuSlice:
        """The settings; a server that somebody starts by hand ends where they cannot be used.

        In a hub's session it serves all the same: nobody sees there what it would say.
        """
        on_a_hub = bool(os.environ.get(GRANT))
        try:
            settings = GpuSlice(parent=self)
            if not on_a_hub:
                settings.check()
        except (TraitError, ValueError) as error:
            if on_a_hub:
                raise
            self.log.critical("jupyter_gpuslice cannot start: %s", error)
            self.serverapp.exit(1)  # type: ignore[union-attr]
        return settings

    def initialize_handlers(self) -> None:
        self.handlers.extend(routes())

    def _wrap(self) -> None:
        factory = KernelProvisionerFactory.instance(parent=self.serverapp)
        wrap_every_kernel(factory, self.kernels, self.log)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        # Again, for a factory that another extension has put in place since.
        self._wrap()
        # Drivers may take long to answer: the server serves meanwhile.
        self._opening = asyncio.create_task(self._open())

    async def opened(self) -> None:
        """Wait until it is known whether there is a pool."""
        if self._opening is not None:
            await self._opening

    async def _open(self) -> None:
        settings = self.gpuslice
        path = ledger_path(settings.ledger)
        try:
            runtime, found = await open_pool(
                path,
                simulate=settings.simulate,
                reserve_mib=settings.reserve_mib,
                grant=await self._grant(),
                share=os.environ.get(SHARE, ""),
                log=self.log,
            )
        except ApiError as problem:
            self._without(problem)
        except Exception:
            self.log.exception("The GPUs of this server cannot be used")
            self._without(ApiError(503, "internal", "The GPUs of this server cannot be used."))
        else:
            await self._serve(runtime, found)

    async def _grant(self) -> str:
        """What a hub or the machine's own broker gives this session; "" where there is neither."""
        given = os.environ.get(GRANT, "")
        socket = "" if os.environ.get(SHARE) else broker_socket(self.gpuslice.broker)
        if not socket or (given and not of_machine(given)):
            return given
        if self.gpuslice.simulate:
            self.log.warning(
                "GpuSlice.simulate is not used: this machine's GPUs are those of the broker at %s.",
                socket,
            )
        upstream = Upstream(socket, self._waits, self.log)
        grant = await upstream.obtain(self.gpuslice.session_request)
        text = json.dumps(grant, separators=(",", ":"))
        if grant["lease"]:
            # What the kernels leave behind is found by it when the session has ended.
            os.environ[GRANT] = text
            following = upstream.follow(grant["lease"], self._taken_back)
            self._following = asyncio.create_task(following)
        return text

    def _waits(self, message: str) -> None:
        """Something to know of the session's lease; until it is granted, why there is no GPU."""
        if self.runtime is None:
            self.api.problem = ApiError(503, "waiting", message)
            self.kernels.failed(message)
        self._notice("warning", message, None)

    def _taken_back(self, why: str) -> None:
        """The session's lease has ended before the session: nothing is granted here now."""
        words = f"This server's GPU slice was taken back. {why}".strip()
        if self.runtime is not None:
            self.runtime.note = f"{words} Restart the server to ask for a GPU anew."
            self.runtime.broker.withdraw(words)
        self._notice("error", words, None)

    def _without(self, problem: ApiError) -> None:
        self.log.warning(
            "Kernels start without GPU slices. %s", f"{problem.message} {problem.hint}".strip()
        )
        self.api.problem = problem
        self.kernels.failed(f"{problem.message} {problem.hint}".strip())
        self.events.notice("warning", problem.message, None)

    async def _serve(self, runtime: BrokerRuntime, found: Found) -> None:
        await runtime.start()
        me = Caller(self.user)
        api = LeaseApi(
            runtime,
            self.kernels.resolve,
            about=self.kernels.about,
            entitled=lambda caller: found.entitled,
            hub=found.hub,
        )
        viewer = api.viewer(me)
        runtime.subscribe(
            self.events.runtime_listener(
                lambda lease: runtime.lease_dict(lease, viewer),
                lambda: runtime.pool_dict(viewer),
            )
        )
        self.runtime, self.api = runtime, api
        self.kernels.attach(runtime)
        self.groups = GroupManager(self.serverapp, runtime, self.gpuslice)
        self.groups.subscribe(self.events.group)
        self.groups.subscribe(self._group_news)
        self.kernels.groups = self.groups
        self._metrics = PoolMetrics(lambda: self.runtime)
        self._equip_terminals()
        names = ", ".join(member.device.name for member in runtime.broker.pool)
        self.log.info("GPU slices: %s", names or f"no GPU here. {runtime.note}".strip())

    def _equip_terminals(self) -> None:
        """Terminals see the session's devices and may ask its broker."""
        terminals = self.serverapp.web_app.settings.get("terminal_manager")  # type: ignore[union-attr]
        if terminals is None:
            return
        extra = dict(getattr(terminals, "extra_env", None) or {})
        extra |= self.kernels.session_environment()
        extra |= server_address(self.serverapp)
        extra["JUPYTER_GPUSLICE_TOKEN"] = self.kernels.tokens.for_session()
        terminals.extra_env = extra

    def _group_news(self, action: str, group: dict[str, Any]) -> None:
        """A restarted kernel's notebook looks as before, but its groups are gone."""
        ended = action == "ended" and group["detail"] == WITH_NOTEBOOK
        if ended and self.kernels.returns(group["kernel"]):
            words = (
                f"The group {group['name']!r} ended when its notebook's kernel was restarted: the "
                "variables of its workers are gone."
            )
            self._notice("warning", words, group["kernel"])

    def _notice(self, level: str, message: str, kernel: str | None) -> None:
        self.log.info("%s%s", f"Kernel {kernel}: " if kernel else "", message)
        self.events.notice(level, message, kernel)

    async def stop_extension(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self.groups is not None:
            await self.groups.shutdown()
        if self.runtime is not None:
            # The kernels first, so that the ledger has their end and not the next start.
            await self.serverapp.cleanup_kernels()  # type: ignore[union-attr]
            runtime, self.runtime = self.runtime, None
            self.api.runtime = self.kernels.runtime = None
            for lease in runtime.broker.leases():
                if all(process.pid == os.getpid() for process in lease.processes):
                    runtime.broker.release(lease.id, "The server has stopped.")
            await runtime.stop()
        self.kernels.close()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._following is not None:
            self._following.cancel()
        self._folder.close()


def of_machine(grant: str) -> bool:
    """Whether a grant is that of a machine's broker.

    Then it is another server's, in whose terminal this one was started: both would give the same
    slice to their kernels.
    """
    try:
        return bool(json.loads(grant)["url"] == "")
    except (ValueError, KeyError, TypeError):
        return False


def ledger_path(setting: str) -> Path:
    """The ledger's file: as set, else in Jupyter's data directory."""
    return Path(setting or Path(jupyter_data_dir()) / "gpuslice" / ledger_name()).expanduser()


def make_folder() -> OwnFolder:
    """This server's folder for slice files and for the path of IPython kernels."""
    root = Path(jupyter_runtime_dir())
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = OwnFolder(root, "gpuslice-")
    (folder.path / "slices").mkdir(mode=0o700)
    (folder.path / "path").mkdir(mode=0o700)
    package = Path(__file__).resolve().parent.parent / "kernel"
    (folder.path / "path" / KERNEL_PACKAGE).symlink_to(package, target_is_directory=True)
    return folder


_load_jupyter_server_extension = GpuSliceApp._load_jupyter_server_extension
