"""A server's kernels and the slices they hold."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ..broker.explain import Refused
from ..broker.lease import Holder, Lease, Slice
from ..broker.ledger import LedgerError
from ..devices.process import Process
from ..isolation.environment import slice_environment
from ..request import GpuRequest, RequestError
from .api import ApiError, Caller, Holding, leases_of_kernel
from .runtime import BrokerRuntime, News
from .slicefile import SliceFile
from .tokens import TokenStore
from .watch import ProcessWatch

REVIVAL_SECONDS = 4.0
"""How long a dead kernel's lease waits for the restarter, which looks every 3 s."""
RESTART_SECONDS = 60.0
"""How long a restart that has begun may take until the new process is there."""

MARK = "JUPYTER_GPUSLICE_LEASE"

Level = Literal["info", "warning", "error"]
Notify = Callable[[Level, str, "str | None"], None]


class GroupsGone(Protocol):
    async def kernel_gone(self, kernel_id: str) -> None: ...


@dataclass
class Kernel:
    """What the server knows of one kernel."""

    id: str
    name: str = ""
    notebook: str | None = None
    adapts: bool = False
    """Whether it puts a changed slice in place itself (IPython with our kernel side)."""
    file: SliceFile | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    """What its environment would be without us."""
    torch: tuple[int, int] | None = None
    process: Process | None = None
    message: str = ""
    started_with: tuple[Slice, ...] = ()
    may_return: Callable[[], bool] = lambda: False
    """Whether somebody will start it anew when it dies."""
    restart_until: float = 0.0
    died_at: float | None = None


@dataclass(frozen=True)
class Launch:
    """What a kernel needs to know before it is launched: variables to name, name, notebook."""

    wishes: Sequence[tuple[str, Any]]
    """Where a request may stand, the first that says something counts: (source, text)."""
    name: str = ""
    notebook: str | None = None
    adapts: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    torch: tuple[int, int] | None = None
    may_return: Callable[[], bool] = lambda: False
    parent: str | None = None


class Kernels:
    """Leases for kernels, from before their launch to their end.

    ``runtime`` is ``None`` until there is a broker (and stays so where there is none): kernels
    then start without a slice, and get one when it comes.
    """

    def __init__(
        self,
        user: str,
        folder: Path,
        address: Callable[[], Mapping[str, str]],
        notify: Notify,
        log: Any = None,
        kernel_path: str = "",
    ) -> None:
        self.kernel_path = kernel_path
        """The folder to put on the path of IPython kernels, with our kernel side alone in it."""
        self.runtime: BrokerRuntime | None = None
        self.groups: GroupsGone | None = None
        self.tokens = TokenStore(user)
        self.user = user
        self.default_request = "auto"
        self.problem = ""
        """Why there is no broker, for people."""
        self._folder = folder
        self._address = address
        self._notify = notify
        self._log = log or logging.getLogger(__name__)
        self._kernels: dict[str, Kernel] = {}
        self._waiting: dict[str, Launch] = {}
        self.settled = asyncio.Event()
        """Set when it is known whether there is a broker."""
        self._watch = ProcessWatch(self._died)
        self._tasks: set[asyncio.Task[None]] = set()
        self._endings: dict[str, asyncio.Task[None]] = {}

    # The broker comes and goes

    def attach(self, runtime: BrokerRuntime) -> None:
        """There is a broker now: kernels that started before it ask for their slices."""
        self.runtime = runtime
        self.settled.set()
        runtime.patience = self.patience
        runtime.subscribe(self._news)
        waiting, self._waiting = self._waiting, {}
        for kernel_id, launch in waiting.items():
            kernel = self._kernels.get(kernel_id)
            if kernel is not None:
                lease = self._ask(kernel, launch)
                if lease is not None and kernel.process is not None:
                    runtime.broker.activate(lease.id, [kernel.process])
                self._write(kernel)

    async def known(self, seconds: float) -> None:
        """Wait a little for it to be known whether there is a broker."""
        try:
            await asyncio.wait_for(self.settled.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    def failed(self, problem: str) -> None:
        """There will be no broker."""
        self.problem = problem
        self.settled.set()

    def close(self) -> None:
        self._watch.close()
        for task in self._tasks:
            task.cancel()
        for kernel in self._kernels.values():
            if kernel.file is not None:
                kernel.file.remove()

    # The life of a kernel

    def prepare(self, kernel_id: str, launch: Launch) -> dict[str, str | None]:
        """Before a kernel starts (again): its lease, and what to set or unset for it.

        Never waits, and never fails for want of a device: then there is none, and the slice file
        says why.
        """
        kernel = self._kernels.setdefault(kernel_id, Kernel(kernel_id))
        kernel.name = launch.name
        kernel.notebook = launch.notebook
        kernel.adapts = launch.adapts
        kernel.environ = launch.environ
        kernel.torch = launch.torch
        kernel.may_return = launch.may_return
        if kernel.file is None:
            kernel.file = SliceFile(self._folder / f"{kernel_id}.json")
        kernel.message = ""
        lease = self.lease_of(kernel_id)
        if lease is None:
            lease = self._ask(kernel, launch)
        kernel.started_with = lease.slices if lease is not None else ()
        self._write(kernel)
        return {
            MARK: None,
            **self._environment(kernel, lease),
            **self._address(),
            "JUPYTER_GPUSLICE_KERNEL_ID": kernel_id,
            "JUPYTER_GPUSLICE_TOKEN": self.tokens.for_kernel(kernel_id, launch.parent),
            "JUPYTER_GPUSLICE_SLICE": str(kernel.file.path),
        }

    def launched(self, kernel_id: str, process: Process) -> None:
        """The kernel's process runs: it holds the lease from now on."""
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            return
        kernel.process = process
        kernel.restart_until = 0.0
        kernel.died_at = None
        self._watch_all()
        if self.runtime is not None:
            for lease in leases_of_kernel(self.runtime.broker.leases(), kernel_id):
                self.runtime.broker.activate(lease.id, [process])

    def restarting(self, kernel_id: str) -> None:
        """The kernel's process will end and another one take its place: the lease stays."""
        kernel = self._kernels.get(kernel_id)
        if kernel is not None:
            kernel.restart_until = time.monotonic() + RESTART_SECONDS

    def ending(self, kernel_id: str) -> None:
        """The kernel was asked to end: nobody brings it back."""
        kernel = self._kernels.get(kernel_id)
        if kernel is not None:
            kernel.may_return = lambda: False
            kernel.restart_until = 0.0

    async def ended(self, kernel_id: str) -> None:
        """The kernel is gone for good: with it go its groups, its children, lease and token."""
        kernel = self._kernels.pop(kernel_id, None)
        if kernel is not None:
            self._endings[kernel_id] = asyncio.create_task(self._end(kernel))
        # Its process and its manager may both tell; each hears when all is free.
        await self.buried(kernel_id)

    async def _end(self, kernel: Kernel) -> None:
        try:
            self._waiting.pop(kernel.id, None)
            self.tokens.revoke(kernel.id)
            self._watch_all()
            if self.groups is not None:
                await self.groups.kernel_gone(kernel.id)
        except Exception:
            self._log.exception("The groups of kernel %s did not end in order", kernel.id)
        try:
            if self.runtime is not None:
                for lease in leases_of_kernel(self.runtime.broker.leases(), kernel.id):
                    await self.runtime.end(lease.id, "Its kernel has ended.")
        except LedgerError as error:
            # The runtime watches the process too, and tries until it can be written.
            self._log.error("The lease of kernel %s ends later: %s", kernel.id, error.message)
        finally:
            if kernel.file is not None:
                kernel.file.remove()
            del self._endings[kernel.id]

    async def buried(self, kernel_id: str) -> None:
        """Wait until nothing is left of an earlier kernel with this id.

        Its lease and its slice file would be taken from the next one when they go.
        """
        ending = self._endings.get(kernel_id)
        if ending is not None:
            await asyncio.shield(ending)

    def patience(self, lease: Lease, process: Process) -> float:
        """Seconds that the lease of a kernel which died waits yet for the kernel to come back."""
        if lease.holder.kind != "kernel":
            return 0.0
        kernel = self._kernels.get(lease.holder.id)
        return self._patience(kernel) if kernel is not None and kernel.process == process else 0.0

    def returns(self, kernel_id: str) -> bool:
        """Whether a kernel whose process has ended is, or was, started anew."""
        kernel = self._kernels.get(kernel_id)
        if kernel is None or kernel.process is None:
            return False
        return kernel.process.alive() or self._patience(kernel) > 0

    def _patience(self, kernel: Kernel) -> float:
        now = time.monotonic()
        if kernel.died_at is None:
            kernel.died_at = now
        until = kernel.restart_until
        if kernel.may_return():
            until = max(until, kernel.died_at + REVIVAL_SECONDS)
        return max(0.0, until - now)

    def _died(self, process: Process) -> None:
        task = asyncio.create_task(self._bury(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, process: Process) -> None:
        found = [kernel for kernel in self._kernels.values() if kernel.process == process]
        for kernel in found:
            wait = self._patience(kernel)
            while kernel.process == process and wait > 0:
                # Shortly: what is waited for may change at any moment, and nobody tells.
                await asyncio.sleep(min(wait, 0.1))
                wait = self._patience(kernel)
            if kernel.process == process and self._kernels.get(kernel.id) is kernel:
                await self.ended(kernel.id)

    def _watch_all(self) -> None:
        self._watch.only({k.process for k in self._kernels.values() if k.process is not None})

    # Questions

    def lease_of(self, kernel_id: str) -> Lease | None:
        """The lease that counts for a kernel: what it holds before what it waits for."""
        if self.runtime is None:
            return None
        return next(iter(leases_of_kernel(self.runtime.broker.leases(), kernel_id)), None)

    def get(self, kernel_id: str) -> Kernel | None:
        return self._kernels.get(kernel_id)

    def about(self, lease: Lease) -> dict[str, Any]:
        """What the server knows of a lease beyond the broker."""
        kernel = self._kernels.get(lease.holder.id) if lease.holder.kind == "kernel" else None
        if kernel is None:
            return {"notebook": None, "needs_restart": False}
        moved = lease.holds and lease.slices != kernel.started_with
        return {
            "notebook": kernel.notebook,
            "needs_restart": moved and not kernel.adapts and kernel.process is not None,
        }

    def resolve(self, caller: Caller, kind: str | None, holder_id: str | None) -> Holding:
        """Who is meant to hold a lease: a kernel of this server, else the session itself."""
        if kind is None and caller.kernel is not None:
            kind, holder_id = "kernel", caller.kernel
        if kind == "kernel" and holder_id is not None:
            if not caller.stands_for(holder_id):
                raise ApiError(403, "not_owner", "This kernel is not the caller's.")
            kernel = self._kernels.get(holder_id)
            if kernel is None:
                raise ApiError(404, "not_found", "This server runs no such kernel.")
            holder = Holder("kernel", holder_id, self.user, kernel.name)
            return Holding(holder, [kernel.process] if kernel.process else [])
        if caller.kernel is not None:
            raise ApiError(403, "not_owner", "A kernel's token does not speak for the session.")
        holder = Holder("session", self.user, self.user)
        return Holding(holder, [Process.of(os.getpid())])

    # Leases and files

    def _ask(self, kernel: Kernel, launch: Launch) -> Lease | None:
        request = self._wish(kernel, launch)
        if request is None or request.kind == "none":
            return None
        if self.runtime is None:
            self._waiting[kernel.id] = launch
            kernel.message = self.problem or "The GPUs of this server are being looked for."
            return None
        broker = self.runtime.broker
        if not broker.pool:
            if request.kind != "auto":
                self._tell(kernel, f"{request} was asked for, but there is no GPU here.")
            return None
        holder = Holder("kernel", kernel.id, self.user, kernel.name)
        try:
            lease = broker.request(request, holder)
        except (Refused, LedgerError) as error:
            words = f"{error.message} {error.hint}".strip()
            self._tell(kernel, f"This kernel starts without a GPU: {words}")
            return None
        if lease.state == "queued":
            kernel.message = (
                f"This kernel started without a GPU: its request for {request} waits, and the "
                "slice is put in place before the next cell once it is granted."
            )
        return lease

    def _wish(self, kernel: Kernel, launch: Launch) -> GpuRequest | None:
        for source, text in [*launch.wishes, ("c.GpuSlice.default_request", self.default_request)]:
            if text is None or text == "":
                continue
            try:
                return GpuRequest.parse(text)
            except RequestError as error:
                self._tell(
                    kernel,
                    f"This kernel starts without a GPU: the request in {source} is not "
                    f"understood. {error.message} {error.hint}",
                )
                return None
        return None

    def _tell(self, kernel: Kernel, message: str) -> None:
        kernel.message = message
        self._notify("warning", message, kernel.id)

    def _news(self, news: News) -> None:
        lease = news.lease
        if lease is None or lease.holder.kind != "kernel" or self.runtime is None:
            return
        kernel = self._kernels.get(lease.holder.id)
        if kernel is None:
            return
        if lease.holds and lease.request.kind != "auto":
            # What was asked for by name has come: what came by itself goes.
            for other in leases_of_kernel(self.runtime.broker.leases(), kernel.id):
                if other.request.kind == "auto":
                    self.runtime.broker.release(other.id, f"{lease.request} was granted instead.")
        if lease.holds:
            kernel.message = ""
        elif lease.state in ("expired", "revoked", "lost"):
            self._tell(kernel, f"The GPU slice of this kernel is {lease.state}. {lease.detail}")
        self._write(kernel)

    def _write(self, kernel: Kernel) -> None:
        lease = self.lease_of(kernel.id)
        shown = None
        if lease is not None and self.runtime is not None:
            shown = lease.to_dict() | self.about(lease)
        if kernel.file is not None:
            try:
                kernel.file.write(shown, self._environment(kernel, lease), kernel.message)
            except OSError as error:
                self._log.error("Kernel %s cannot be told of its slice: %s", kernel.id, error)

    def _environment(self, kernel: Kernel, lease: Lease | None) -> dict[str, str | None]:
        slices = lease.slices if lease is not None and lease.holds else ()
        env = self._slice_environment(slices, kernel.environ, kernel.torch)
        if lease is not None:
            env[MARK] = lease.id
        elif env:
            env[MARK] = None
        return env

    def _slice_environment(
        self,
        slices: Sequence[Slice],
        environ: Mapping[str, str],
        torch: tuple[int, int] | None,
    ) -> dict[str, str | None]:
        if self.runtime is None:
            # There may be devices; none of them is this kernel's yet.
            return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "none"}
        broker = self.runtime.broker
        devices = [member.device for member in broker.pool]
        return slice_environment(slices, devices, broker.isolation, environ=environ, torch=torch)

    def session_environment(self) -> dict[str, str | None]:
        """What the session's terminals see: all the devices of its pool."""
        if self.runtime is None or not self.runtime.broker.pool:
            return {}
        slices = [
            Slice(m.device.uuid, m.memory_mib, m.compute_percent, m.compute_percent)
            for m in self.runtime.broker.pool
            if m.memory_mib > 0
        ]
        return self._slice_environment(slices, os.environ, None)
