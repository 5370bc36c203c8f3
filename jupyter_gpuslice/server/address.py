"""Where a server's kernels reach it, and where it finds the broker of its machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

API = "gpuslice/api/v1"
SOCKET = "/run/jupyter-gpuslice/broker.sock"
"""Where a broker listens that is a service of the system, and where servers look for one."""


def server_address(serverapp: Any, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``JUPYTER_GPUSLICE_URL`` and, for a server with a certificate of its own, ``…_CERT``.

    Under a hub the server listens at ``JUPYTERHUB_SERVICE_URL`` and nowhere else.
    """
    hub = environ.get("JUPYTERHUB_SERVICE_URL", "")
    if hub:
        parts = urlsplit(hub)
        port = f":{parts.port}" if parts.port else ""
        netloc = f"{_reachable(parts.hostname or '')}{port}"
        root = urlunsplit((parts.scheme, netloc, "", "", ""))
    elif serverapp.sock:
        root = f"http+unix://{quote(serverapp.sock, safe='')}"
    else:
        scheme = "https" if serverapp.certfile else "http"
        root = f"{scheme}://{_reachable(serverapp.ip)}:{serverapp.port}"
    found = {"JUPYTER_GPUSLICE_URL": f"{root}{serverapp.base_url.rstrip('/')}/{API}"}
    if serverapp.certfile and not hub:
        found["JUPYTER_GPUSLICE_CERT"] = os.path.abspath(serverapp.certfile)
    return found


def _reachable(host: str) -> str:
    """An address to connect to, for one to listen on."""
    if host in ("", "*", "0.0.0.0"):  # noqa: S104 (compared, not bound)
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def broker_socket(setting: str) -> str:
    """The socket to ask: the one that was set, or the system's where it is there; else ``""``."""
    if setting:
        return os.path.expanduser(setting)
    try:
        return SOCKET if stat.S_ISSOCK(os.stat(SOCKET).st_mode) else ""
    except OSError:
        return ""
