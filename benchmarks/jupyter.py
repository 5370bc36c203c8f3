"""Real Jupyter Servers and kernels for the benchmarks to measure."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

STARTS_WITHIN = 60.0


class Server:
    """A Jupyter Server of its own, in a folder of its own; ``async with`` starts and stops it."""

    def __init__(self, *flags: str, extension: bool = True, env: Mapping[str, str] | None = None):
        self.folder = tempfile.TemporaryDirectory(prefix="gpuslice-benchmark-")
        self.token = secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._argv = [
            sys.executable,
            "-m",
            "jupyter_server",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            "--ServerApp.open_browser=False",
            "--ServerApp.allow_root=True",
            f"--ServerApp.root_dir={self.folder.name}",
            f"--ServerApp.jpserver_extensions=jupyter_gpuslice={extension}",
            *flags,
        ]
        home = Path(self.folder.name)
        self._env = {
            **os.environ,
            "JUPYTER_TOKEN": self.token,
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "IPYTHONDIR": str(home / "ipython"),
            **(env or {}),
        }

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def _start(self) -> None:
        self._log = (Path(self.folder.name) / "server.log").open("w+")
        self._process = subprocess.Popen(
            self._argv, env=self._env, stdout=self._log, stderr=subprocess.STDOUT
        )

    async def __aenter__(self) -> Server:
        self._start()
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                await self.call("GET", "api/status")
                return self
            except Exception:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._log.seek(0)
                    print(self._log.read(), file=sys.stderr)
                    raise
                await asyncio.sleep(0.1)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()
        self.folder.cleanup()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One REST call; the answer's JSON."""
        request = HTTPRequest(
            f"http://127.0.0.1:{self.port}/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
            body=None if body is None else json.dumps(body),
            request_timeout=60,
        )
        response = await AsyncHTTPClient().fetch(request)
        return json.loads(response.body) if response.body else None

    async def socket(self, path: str) -> WebSocketClientConnection:
        """A websocket of the server, without Nagle's delay on this end."""
        connection = await websocket_connect(
            HTTPRequest(
                f"ws://127.0.0.1:{self.port}/{path}",
                headers={"Authorization": f"token {self.token}"},
            )
        )
        connection.protocol.stream.set_nodelay(True)  # type: ignore[union-attr]
        return connection

    async def kernel(self) -> Kernel:
        """A new kernel, ready, behind its websocket."""
        model = await self.call("POST", "api/kernels", {"name": "python3"})
        session = uuid.uuid4().hex
        path = f"api/kernels/{model['id']}/channels?session_id={session}"
        kernel = Kernel(model["id"], await self.socket(path), session)
        await kernel.run("pass")
        return kernel


class Kernel:
    """A kernel behind the server's websocket, as a browser uses it."""

    def __init__(self, id_: str, connection: WebSocketClientConnection, session: str) -> None:
        self.id = id_
        self._connection = connection
        self._session = session

    async def run(self, code: str) -> float:
        """Seconds until the cell's reply and idle status are here; ``RuntimeError`` if it fails."""
        id_ = uuid.uuid4().hex
        message = {
            "header": {
                "msg_id": id_,
                "msg_type": "execute_request",
                "username": "",
                "session": self._session,
                "version": "5.3",
                "date": "",
            },
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "store_history": False},
            "channel": "shell",
            "buffers": [],
        }
        start = time.perf_counter()
        await self._connection.write_message(json.dumps(message))
        reply: Any = None
        idle = False
        while reply is None or not idle:
            answer = json.loads(str(await self._connection.read_message()))
            if answer["parent_header"].get("msg_id") != id_:
                continue
            if answer["msg_type"] == "execute_reply":
                reply = answer["content"]
            elif answer["msg_type"] == "status":
                idle = answer["content"]["execution_state"] == "idle"
        taken = time.perf_counter() - start
        if reply["status"] != "ok":
            raise RuntimeError(f"{code!r}: {reply.get('ename')}: {reply.get('evalue')}")
        return taken

    def close(self) -> None:
        self._connection.close()
