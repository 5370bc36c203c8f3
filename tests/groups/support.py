"""A server's surroundings for peer groups: a real broker and runtime, real kernels."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.multikernelmanager import AsyncMultiKernelManager

from jupyter_gpuslice.broker.broker import Broker
from jupyter_gpuslice.broker.lease import Holder
from jupyter_gpuslice.broker.ledger import Ledger
from jupyter_gpuslice.broker.pool import whole
from jupyter_gpuslice.devices import open_devices
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.groups.manager import GroupManager
from jupyter_gpuslice.request import GpuRequest
from jupyter_gpuslice.server.api import Caller
from jupyter_gpuslice.server.runtime import BrokerRuntime

USER = Caller("ann")


class Server:
    """What a group manager stands on, and shorthands for its calls."""

    def __init__(self, simulate: str = "a100-80gb:4") -> None:
        self._simulate = simulate

    async def __aenter__(self) -> Server:
        self.children = {child.pid for child in psutil.Process().children(recursive=True)}
        source = open_devices(self._simulate)
        ledger = Ledger.open(None)
        broker = Broker(whole(source.devices()), ledger, time.time, isolation="simulated")
        self.runtime = BrokerRuntime(broker, ledger, source)
        await self.runtime.start()
        self.broker = broker
        specs = KernelSpecManager()
        self.kernels = AsyncMultiKernelManager(kernel_spec_manager=specs)
        self.app = SimpleNamespace(kernel_spec_manager=specs, kernel_manager=self.kernels, log=None)
        self.manager = GroupManager(self.app, self.runtime)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.manager.subscribe(lambda action, group: self.events.append((action, group)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.manager.shutdown()
        await self.kernels.shutdown_all(now=True)
        self.kernels.context.destroy(linger=0)
        await self.runtime.stop()
        if exc == (None, None, None):
            await until(lambda: not self.left(), "processes were left behind", 10)
            assert not self.manager.list(USER)

    def left(self) -> set[int]:
        """Processes that were not there at the start."""
        children = psutil.Process().children(recursive=True)
        alive = {c.pid for c in children if c.status() != psutil.STATUS_ZOMBIE}
        return alive - self.children

    async def group(self, workers: int = 2, request: str = "0", **more: Any) -> str:
        body = {"workers": workers, "request": request, **more}
        return str((await self.manager.create(USER, body))["id"])

    async def notebook(self) -> str:
        """A notebook's kernel, with the auto lease that the provisioner would get it."""
        kernel = await self.kernels.start_kernel()
        pid = self.kernels.get_kernel(kernel).provisioner.pid
        lease = self.broker.request(GpuRequest.parse("auto"), Holder("kernel", kernel, "ann"))
        self.broker.activate(lease.id, [Process.of(pid)])
        return str(kernel)

    async def run(self, group: str, code: str = "", **more: Any) -> Reply:
        reply = Reply()
        async for message in self.manager.execute(group, {"code": code, **more}):
            reply.messages.append(message)
        return reply

    def start(self, group: str, code: str, **more: Any) -> Running:
        return Running(self.manager.execute(group, {"code": code, **more}))

    def pids(self, group: str) -> list[int]:
        return [rank["pid"] for rank in self.manager.get(group)["ranks"]]


class Reply:
    """All messages of a cell."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def of(self, kind: str, rank: int | None = None) -> list[dict[str, Any]]:
        return [
            m for m in self.messages
            if m["type"] == kind and (rank is None or m["rank"] == rank)
        ]  # fmt: skip

    def text(self, rank: int, name: str = "stdout") -> str:
        return "".join(m["text"] for m in self.of("stream", rank) if m["name"] == name)

    @property
    def done(self) -> dict[str, Any]:
        assert self.messages, "no message came"
        assert self.messages[-1]["type"] == "done", self.messages[-1]
        return self.messages[-1]

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.of("error")
        return error

    def well(self) -> Reply:
        """Itself, if all went well."""
        assert self.done["ok"], self.messages
        return self


class Running(Reply):
    """A cell that runs while the test goes on."""

    def __init__(self, messages: Any) -> None:
        super().__init__()
        self._iterator = messages
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._iterator:
            self.messages.append(message)

    async def end(self, within: float = 30.0) -> float:
        """Wait for the end; seconds that it took."""
        began = time.monotonic()
        await asyncio.wait_for(self._task, within)
        return time.monotonic() - began

    async def printed(self, text: str, ranks: int) -> None:
        """Until ``ranks`` ranks have printed ``text``."""
        await until(
            lambda: sum(text in self.text(rank) for rank in range(16)) >= ranks,
            f"{text!r} was not printed by {ranks} ranks",
            60,
        )

    async def leave(self) -> None:
        """As a client that goes away in the middle."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._iterator.aclose()


async def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def play(scenario: Callable[[Server], Coroutine[Any, Any, None]], **server: Any) -> None:
    """Run an async test in a server's surroundings."""

    async def all_of_it() -> None:
        async with Server(**server) as surroundings:
            await scenario(surroundings)

    # What the machine around the tests has set must not decide over them.
    os.environ.pop("OMP_NUM_THREADS", None)
    asyncio.run(all_of_it())
