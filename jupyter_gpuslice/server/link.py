"""How a program asks the broker of its node over HTTP, or over a Unix socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

CALL_SECONDS = 10.0
RETRY_SECONDS = 0.25
MOST_CALLS = 1000
"""At once: one for each server that starts or waits."""


class LinkError(Exception):
    """The broker refused (``status`` is an HTTP status) or could not be reached (503)."""

    def __init__(self, status: int, reason: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.status = status
        self.reason = reason
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Link:
    """The API at ``url`` (it ends with ``/api/v1/``), asked with ``headers``.

    With ``socket``, the path of a Unix socket, that is where it is asked; the host in the URL
    means nothing then.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    socket: str = ""

    async def call(
        self, method: str, path: str, body: Any = None, *, patience: float = 0.0
    ) -> dict[str, Any]:
        """The JSON of an answer. :class:`LinkError` if it is a refusal.

        For ``patience`` seconds a broker that does not answer is asked again: it may be starting.
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
            headers=dict(self.headers),
            body=None if body is None else json.dumps(body),
            connect_timeout=CALL_SECONDS,
            request_timeout=CALL_SECONDS,
            allow_nonstandard_methods=True,
            follow_redirects=False,
        )
        try:
            response = await client_of(self.socket).fetch(request)
            answer: dict[str, Any] = json.loads(response.body)
        except HTTPClientError as error:
            raise _refusal(error) from error
        except (OSError, ValueError) as error:
            raise LinkError(503, "unreachable", "The GPU service does not answer.") from error
        return answer


class SocketResolver(Resolver):
    """Finds every host at one Unix socket."""

    def initialize(self, path: str) -> None:  # type: ignore[override]
        self._path = path

    async def resolve(self, host: str, port: int, family: Any = socket.AF_UNSPEC) -> Any:
        return [(socket.AF_UNIX, self._path)]


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SimpleAsyncHTTPClient]] = (
    WeakKeyDictionary()
)


def client_of(path: str = "") -> SimpleAsyncHTTPClient:
    """A client of our own for this loop; ``path`` is that of a Unix socket.

    A hub's shared one has ten places, and a service that hangs would fill them: then the hub
    could not even speak to its proxy.
    """
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if path not in clients:
        resolver = SocketResolver(path=path) if path else None
        clients[path] = SimpleAsyncHTTPClient(
            force_instance=True, max_clients=MOST_CALLS, resolver=resolver
        )
    return clients[path]


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
