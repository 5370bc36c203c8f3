"""A JupyterHub of its own in a temporary directory, started and taken away again as one thing.

The hub, its proxy, the GPU service and the users' servers all run as this OS user on loopback. All
their files are in one directory, which goes when the hub goes. It is for trying things out: nothing
keeps one demo user's processes from another's (a container or systemd spawner would).
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

import psutil

USERS = ("ana", "ben")
ADMIN = "admin"
SIMULATED = "a100-80gb:2"
_CHECKOUT = Path(__file__).resolve().parents[2] / "hub_config" / "one_machine"
START_SECONDS = 90
STOP_SECONDS = 30


class DemoError(Exception):
    """The demo cannot go on; the message is for the person who started it."""


@dataclass(frozen=True)
class DemoUser:
    name: str
    password: str
    admin: bool = False


def free_ports(count: int) -> list[int]:
    """`count` different ports of loopback that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class DemoHub:
    """A running demo. Use it as a context manager, or call `start` and `stop`.

    simulate: the devices to simulate, as `c.GpuSlice.simulate`; empty for the real ones.
    """

    def __init__(self, simulate: str = SIMULATED) -> None:
        self.simulate = simulate
        self.users = [
            DemoUser(name, secrets.token_hex(5), name == ADMIN) for name in (*USERS, ADMIN)
        ]
        self.root = Path()
        self.url = ""
        self._hub: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> DemoHub:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the hub and wait until it answers. DemoError when it does not come up."""
        self.root = Path(tempfile.mkdtemp(prefix="gpuslice-demo-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        port, hub_port, proxy_port, service_port = free_ports(4)
        self.url = f"http://127.0.0.1:{port}/"
        for user in self.users:
            make_home(self.root / "homes" / user.name)
        config = self.root / "jupyterhub_config.py"
        config.touch(mode=0o600)
        config.write_text(
            render_config(
                root=self.root,
                users=self.users,
                simulate=self.simulate,
                url=self.url.rstrip("/"),
                hub_port=hub_port,
                proxy_port=proxy_port,
                service_port=service_port,
            )
        )
        with self.log_path.open("wb") as log:
            self._hub = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(config)],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=hub_environment(),
                # Ctrl-C is for us: the hub is told afterwards, once, and in the right order
                start_new_session=True,
            )
        self.wait_until(self._answers, START_SECONDS, "the hub to answer")

    @property
    def log_path(self) -> Path:
        return self.root / "hub.log"

    def log_tail(self, lines: int = 25) -> str:
        """The end of the hub's log, for a message that says why something failed."""
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def running(self) -> bool:
        """Is the hub's process there? Also remembers its descendants, to be sure of them later."""
        if self._hub is None or self._hub.poll() is not None:
            return False
        try:
            family = psutil.Process(self._hub.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return False
        self._family.update((each.pid, each) for each in family)
        return True

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `done()`, as long as the hub runs. DemoError after `seconds`."""
        deadline = time.monotonic() + seconds
        while not done():
            if not self.running():
                raise DemoError(
                    f"The hub ended while waiting for {what}. Its last words:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise DemoError(
                    f"Waited {seconds:.0f} s for {what}. The hub's last words:\n{self.log_tail()}"
                )
            time.sleep(0.25)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}hub/health", timeout=5) as response:  # noqa: S310 - our own URL
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        """Stop the hub and everything that it started, and remove its directory."""
        self.running()
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.send_signal(signal.SIGTERM)
            try:
                hub.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                hub.kill()
                hub.wait()
        # psutil knows a process by its start time too: a pid that was given out again is safe
        left = [each for each in self._family.values() if each.is_running()]
        for each in left:
            _quietly(each.terminate)
        for each in psutil.wait_procs(left, timeout=5)[1]:
            _quietly(each.kill)
        self._family.clear()
        if self.root != Path():
            shutil.rmtree(self.root, ignore_errors=True)


def hub_environment() -> dict[str, str]:
    """The hub's environment: this Python's commands first on the path, a secret for its proxy."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(32)}


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except psutil.NoSuchProcess:
        pass


def make_home(home: Path) -> None:
    """A user's home with the example notebook in it, this Python's commands in its terminals, and
    no question about news on first sight."""
    home.mkdir(parents=True, mode=0o700)
    (home / "example.ipynb").write_text(example_notebook(), encoding="utf-8")
    # A terminal is a login shell, whose path many systems set anew: without this it would know
    # neither this `jupyter` nor this `python`.
    path = f'PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"; export PATH\n'
    for name in (".profile", ".zprofile"):
        (home / name).write_text(path)
    settings = home / ".jupyter" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )


def example_notebook() -> str:
    """The example as JupyterLab would have saved it with this Python.

    Lab writes the kernel's language into a notebook that tells less of it, which then looks
    unsaved before anybody has touched it.
    """
    from ipykernel.ipkernel import IPythonKernel

    text = files(__package__).joinpath("example.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    notebook["metadata"]["language_info"] = IPythonKernel.language_info
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def one_machine() -> Path:
    """The folder with the ready-made configuration of a hub on one machine, which the demo runs.

    A wheel has it in this package, a checkout among the other ready-made ones.
    """
    installed = Path(str(files(__package__).joinpath("one_machine")))
    return installed if installed.is_dir() else _CHECKOUT


def render_config(
    *,
    root: Path,
    users: list[DemoUser],
    simulate: str,
    url: str,
    hub_port: int,
    proxy_port: int,
    service_port: int,
) -> str:
    """The text of jupyterhub_config.py: that of a hub on one machine, then what makes it a demo."""
    spawner_args = ["--allow-root"] if os.geteuid() == 0 else []
    passwords = {user.name: user.password for user in users}
    admins = {user.name for user in users if user.admin}
    return f"""\
from jupyter_gpuslice.demo.parent import end_with
from jupyter_gpuslice.hub import configure

load_subconfig({str(one_machine() / "jupyterhub_config.py")!r})

# The rest makes it a demo: free ports, simulated devices where there are no real ones, fixed users,
# one OS account, loopback only, nothing kept.
end_with({os.getpid()}, {str(root)!r})
configure(c, profiles=c.GpuSliceSpawner.profiles, port={service_port})
c.GpuSlice.simulate = {simulate!r}
c.JupyterHub.spawner_class = "jupyter_gpuslice.hub.leased.GpuSliceDemoSpawner"
c.JupyterHub.authenticator_class = "jupyter_gpuslice.demo.authenticator.DemoAuthenticator"
c.DemoAuthenticator.passwords = {passwords!r}
c.DemoAuthenticator.allowed_users = {set(passwords)!r}
c.DemoAuthenticator.admin_users = {admins!r}
c.JupyterHub.bind_url = {url!r}
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.db_url = {f"sqlite:///{root}/jupyterhub.sqlite"!r}
c.JupyterHub.cookie_secret_file = {str(root / "cookie_secret")!r}
c.ConfigurableHTTPProxy.command = [{sys.executable!r}, "-m", "jupyter_gpuslice.demo.proxy"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = {str(root / "proxy.pid")!r}
c.SimpleLocalProcessSpawner.home_dir_template = {str(root / "homes" / "{username}")!r}
c.Spawner.default_url = "/lab/tree/example.ipynb"
c.Spawner.cmd = [{sys.executable!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = {spawner_args!r}
"""
