"""A little real HTTP server, and real kernels with the kernel side loaded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

DEADLINE = 60.0


class LittleServer:
    """Answers by ``routes``: ``(method, path) -> callable(handler)``; keeps what it was asked."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Callable[[Any], None]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.connections: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # as Tornado does when it is told to
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                outer.connections.append(1)

            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append((self.command, self.path, body))
                route = outer.routes.get((self.command, self.path.split("?")[0]))
                if route is None:
                    self.answer({"message": "There is no such thing.", "reason": "not_found"}, 404)
                    return
                route(self)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_one  # noqa: N815

            def answer(self, body: Any, status: int = 200) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def start_lines(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/x-ndjson")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()

            def line(self, message: Any) -> None:
                self.raw(json.dumps(message).encode() + b"\n")

            def raw(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def end_lines(self) -> None:
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/gpuslice/api/v1"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def on(self, method: str, path: str, route: Callable[[Any], None]) -> None:
        self.routes[method, f"/gpuslice/api/v1/{path}"] = route

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def little() -> Iterator[LittleServer]:
    server = LittleServer()
    yield server
    server.close()


class Kernel:
    """A real kernel; ``run`` executes a cell and gives back all that it said."""

    def __init__(self, env: dict[str, str], top_level: Path | None = None) -> None:
        full = {**os.environ, **env}
        if top_level is not None:
            full["PYTHONPATH"] = str(top_level)
        self.manager = KernelManager()
        self.manager.start_kernel(env=full)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE)

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def run(self, code: str, timeout: float = DEADLINE) -> Said:
        return self.wait(self.start(code), timeout)

    def wait(self, message_id: str, timeout: float = DEADLINE) -> Said:
        said = Said()
        deadline = time.monotonic() + timeout
        while True:
            message = self.client.get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.01))
            said.all.append(message)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            said.messages.append(message)
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=max(deadline - time.monotonic(), 0.01))
            if reply["parent_header"].get("msg_id") == message_id:
                said.status = reply["content"]["status"]
                return said

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Said:
    """What a kernel said about one cell (``messages``), and on the way (``all``)."""

    def __init__(self) -> None:
        self.status = ""
        self.messages: list[dict[str, Any]] = []
        self.all: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] == kind]

    @property
    def stdout(self) -> str:
        return "".join(c["text"] for c in self.of("stream") if c["name"] == "stdout")

    @property
    def stderr(self) -> str:
        return "".join(c["text"] for c in self.of("stream") if c["name"] == "stderr")

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self.of("error")


@pytest.fixture
def kernel() -> Iterator[Callable[..., Kernel]]:
    """Starts kernels with an environment; they end with the test."""
    started: list[Kernel] = []

    def start(env: dict[str, str] | None = None, top_level: Path | None = None) -> Kernel:
        started.append(Kernel(env or {}, top_level))
        return started[-1]

    yield start
    for one in started:
        one.close()


class JupyterServer:
    """A real Jupyter Server with the extension and two simulated devices."""

    def __init__(self, folder: Path, simulate: str = "a100-40gb:2") -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.runtime = folder / "runtime"
        work = folder / "work"
        work.mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
        env |= {
            "HOME": str(folder),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
        }
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            *("--IdentityProvider.token=secret", f"--ServerApp.port={port}"),
            *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={work}"),
            "--ServerApp.jpserver_extensions={'jupyter_gpuslice': True}",
            f"--GpuSlice.simulate={simulate}",
            f"--GpuSlice.ledger={folder / 'ledger.sqlite'}",
        ]
        self._log = open(folder / "log", "w+b")  # noqa: SIM115 (closed with the server)
        self._process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + DEADLINE
        while not self._there():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log)
            time.sleep(0.1)

    def _there(self) -> bool:
        try:
            return bool(self.api("GET", "gpuslice/api/v1/pool")["devices"])
        except (OSError, ValueError):
            return False

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def api(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            method=method,
            headers={"Authorization": "token secret"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.loads(answer.read() or b"null")

    def kernel(self) -> ServerKernel:
        return ServerKernel(self)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


class ServerKernel(Kernel):
    """A kernel that the server started, talked to over its own sockets."""

    def __init__(self, server: JupyterServer) -> None:
        self.server = server
        self.id = server.api("POST", "api/kernels", {"name": "python3"})["id"]
        self._connect()

    def _connect(self) -> None:
        file = self.server.runtime / f"kernel-{self.id}.json"
        self.client = BlockingKernelClient(connection_file=str(file))
        self.client.load_connection_file()
        # No heartbeat: on a busy machine a slow one would read as death.
        self.client.start_channels(hb=False)
        self.client.wait_for_ready(timeout=DEADLINE)

    def restart(self) -> None:
        self.client.stop_channels()
        self.server.api("POST", f"api/kernels/{self.id}/restart")
        self._connect()

    def interrupt(self) -> None:
        self.server.api("POST", f"api/kernels/{self.id}/interrupt")

    def close(self) -> None:
        self.client.stop_channels()
        self.server.api("DELETE", f"api/kernels/{self.id}")


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    server = JupyterServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def notebook(jupyter: JupyterServer) -> Iterator[ServerKernel]:
    """A kernel of the real server; its groups and leases end with the test."""
    one = jupyter.kernel()
    yield one
    one.close()
