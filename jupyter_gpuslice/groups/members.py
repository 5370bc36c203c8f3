"""The kernels of a group on this server: started, spoken to, interrupted and ended.

They run under a kernel manager of their own, so that they are not in the list of notebooks'
kernels and no culler takes them. They speak over Unix sockets in a folder that only their user
can enter.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from traitlets.config import Config, Configurable

from ..devices.process import Process
from ..isolation.folder import OwnFolder
from .watch import watch

Channel = Literal["shell", "control"]
Output = Callable[[str, dict[str, Any]], None]

START_SECONDS = 60.0
STOP_SECONDS = 2.0
"""How long a kernel gets to end by itself."""
IDLE_SECONDS = 2.0
"""How long the last output of a request is waited for after its reply."""
REPLY_SECONDS = 0.5
"""How long a reply is waited for after the kernel has said that it is done with the request."""
LOG_BYTES = 2**20
MOST_LATE = 100
MOST_LATE_TEXT = 2000
"""Pieces, and characters of each, that are kept of what comes when no cell runs."""
TAIL_LINES = 12
MOST_BASE = 30
_FOLDER = "gpuslice-peers-"

_KERNEL_PACKAGE = Path(__file__).resolve().parent.parent / "kernel"
# The package may not be installed in the kernel's environment: its kernel side is loaded from
# where it lies, under a name that cannot clash with an installed one.
_SETUP = f"""
import importlib, importlib.util, sys
name, folder = "jupyter_gpuslice_kernel", {str(_KERNEL_PACKAGE)!r}
if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        name, folder + "/__init__.py", submodule_search_locations=[folder]
    )
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
importlib.import_module(name + ".peer").install()
"""


class RankDiedError(Exception):
    """The process of a rank is gone; ``how`` says in what way, ``tail`` is what it wrote last."""

    def __init__(self, rank: int, how: str, tail: str = "") -> None:
        super().__init__(f"Rank {rank} {how}.")
        self.rank = rank
        self.how = how
        self.tail = tail


class StartFailedError(Exception):
    """A rank's kernel did not start."""


class Member:
    """One rank's kernel and the three channels to it."""

    def __init__(self, rank: int, kernel_id: str, manager: Any, log: Path) -> None:
        self.rank = rank
        self.node: Any = None
        """What started it and ends it: `LocalNode`."""
        self.kernel_id = kernel_id
        self.manager = manager
        self.log = log
        self.process = Process.of(_pid(manager))
        self.on_death: Callable[[Member], None] = lambda member: None
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._unwatch = watch(self.process, self._died)
        self._client = manager.client()
        self._client.start_channels(stdin=False, hb=False)
        self._replies: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._outputs: dict[str, Output] = {}
        self._idle: dict[str, asyncio.Future[None]] = {}
        self._interrupts = 0
        self._late: deque[tuple[str, str]] = deque(maxlen=MOST_LATE)
        self._readers = [
            asyncio.create_task(self._read(self._client.shell_channel, self._reply)),
            asyncio.create_task(self._read(self._client.control_channel, self._reply)),
            asyncio.create_task(self._read(self._client.iopub_channel, self._output)),
        ]

    @property
    def alive(self) -> bool:
        return not self.gone.done()

    async def ready(self) -> None:
        """Wait until the kernel answers, and make a peer of it."""
        try:
            await asyncio.wait_for(self._set_up(), START_SECONDS)
        except asyncio.TimeoutError:
            raise StartFailedError(
                f"Rank {self.rank} did not answer within {START_SECONDS:.0f} s.{self.tail()}"
            ) from None
        except RankDiedError as error:
            raise StartFailedError(f"Rank {self.rank} {error.how}.{self.tail()}") from None

    async def _set_up(self) -> None:
        # The subscription to the kernel's output may come into effect later than the requests.
        heard: list[str] = []
        while not heard:
            await self.request(
                "shell", "kernel_info_request", {}, lambda kind, content: heard.append(kind)
            )
        code = f"exec({_SETUP!r}, {{'__name__': 'jupyter_gpuslice_setup'}})"
        reply = await self.request("shell", "execute_request", execution(code, silent=True))
        if reply.get("status") != "ok":
            why = f"{reply.get('ename')}: {reply.get('evalue')}"
            raise StartFailedError(f"Rank {self.rank} cannot be made a peer: {why}")

    async def ask(
        self, channel: Channel, operation: str, content: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One of the peer's own operations; the reply has ``status``."""
        body = {"operation": operation, **(content or {})}
        return await self.request(channel, "gpuslice_peer_request", body)

    async def request(
        self, channel: Channel, kind: str, content: dict[str, Any], output: Output | None = None
    ) -> dict[str, Any]:
        """Send a message and wait for its reply's content; ``RankDiedError`` if none can come.

        ``output`` gets the output messages that belong to it, all before this returns.
        """
        loop = asyncio.get_running_loop()
        message = self._client.session.msg(kind, content)
        id_ = message["header"]["msg_id"]
        interrupts = self._interrupts
        reply = self._replies[id_] = loop.create_future()
        idle = self._idle[id_] = loop.create_future()
        if output is not None:
            self._outputs[id_] = output
        sender = self._client.shell_channel if channel == "shell" else self._client.control_channel
        try:
            if self.alive:
                sender.send(message)
            await asyncio.wait({reply, idle, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            while not reply.done() and self.alive:
                # A large reply takes longer than the word that the kernel is done with it.
                await asyncio.wait(
                    {reply, self.gone},
                    timeout=REPLY_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not reply.done() and self.alive and self._interrupts != interrupts:
                    # A SIGINT just before or after the handler's own work swallows its reply.
                    return {"status": "error", "ename": "KeyboardInterrupt", "evalue": ""}
            if not reply.done():
                await asyncio.wait({reply}, timeout=0.1)
            if not reply.done():
                raise RankDiedError(self.rank, await self.how_it_ended(), self.tail())
            if output is not None:
                await asyncio.wait(
                    {idle, self.gone}, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            return reply.result()
        finally:
            for table in (self._replies, self._idle, self._outputs):
                table.pop(id_, None)

    async def interrupt(self) -> None:
        self._interrupts += 1
        if self.alive:
            try:
                await self.manager.interrupt_kernel()
            except (OSError, RuntimeError):
                pass

    def kill(self) -> None:
        """SIGKILL to the rank and the processes it started (its process group)."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            if self.process.alive():
                os.kill(self.process.pid, signal.SIGKILL)

    async def how_it_ended(self) -> str:
        """In words, to follow "rank 2"."""
        provisioner = self.manager.provisioner
        status = await provisioner.poll() if provisioner is not None else None
        if status is None:
            return "is gone"
        if status < 0:
            try:
                name = signal.Signals(-status).name
            except ValueError:
                name = f"signal {-status}"
            return f"was killed by {name}"
        return f"ended with exit code {status}"

    def tail(self) -> str:
        """The last lines that the kernel's process wrote, to follow a message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return "\n" + "\n".join(lines[-TAIL_LINES:]) if lines else ""

    def late_output(self) -> list[tuple[str, str]]:
        """Name and text of what was printed since the last cell; asked for once."""
        found = list(self._late)
        self._late.clear()
        return found

    def trim_log(self) -> None:
        """Keep what C libraries wrote to the process's own stderr from filling the disk."""
        try:
            if self.log.stat().st_size > LOG_BYTES:
                os.truncate(self.log, 0)
        except OSError:
            pass

    def close(self) -> None:
        """Let go of the channels; the process is not touched."""
        self._unwatch()
        for reader in self._readers:
            reader.cancel()
        self._client.stop_channels()

    def _died(self) -> None:
        if not self.gone.done():
            # Children that it forked hold its connections open, and other ranks wait at their
            # other ends.
            self.kill()
            self.gone.set_result(None)
            self.on_death(self)

    async def _read(self, channel: Any, take: Callable[[str, dict[str, Any]], None]) -> None:
        while True:
            try:
                message = await channel.get_msg(timeout=None)
            except (ValueError, TypeError, KeyError):
                continue  # not signed with our key, or garbled
            take(message.get("parent_header", {}).get("msg_id", ""), message)

    def _reply(self, id_: str, message: dict[str, Any]) -> None:
        reply = self._replies.get(id_)
        if reply is not None and not reply.done():
            reply.set_result(message["content"])

    def _output(self, id_: str, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content.get("execution_state") == "idle":
            idle = self._idle.get(id_)
            if idle is not None and not idle.done():
                idle.set_result(None)
        output = self._outputs.get(id_)
        if output is not None:
            output(kind, content)
        elif kind == "stream" and id_:
            # A thread of a cell that has ended: shown with the next one.
            self._late.append((str(content["name"]), str(content["text"])[:MOST_LATE_TEXT]))


class Launcher:
    """Starts members and ends them."""

    def __init__(self, serverapp: Any) -> None:
        self.log: Any = getattr(serverapp, "log", None) or logging.getLogger(__name__)
        self._folder = _private_folder()
        parent = serverapp if isinstance(serverapp, Configurable) else None
        config = Config(parent.config if parent is not None else {})
        config.merge({"AsyncKernelManager": {"transport": "ipc"}})
        self._kernels = AsyncMultiKernelManager(
            parent=parent,
            config=config,
            kernel_spec_manager=serverapp.kernel_spec_manager,
            # Without jupyter_client's restarter: what a dead rank means is the group's business.
            kernel_manager_class="jupyter_client.manager.AsyncKernelManager",
            connection_dir=str(self._folder.path),
            log=self.log,
        )

    async def spawn(
        self, rank: int, kernel_name: str, env: Mapping[str, str], cwd: str | None
    ) -> Member:
        """Start the process of a rank; ``StartFailedError`` if there is none after all."""
        kernel_id = str(uuid.uuid4())
        log = self._folder.path / f"{kernel_id}.log"
        try:
            with log.open("ab") as output:
                await self._kernels.start_kernel(
                    kernel_name=kernel_name,
                    kernel_id=kernel_id,
                    env=dict(env),
                    stdout=output,
                    stderr=output,
                    **({"cwd": cwd} if cwd else {}),
                )
            manager = self._kernels.get_kernel(kernel_id)
            manager.shutdown_wait_time = STOP_SECONDS
            return Member(rank, kernel_id, manager, log)
        except Exception as error:
            if kernel_id in self._kernels:
                await self._forget(kernel_id, now=True)
            what = f"{type(error).__name__}: {error}"
            raise StartFailedError(f"Rank {rank} could not be started: {what}") from error

    async def end(self, member: Member, *, now: bool = False) -> None:
        """End a rank with everything it started; it is gone when this returns."""
        now = now or not member.alive
        if now:
            member.kill()
        await self._forget(member.kernel_id, now)
        member.kill()  # children that outlived it
        member.close()
        for _ in range(100):
            if not member.process.alive():
                break
            await asyncio.sleep(0.02)
        member.log.unlink(missing_ok=True)

    async def _forget(self, kernel_id: str, now: bool) -> None:
        try:
            await self._kernels.shutdown_kernel(kernel_id, now=now)
        except Exception as error:
            self.log.warning("A peer's kernel did not end in order: %s", error)
        if kernel_id in self._kernels:
            self._kernels.remove_kernel(kernel_id)

    async def close(self) -> None:
        """To be called when all members have ended."""
        await asyncio.to_thread(self._folder.close)
        self._kernels.context.destroy(linger=0)


def _private_folder() -> OwnFolder:
    """A new folder for sockets.

    The path of a Unix socket has at most 107 characters, and the file's name takes half of them.
    """
    base = tempfile.gettempdir()
    if len(base) > MOST_BASE:
        base = "/tmp"  # noqa: S108 - a folder of our own is made in it
    return OwnFolder(Path(base), _FOLDER)


def execution(code: str, *, silent: bool = False) -> dict[str, Any]:
    """The content of an ``execute_request``. Peers have nobody to ask for input."""
    return {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }


def _pid(manager: Any) -> int:
    provisioner = manager.provisioner
    pid = getattr(provisioner, "pid", None) or getattr(
        getattr(provisioner, "process", None), "pid", None
    )
    if not pid:
        raise StartFailedError("its kernel has no process on this machine")
    return int(pid)
