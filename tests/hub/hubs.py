"""A real JupyterHub with simulated devices, as a thing that tests start, ask and kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupyterhub
import psutil
import requests
import yaml

DEADLINE = 60.0
"""Seconds within which anything that a test waits for happens, however busy the machine is."""

LIGHT = ["-S", "-E", str(Path(__file__).with_name("light_server.py"))]

PROFILES = {
    "profiles": [
        {
            "slug": "slice",
            "display_name": "A slice",
            "default": True,
            "choices": [
                {"request": 0.25, "label": "A quarter"},
                {"request": 0.5, "label": "Half", "default": True},
            ],
        },
        {"slug": "whole", "display_name": "Whole GPUs", "choices": [1, 2, 3]},
        {"slug": "cpu", "display_name": "No GPU", "request": 0},
        {"slug": "custom", "display_name": "As you ask", "request": 1, "custom": True, "max": 1},
        {"slug": "big", "display_name": "For some", "request": 2, "groups": ["ml"]},
        {"slug": "short", "display_name": "For a moment", "request": 0.25, "ttl": "14s"},
    ]
}

CONFIG = """
import os
import jupyterhub
from jupyterhub.services.service import _ServiceSpawner
from jupyter_gpuslice.hub import configure

configure(c, profiles="profiles.yaml", port={service})
c.GpuSlice.simulate = {simulate!r}
c.GpuSliceSpawner.queue_timeout = 300
c.JupyterHub.spawner_class = "jupyter_gpuslice.hub.leased.GpuSliceDemoSpawner"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"admin"}}
c.JupyterHub.load_groups = {{"ml": {{"users": ["mia"]}}}}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.services.append({{"name": "test", "api_token": "{token}"}})
TEST_SCOPES = [
    "admin:users", "admin:servers", "tokens", "read:metrics", "access:services!service=gpuslice"
]
c.JupyterHub.load_roles.append(
    {{"name": "test", "services": ["test"], "scopes": TEST_SCOPES}}
)
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy}"
c.ConfigurableHTTPProxy.command = [
    {python!r}, "-c", "from configurable_http_proxy.cli import main; main()"
]
c.SimpleLocalProcessSpawner.home_dir_template = os.path.abspath("homes/{{username}}")
c.Spawner.cmd = {cmd!r}
c.Spawner.environment = {{"LIGHT_VERSION": jupyterhub.__version__}}
# A service that was killed is started again at the next look at it: JupyterHub's 30 s are long.
service_poll = 2
start_service = _ServiceSpawner.start


def start_watched(self):
    self.poll_interval = service_poll
    return start_service(self)


_ServiceSpawner.start = start_watched
{extra}
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def eventually(look: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The first true value of ``look()``."""
    deadline = time.monotonic() + seconds
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)


class Hub:
    """A JupyterHub in a folder of its own, and its REST interfaces."""

    def __init__(
        self,
        root: Path,
        simulate: str = "a100-80gb:2",
        extra: str = "",
        environ: dict[str, str] | None = None,
    ) -> None:
        self.root = root
        self.environ = environ or {}
        self.token = "test-token-" + os.urandom(8).hex()
        public, hub, proxy, service = free_ports(4)
        self.url = f"http://127.0.0.1:{public}"
        self.service_url = f"http://127.0.0.1:{service}"
        self.api = f"{self.service_url}/services/gpuslice/api/v1"
        self.hub_api = f"http://127.0.0.1:{hub}/hub/api"
        self.process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()
        (root / "profiles.yaml").write_text(yaml.safe_dump(PROFILES, sort_keys=False))
        (root / "jupyterhub_config.py").write_text(
            CONFIG.format(
                service=service,
                simulate=simulate,
                token=self.token,
                public=public,
                hub=hub,
                proxy=proxy,
                python=sys.executable,
                cmd=[sys.executable, *LIGHT],
                extra=extra,
            )
        )
        self.proxy_token = os.urandom(16).hex()

    # Processes

    def start(self) -> None:
        with (self.root / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", "jupyterhub_config.py"],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environ, "CONFIGPROXY_AUTH_TOKEN": self.proxy_token},
                start_new_session=True,
            )
        self.wait_up()

    def wait_up(self) -> None:
        def up() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the hub ended:\n{self.log()[-4000:]}"
            try:
                return requests.get(f"{self.url}/hub/health", timeout=5).ok
            except requests.ConnectionError:
                return False

        eventually(up, "the hub")
        self.family()

    def family(self) -> list[psutil.Process]:
        """The hub's descendants; remembered, so that none is left at the end."""
        if self.process is None or self.process.poll() is not None:
            return []
        found = psutil.Process(self.process.pid).children(recursive=True)
        self._seen.update(found)
        return found

    def service(self) -> psutil.Process | None:
        for each in self.family():
            try:
                if "jupyter_gpuslice.hub.service" in each.cmdline():
                    return each
            except psutil.NoSuchProcess:
                continue
        return None

    def server(self, user: str, name: str = "") -> psutil.Process:
        """The process of a user's server."""
        for each in psutil.process_iter():
            try:
                environ = each.environ()
                if (
                    environ.get("JUPYTERHUB_API_URL") == self.hub_api
                    and environ.get("JUPYTERHUB_USER") == user
                    and environ.get("JUPYTERHUB_SERVER_NAME") == name
                    and any("server" in part or "singleuser" in part for part in each.cmdline())
                ):
                    self._seen.add(each)
                    return each
            except psutil.Error:
                continue
        raise AssertionError(f"{user} has no server {name!r}")

    def stop(self) -> None:
        self.family()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        left = [each for each in self._seen if each.is_running()]
        for each in left:
            each.kill()
        psutil.wait_procs(left, 10)

    def log(self) -> str:
        return (self.root / "hub.log").read_text(errors="replace")

    # The hub's REST interface

    def hub(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        return requests.request(
            method,
            f"{self.url}/hub/api/{path}",
            headers={"Authorization": f"token {self.token}"},
            timeout=120,
            **kwargs,
        )

    def user(self, name: str) -> None:
        response = self.hub("POST", f"users/{name}")
        assert response.status_code in (201, 409), response.text

    def user_token(self, name: str, scopes: list[str] | None = None) -> str:
        self.user(name)
        body = {"scopes": scopes} if scopes is not None else {}
        response = self.hub("POST", f"users/{name}/tokens", json=body)
        assert response.status_code == 201, response.text
        token: str = response.json()["token"]
        return token

    def spawn(self, user: str, options: Any = None, name: str = "") -> requests.Response:
        self.user(user)
        path = f"users/{user}/servers/{name}" if name else f"users/{user}/server"
        if options is None:
            return self.hub("POST", path)
        # The whole body is the options in JupyterHub 5.
        body = options if jupyterhub.version_info < (6,) else {"user_options": options}
        return self.hub("POST", path, json=body)

    def ready(self, user: str, name: str = "") -> None:
        def look() -> bool:
            server = self.model(user, name)
            assert server is not None, f"{user} has no server {name!r}"
            return bool(server["ready"])

        eventually(look, f"the server of {user}")
        self.family()

    def run(self, user: str, options: Any = None, name: str = "") -> None:
        """Start a server and wait until it is ready."""
        response = self.spawn(user, options, name)
        assert response.status_code in (201, 202), response.text
        self.ready(user, name)

    def ask_server(self, user: str, path: str, name: str = "") -> Any:
        """What a light server answers; the hub's proxy is not in between."""
        port = psutil.Process(self.server(user, name).pid).net_connections("tcp")[0].laddr.port
        return requests.get(f"http://127.0.0.1:{port}/{path}", timeout=30).json()

    def end(self, user: str, name: str = "") -> None:
        """Stop a server (or cancel its start) and wait until it is gone."""
        path = f"users/{user}/servers/{name}" if name else f"users/{user}/server"
        response = self.hub("DELETE", path)
        assert response.status_code in (202, 204), response.text

        def gone() -> bool:
            server = self.model(user, name)
            return server is None or (not server["ready"] and not server["pending"])

        eventually(gone, f"the end of {user}'s server")

    def model(self, user: str, name: str = "") -> dict[str, Any] | None:
        response = self.hub("GET", f"users/{user}")
        assert response.ok, response.text
        server: dict[str, Any] | None = response.json()["servers"].get(name)
        return server

    def progress(self, user: str, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The events of the progress page up to one for which ``until`` is true."""
        # From the hub itself: the proxy from PyPI does not stream.
        events = []
        deadline = time.monotonic() + DEADLINE
        with requests.get(
            f"{self.hub_api}/users/{user}/server/progress",
            headers={"Authorization": f"token {self.token}"},
            stream=True,
            timeout=DEADLINE,
        ) as response:
            for line in response.iter_lines(decode_unicode=True):
                assert time.monotonic() < deadline, f"not told: {events}"
                if line.startswith("data:"):
                    events.append(json.loads(line[5:]))
                    if until(events[-1]):
                        break
        return events

    def revoke(self, user: str, token: str) -> None:
        """Take a token of a user's back."""
        mine = {"Authorization": f"token {token}"}
        me = requests.get(f"{self.url}/hub/api/user", headers=mine, timeout=30)
        response = self.hub("DELETE", f"users/{user}/tokens/{me.json()['token_id']}")
        assert response.status_code == 204, response.text

    def end_of_news(self, user: str) -> None:
        """Read a user's news, take the token back, and wait until the stream has ended."""
        token = self.user_token(user)
        with self.gpu("GET", "events", token, stream=True) as news:
            lines = news.iter_lines()
            assert json.loads(next(lines))["schema"] == "pool"
            self.revoke(user, token)
            deadline = time.monotonic() + DEADLINE
            for _ in lines:
                assert time.monotonic() < deadline, "news are told without the right to them"

    # The GPU service's REST interface

    def gpu(
        self, method: str, path: str, token: str | None = None, **kwargs: Any
    ) -> requests.Response:
        headers = {"Authorization": f"token {token}"} if token else {}
        return requests.request(
            method,
            f"{self.api}/{path}",
            headers=headers,
            timeout=30,
            allow_redirects=False,
            **kwargs,
        )

    def leases(self, token: str | None = None) -> list[dict[str, Any]]:
        response = self.gpu("GET", "leases", token or self.admin())
        assert response.ok, response.text
        found: list[dict[str, Any]] = response.json()["leases"]
        return found

    def admin(self) -> str:
        if not hasattr(self, "_admin"):
            self._admin = self.user_token("admin")
        return self._admin

    def lease_of(self, user: str, name: str = "") -> dict[str, Any]:
        found = [
            lease
            for lease in self.leases()
            if lease["holder"]["user"] == user and lease["holder"]["name"] == name
        ]
        assert len(found) == 1, found
        return found[0]

    def pool(self) -> dict[str, Any]:
        response = self.gpu("GET", "pool", self.admin())
        assert response.ok, response.text
        found: dict[str, Any] = response.json()
        return found

    def free_mib(self) -> list[int]:
        return sorted(device["free_mib"] for device in self.pool()["devices"])
