"""How the hub's spawners speak to the GPU service: asynchronously, and patient while it starts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from ..devices.process import Process
from ..server.link import Link, LinkError
from .availability import Availability

SECRET_VARIABLE = "JUPYTER_GPUSLICE_HUB_SECRET"  # noqa: S105 - the variable's name
SETTINGS_VARIABLE = "JUPYTER_GPUSLICE_HUB_SETTINGS"

_secret = ""


def hub_secret() -> str:
    """The secret that this hub and its GPU service share: made once, in memory, never written."""
    global _secret
    if not _secret:
        _secret = secrets.token_urlsafe(32)
    return _secret


def session_id(user: str, server: str) -> str:
    """The holder's id of a user's server; JupyterHub allows no slash in either name."""
    return f"{user}/{server}"


class HubLink(Link):
    """The GPU service's API at ``url`` (it ends with ``/api/v1/``), as the hub may use it."""

    def __init__(self, url: str, secret: str) -> None:
        super().__init__(url, {"Authorization": f"gpuslice {secret}"})

    async def availability(self, requests: Iterable[str], user: str = "") -> Availability:
        """How much of each request is free, and what the user holds and has used.

        It never raises: what is unknown says so.
        """
        query = urlencode([*(("request", request) for request in requests), ("user", user)])
        try:
            return Availability.from_dict(await self.call("GET", f"availability?{query}"))
        except (LinkError, KeyError, TypeError):
            return Availability(note="What is free is unknown: the GPU service does not answer.")

    async def ask(
        self,
        session: str,
        request: str,
        ttl: float | None,
        wait: bool,
        patience: float,
        priority: int = 0,
        limits: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Ask for a lease for a session; the lease is granted or queued.

        ``limits`` are what the session's user may hold: see `broker.limits.Limits`.
        """
        body = {
            "request": request,
            "holder": {"kind": "session", "id": session},
            "wait": wait,
            "ttl": ttl,
            "priority": priority,
            "limits": limits,
        }
        return await self.call("POST", "leases", body, patience=patience)

    async def wait(
        self, lease: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None], patience: float
    ) -> dict[str, Any]:
        """The lease when it no longer waits; ``tell(lease)`` each time that it was looked at."""
        current = dict(lease)
        while current["state"] == "queued":
            tell(current)
            await asyncio.sleep(1)
            current = await self.call("GET", f"leases/{lease['id']}", patience=patience)
        return current

    async def grant(self, lease_id: str, patience: float) -> dict[str, Any]:
        """What the session's server is told of a granted lease."""
        return await self.call("GET", f"leases/{lease_id}/grant", patience=patience)

    async def take_up(self, lease_id: str, process: Process, patience: float) -> None:
        """Tell which process holds the lease from now on."""
        body = {"processes": [process.to_dict()]}
        await self.call("PUT", f"leases/{lease_id}/processes", body, patience=patience)

    async def release(self, lease_id: str) -> None:
        """Give a lease back or leave the queue; one that has ended already is no error."""
        try:
            await self.call("DELETE", f"leases/{lease_id}")
        except LinkError as error:
            if error.status != 404:
                raise
