"""A hub whose GPUs are those of its machine's broker: its service hands every call on to it.

The broker (``jupyter gpuslice broker``) has the ledger, and serves the accounts of the machine as
well. It takes this service's word on whom it asks for, since it runs as root or as the broker's own
account.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.web import RedirectHandler

from ..server.api import ApiError
from ..server.link import CALL_SECONDS, client_of
from ..workstation.peer import FOR, told_for
from .door import HubDoor
from .frame import content_policy
from .handlers import ALIVE_SECONDS, Handler, Route
from .node import Hub
from .page import error_page, index_page

BASE = "http://gpuslice"
STREAM_SECONDS = 0.0
"""A stream of news has no end of its own."""


class _Asking(HubDoor, Handler):
    """Asks the broker for whoever calls."""

    socket: str
    url: str
    """The API of this service, for the servers of the hub's users."""

    async def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """What the broker answers to the caller, for whom it is asked. :class:`ApiError`."""
        request = HTTPRequest(
            BASE + path,
            method=method,
            headers={FOR: told_for(self.caller, isinstance(self.caller, Hub))},
            body=body,
            connect_timeout=CALL_SECONDS,
            request_timeout=CALL_SECONDS,
            allow_nonstandard_methods=True,
            follow_redirects=False,
        )
        try:
            response = await client_of(self.socket).fetch(request, raise_error=False)
        except OSError as error:
            raise silent() from error
        if response.code == 599:
            raise silent()
        return response.code, response.body

    async def json(self, path: str) -> Any:
        """The JSON of a GET that has to succeed. :class:`ApiError`."""
        status, body = await self.ask("GET", path)
        answer = json.loads(body)
        if status != 200:
            raise refused(status, answer)
        return answer


class Forward(_Asking):
    """Hands a call on, and its answer back."""

    async def _forward(self, path: str) -> None:
        query = f"?{self.request.query}" if self.request.query else ""
        # The path was decoded: a blank or a question mark in it would end it here.
        where = f"/{quote(path)}{query}"
        status, body = await self.ask(self.request.method or "GET", where, self._raw())
        if path.endswith("/grant") and status == 200:
            body = json.dumps({**json.loads(body), "url": self.url}).encode()
        self.set_status(status)
        kind = "text/plain; version=0.0.4" if path == "metrics" else "application/json"
        self.set_header("Content-Type", kind)
        self.finish(body)

    get = post = patch = put = delete = _forward

    def _raw(self) -> bytes | None:
        return self.request.body if self.request.method in ("POST", "PATCH", "PUT") else None


class ForwardEvents(_Asking):
    """The stream of news, line for line."""

    _gone = False
    _status = 0
    _refusal = b""

    async def get(self) -> None:
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header("X-Accel-Buffering", "no")
        request = HTTPRequest(
            f"{BASE}/api/v1/events",
            headers={FOR: told_for(self.caller, False)},
            connect_timeout=CALL_SECONDS,
            request_timeout=STREAM_SECONDS,
            header_callback=self._look,
            streaming_callback=self._pass_on,
        )
        watch = asyncio.ensure_future(self._look_after())
        try:
            await client_of(self.socket).fetch(request)
        except HTTPClientError as error:
            if self._refusal:
                raise refused(self._status, json.loads(self._refusal)) from error
            if not self._headers_written:
                raise silent() from error
        except (OSError, StreamClosedError) as error:
            if not self._headers_written:
                raise silent() from error
        finally:
            watch.cancel()

    async def _look_after(self) -> None:
        """End the stream when its reader has lost the right to read it."""
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            if not await self.still():
                # The broker's next line, which comes as often, finds it so.
                self._gone = True

    def _look(self, line: str) -> None:
        if line.startswith("HTTP/"):
            self._status = int(line.split()[1])

    def _pass_on(self, chunk: bytes) -> None:
        if self._status != 200:
            self._refusal += chunk
            return
        if self._gone:
            raise StreamClosedError
        self.write(chunk)
        # What cannot be sent is the reader's loss: the next line finds out that it has left.
        self.flush()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone = True


class ForwardIndex(_Asking):
    """The page of the machine's GPUs."""

    page = True

    async def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.set_header("Content-Security-Policy", content_policy(self.hub_auth.hub_host))
        try:
            pool, leases = await self.json("/api/v1/pool"), await self.json("/api/v1/leases")
        except ApiError as error:
            # Not with its status: JupyterHub ends when a service of its own answers 5xx here.
            self.finish(error_page(error.status, error.message, error.hint, self.frame()))
            return
        token = self.xsrf_token.decode("ascii", "replace")
        self.finish(index_page(pool, leases["leases"], self.frame(), token))


def refused(status: int, answer: dict[str, Any]) -> ApiError:
    """What the broker says against it."""
    return ApiError(status, answer["reason"], answer["message"], answer["hint"])


def silent() -> ApiError:
    """The broker does not answer."""
    return ApiError(
        503,
        "unreachable",
        "The GPU broker of this machine does not answer.",
        "An administrator finds why with `systemctl status jupyter-gpuslice`.",
    )


def forward_routes(prefix: str, socket: str, secret: str, url: str) -> list[Route]:
    """All addresses of a hub's service whose pool is at ``socket``; ``url`` is its API."""
    given = {"secret": secret, "socket": socket, "url": url}
    call, news, index = (
        type(handler.__name__, (handler,), given)
        for handler in (Forward, ForwardEvents, ForwardIndex)
    )
    node = {"node": None}
    oauth: Any = (f"{prefix}oauth_callback", HubOAuthCallbackHandler, {})
    slash: Any = (prefix.rstrip("/"), RedirectHandler, {"url": prefix})
    return [
        oauth,
        slash,
        (prefix, index, node),
        (f"{prefix}api/v1/events", news, node),
        (f"{prefix}(api/v1/.+|metrics)", call, node),
    ]
