"""The Jupyter servers that the command line asks, and how they know who asks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

API = "gpuslice/api/v1/"
TIMEOUT_SECONDS = 10


class CliError(Exception):
    """A command cannot do what was asked; the message is all that the person sees."""


class Server(Protocol):
    """A server that can be asked. `api` is the address of its REST interface, with a slash."""

    @property
    def api(self) -> str: ...

    @property
    def name(self) -> str:
        """What people call it: its address, as a rule."""

    def get(self, path: str, **query: str) -> Any:
        """The decoded answer to GET. CliError with the server's own words when it refuses."""


class SessionServer:
    """The server that started this kernel or terminal, asked with what it gave to us."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        from .kernel.client import Client
        from .kernel.errors import GpuSliceError

        self.api = environ["JUPYTER_GPUSLICE_URL"].rstrip("/") + "/"
        self.name = self.api.removesuffix(API)
        self._error = GpuSliceError
        try:
            self._client = Client.from_environment(environ)
        except GpuSliceError as error:
            raise CliError(str(error)) from error

    def get(self, path: str, **query: str) -> Any:
        try:
            return self._client.get(path, **query)
        except self._error as error:
            raise CliError(str(error)) from error


class MachineBroker:
    """The broker of a shared machine, at a Unix socket: it knows who asks."""

    def __init__(self, socket: str) -> None:
        from .kernel.client import Client

        self.api = f"http+unix://{quote(os.path.abspath(socket), safe='')}/api/v1/"
        self._socket = socket
        self._client = Client(self.api, "")

    @property
    def name(self) -> str:
        return f"The GPU broker of this machine ({self._socket})"

    def get(self, path: str, **query: str) -> Any:
        return self._asked("GET", path, query=query)

    def patch(self, path: str, body: Any) -> Any:
        return self._asked("PATCH", path, body)

    def _asked(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        from .kernel.errors import GpuSliceError, NotReachableError

        try:
            return self._client.call(method, path, body, timeout=TIMEOUT_SECONDS, **more)
        except NotReachableError as error:
            raise CliError(
                f"No GPU broker answers at {self._socket}. `systemctl status jupyter-gpuslice` "
                "tells why, where it is a service of the system."
            ) from error
        except GpuSliceError as error:
            raise CliError(str(error)) from error


@dataclass(frozen=True)
class RunningServer:
    """A Jupyter server of this user's, asked with its own token."""

    api: str
    token: str

    @property
    def name(self) -> str:
        return self.api.removesuffix(API)

    def get(self, path: str, **query: str) -> Any:
        url = self.api + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"token {self.token}"
        try:
            # find_servers lets only http(s) addresses in
            with urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
                return json.load(response)
        except HTTPError as error:
            raise CliError(f"{self.api} answered {_words_of(error)}") from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise CliError(f"{self.api} cannot be asked: {reason}") from error


def _words_of(error: HTTPError) -> str:
    if error.code == 404:
        return "404: it does not run the jupyter_gpuslice extension."
    try:
        body = json.loads(error.read())
        words = " ".join(str(body[key]) for key in ("message", "hint") if body.get(key))
    except (OSError, ValueError, AttributeError, TypeError):
        words = ""
    return f"{error.code}: {words or error.reason}"


def session_server(environ: Mapping[str, str] = os.environ) -> Server | None:
    """This session's own server, where we are in one of its kernels or terminals."""
    if environ.get("JUPYTER_GPUSLICE_URL") and environ.get("JUPYTER_GPUSLICE_TOKEN"):
        return SessionServer(environ)
    return None


def find_servers(environ: Mapping[str, str] = os.environ) -> list[Server]:
    """The servers to ask: this session's own inside a kernel or terminal, else all that run.

    Outside a session the broker of a shared machine is asked first.
    """
    own = session_server(environ)
    if own is not None:
        return [own]

    from jupyter_server.serverapp import list_running_servers

    # a server under a hub has no token of its own, but takes its session's
    hub_token = environ.get("JUPYTERHUB_API_TOKEN", "")
    found = {server.api: server for server in servers_of_hubs()}
    for info in list_running_servers():
        if str(info.get("url", "")).startswith(("http://", "https://")):
            api = f"{info['url'].rstrip('/')}/{API}"
            found.setdefault(api, RunningServer(api, info.get("token") or hub_token))
    from .server.address import broker_socket

    socket = broker_socket("")
    return [*([MachineBroker(socket)] if socket else []), *found.values()]


def servers_of_hubs() -> list[RunningServer]:
    """The servers that hubs started on this machine as this very account.

    Their own environment tells where they listen and has the token that they, and nobody else, are
    asked with. Their runtime files may be in another home.
    """
    import psutil

    found = {}
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid():
                continue
            environ = process.environ()
        except psutil.Error:
            continue
        url = environ.get("JUPYTERHUB_SERVICE_URL", "")
        token = environ.get("JUPYTERHUB_API_TOKEN", "")
        # Services of a hub have an address as well, but no user.
        if environ.get("JUPYTERHUB_USER") and token and url.startswith(("http://", "https://")):
            api = f"{url.rstrip('/')}/{API}".replace("://0.0.0.0:", "://127.0.0.1:")
            found[api] = RunningServer(api, token)
    return list(found.values())
