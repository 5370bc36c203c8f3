"""How the hub's spawners speak to the GPU service: asynchronously, and patient while it starts."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..devices.process import Process
from .availability import Availability

SECRET_VARIABLE = "JUPYTER_GPUSLICE_HUB_SECRET"  # noqa: S105 - the variable's name
SETTINGS_VARIABLE = "JUPYTER_GPUSLICE_HUB_SETTINGS"

_secret = ""

CALL_SECONDS = 10.0
RETRY_SECONDS = 0.25
MOST_CALLS = 1000
"""At once: one for each server that starts or waits."""


def hub_secret() -> str:
    """The secret that this hub and its GPU service share: made once, in memory, never written."""
    global _secret
    if not _secret:
        _secret = secrets.token_urlsafe(32)
    return _secret


def session_id(user: str, server: str) -> str:
    """The holder's id of a user's server; JupyterHub allows no slash in either name."""
    return f"{user}/{server}"


class LinkError(Exception):
    """The service refused (``status`` is an HTTP status) or could not be reached (503)."""

    def __init__(self, status: int, reason: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.status = status
        self.reason = reason
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Link:
    """The service's API at ``url`` (it ends with ``/api/v1/``), as the hub may use it."""

    url: str
    secret: str

    async def call(
        self, method: str, path: str, body: Any = None, *, patience: float = 0.0
    ) -> dict[str, Any]:
        """The JSON of an answer. :class:`LinkError` if it is a refusal.

        For ``patience`` seconds a service that does not answer is asked again: it may be starting.
        """
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                return await self._once(method, path, body)
            except LinkError as error:
                if error.reason != "unreachable":
                    raise
                if asyncio.get_running_loop().time() + RETRY_SECONDS > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _once(self, method: str, path: str, body: Any) -> dict[str, Any]:
        request = HTTPRequest(
            self.url + path,
            method=method,
            headers={"Authorization": f"gpuslice {self.secret}"},
            body=None if body is None else json.dumps(body),
            connect_timeout=CALL_SECONDS,
            request_timeout=CALL_SECONDS,
            allow_nonstandard_methods=True,
            follow_redirects=False,
        )
        try:
            response = await _client().fetch(request)
            answer: dict[str, Any] = json.loads(response.body)
        except HTTPClientError as error:
            raise _refusal(error) from error
        except (OSError, ValueError) as error:
            raise LinkError(503, "unreachable", "The GPU service does not answer.") from error
        return answer

    async def availability(self, requests: Iterable[str]) -> Availability:
        """How much of each request is free. It never raises: what is unknown says so."""
        query = urlencode([("request", request) for request in requests])
        try:
            return Availability.from_dict(await self.call("GET", f"availability?{query}"))
        except (LinkError, KeyError, TypeError):
            return Availability(note="What is free is unknown: the GPU service does not answer.")

    async def ask(
        self, session: str, request: str, ttl: float | None, wait: bool, patience: float
    ) -> dict[str, Any]:
        """Ask for a lease for a session; the lease is granted or queued."""
        body = {
            "request": request,
            "holder": {"kind": "session", "id": session},
            "wait": wait,
            "ttl": ttl,
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


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, SimpleAsyncHTTPClient] = WeakKeyDictionary()


def _client() -> SimpleAsyncHTTPClient:
    """A client of our own for this loop.

    The hub's shared one has ten places, and a service that hangs would fill them: then the hub
    could not even speak to its proxy.
    """
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = SimpleAsyncHTTPClient(force_instance=True, max_clients=MOST_CALLS)
    return _clients[loop]


def _refusal(error: HTTPClientError) -> LinkError:
    if error.response is None or error.code in (502, 503, 504, 599):
        fields = _fields(error)
        if fields and fields.get("reason", "").startswith("ledger"):
            return LinkError(503, fields["reason"], fields["message"], fields.get("hint", ""))
        return LinkError(503, "unreachable", "The GPU service does not answer.")
    fields = _fields(error)
    message = fields.get("message") or f"The GPU service answered {error.code}."
    return LinkError(
        error.code, fields.get("reason") or "failed", message, fields.get("hint") or ""
    )


def _fields(error: HTTPClientError) -> dict[str, Any]:
    try:
        fields = json.loads(error.response.body) if error.response is not None else {}
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
