"""The hub service's HTTP side: who calls, and thin handlers around :class:`Node`."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RedirectHandler, RequestHandler

from ..server.api import ApiError, Caller
from ..server.runtime import News
from .frame import Frame, content_policy
from .node import HUB, Node
from .page import error_page, index_page

log = logging.getLogger(__name__)

POOL_SECONDS = 2.0
"""News of the pool come at most so often."""
ALIVE_SECONDS = 20.0
"""An empty line on a silent stream, so that a reader that is gone is noticed."""
GROUPS_PAGE = 200
MOST_REQUESTS = 200
MOST_STREAMS = 32
"""Of one user at a time: each costs a file descriptor and its share of all news."""


class Handler(HubOAuthenticated, RequestHandler):
    """Finds out who calls before anything else is done; nobody is let in without that."""

    caller: Caller
    page = False
    scrapers = False
    """Whether services of the hub that may read its metrics are let in as well."""

    def initialize(self, node: Node, secret: str) -> None:
        self.node = node
        self._secret = secret

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")

    async def prepare(self) -> None:
        kind, _, secret = self.request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "gpuslice":
            if not compare_digest(secret.encode(), self._secret.encode()):
                raise ApiError(401, "unauthorized", "This is not the hub's secret.")
            self.caller = HUB
            return
        # The base class asks the hub from get_current_user, which would block the loop.
        user = await self.hub_auth.get_user(self, sync=False)
        self.current_user = user
        if user is None:
            if self.page:
                self.redirect(self.get_login_url())
                return
            raise ApiError(
                401, "unauthorized", "Say who you are.", "Send Authorization: token <hub token>."
            )
        allowed = self.hub_auth.check_scopes(self.hub_scopes, user)
        scraper = self.scrapers and "read:metrics" in user["scopes"]
        if not allowed or (user.get("kind") != "user" and not scraper):
            raise ApiError(
                403, "forbidden", f"{user.get('name')} may not use this service with that token."
            )
        admin = bool(user.get("admin")) and not any(
            # Code in an admin's notebook is not the admin: JupyterHub gives servers' tokens none
            # of their rights either.
            scope.startswith("access:servers!server=")
            for scope in user["scopes"]
        )
        self.caller = Caller(user["name"], admin=scraper or admin)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, HTTPError) and not isinstance(error, ApiError):
            message = error.reason or error.log_message or "The call failed."
            error = ApiError(status_code, "bad_request", message)
        answer = ApiError.of(error if isinstance(error, Exception) else Exception())
        self.set_status(answer.status)
        if "text/html" in self.request.headers.get("Accept", ""):
            # A person at a browser: programs ask for JSON, or for anything.
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.set_header("Content-Security-Policy", content_policy(self.hub_auth.hub_host))
            self.finish(error_page(answer.status, answer.message, answer.hint, self.frame()))
            return
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(answer.to_dict()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Refusals are no failures of the service."""
        if not isinstance(value, ApiError):
            super().log_exception(typ, value, tb)

    def _request_summary(self) -> str:
        # Without the query: an OAuth code stands in one.
        return f"{self.request.method} {self.request.path} ({self.request.remote_ip})"

    def frame(self) -> Frame:
        """The frame of a page for whoever calls; nobody may have been found yet."""
        caller = getattr(self, "caller", Caller(""))
        auth = self.hub_auth
        return Frame(f"{auth.hub_host}{auth.hub_prefix}", auth.base_url, caller.user, caller.admin)

    def left(self) -> bool:
        """Whether the caller has closed its connection already."""
        connection = self.request.connection
        sock = getattr(getattr(connection, "stream", None), "socket", None)
        if sock is None:
            return True
        try:
            return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"")
        except BlockingIOError:
            return False
        except OSError:
            return True

    def answer(self, body: Any, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(body))

    def body(self) -> Any:
        try:
            return json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise ApiError(400, "bad_request", "The body is not JSON.") from error


class Pool(Handler):
    def get(self) -> None:
        self.answer(self.node.pool(self.caller))

    def patch(self) -> None:
        self.answer(self.node.operate(self.caller, self.body()))


class Leases(Handler):
    def get(self) -> None:
        self.answer({"leases": self.node.leases(self.caller)})

    async def post(self) -> None:
        if self.left():
            # It waited for us too long and asks, or has asked, anew: nobody would hear of this
            # lease, and it might take the place of the one that counts.
            raise ApiError(409, "gone", "Whoever asked has left.")
        status, lease = await self.node.start_anew(self.caller, self.body())
        self.answer(lease, status)


class LeaseOf(Handler):
    def get(self, lease: str) -> None:
        self.answer(self.node.lease(self.caller, lease))

    def patch(self, lease: str) -> None:
        self.answer(self.node.change(self.caller, lease, self.body()))

    async def delete(self, lease: str) -> None:
        self.answer(await self.node.end(self.caller, lease))


class Processes(Handler):
    def put(self, lease: str) -> None:
        self.answer(self.node.activate(self.caller, lease, self.body()))


class Grant(Handler):
    def get(self, lease: str) -> None:
        self.answer(self.node.grant(self.caller, lease))


class Explain(Handler):
    def post(self) -> None:
        self.answer(self.node.explain(self.caller, self.body()))


class Availability(Handler):
    """For the hub alone, which asks for the spawn page: a count is work for the broker."""

    def get(self) -> None:
        requests = dict.fromkeys(self.get_arguments("request"))
        self.answer(self.node.availability(self.caller, list(requests)[:MOST_REQUESTS]))


class Usage(Handler):
    async def get(self) -> None:
        by = self.get_argument("by", "user")
        if by == "group":
            self.node.groups = await hub_groups(self.hub_auth)
        self.answer({"usage": self.node.usage(self.caller, by)})


class Events(Handler):
    """News as NDJSON: ``{"schema": "lease"|"pool", "data": …}``, as the events of a server."""

    async def get(self) -> None:
        streams = self.node.streams
        if streams[self.caller.user] >= MOST_STREAMS:
            raise ApiError(
                429,
                "too_many",
                f"{self.caller.user} follows the news {MOST_STREAMS} times already.",
                "Close some of the pages or programs that follow it.",
            )
        streams[self.caller.user] += 1
        try:
            await self._follow()
        finally:
            streams[self.caller.user] -= 1

    async def _follow(self) -> None:
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header("X-Accel-Buffering", "no")
        self.request.connection.stream.set_nodelay(True)  # type: ignore[union-attr]
        leases: asyncio.Queue[News] = asyncio.Queue()
        pool = asyncio.Event()

        def hear(news: News) -> None:
            if news.kind == "pool":
                pool.set()
            elif news.lease is not None and self.caller.owns(news.lease):
                leases.put_nowait(news)
                pool.set()

        stop = self.node.subscribe(hear)
        self._closed = asyncio.Event()
        try:
            await self._tell(self._pool())
            await asyncio.gather(self._leases(leases), self._pools(pool), self._until_closed())
        except (StreamClosedError, _ClientGoneError):
            pass
        finally:
            stop()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if hasattr(self, "_closed"):
            self._closed.set()

    async def _until_closed(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._closed.wait(), ALIVE_SECONDS)
            except asyncio.TimeoutError:
                await self._tell(None)
            else:
                raise _ClientGoneError

    async def _leases(self, news: asyncio.Queue[News]) -> None:
        while True:
            lease = (await news.get()).lease
            if lease is not None:
                action = "changed" if lease.live else "ended"
                data = {"action": action, "lease": self.node.view(lease, self.caller)}
                await self._tell({"schema": "lease", "data": data})

    async def _pools(self, moved: asyncio.Event) -> None:
        while True:
            await moved.wait()
            moved.clear()
            await self._tell(self._pool())
            await asyncio.sleep(POOL_SECONDS)

    def _pool(self) -> dict[str, Any]:
        return {"schema": "pool", "data": {"pool": self.node.pool(self.caller)}}

    async def _tell(self, news: dict[str, Any] | None) -> None:
        self.write((json.dumps(news) if news else "") + "\n")
        await self.flush()


class _ClientGoneError(Exception):
    """The reader of a stream has left."""


class Metrics(Handler):
    """Prometheus metrics of the pool, for admins and for services with the scope read:metrics."""

    scrapers = True

    def get(self) -> None:
        if not self.caller.admin:
            raise ApiError(403, "forbidden", "Only an admin may read the metrics.")
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(self.node.metrics))


class Index(Handler):
    """The pool for people: all of it for admins, of the leases only their own for users."""

    page = True

    def get(self) -> None:
        self.set_header("Content-Security-Policy", content_policy(self.hub_auth.hub_host))
        pool = self.node.pool(self.caller)
        leases = self.node.leases(self.caller)
        token = self.xsrf_token.decode("ascii", "replace")
        self.finish(index_page(pool, leases, self.frame(), token))


class NotFound(Handler):
    async def prepare(self) -> None:
        raise ApiError(404, "not_found", "There is nothing at this address.", "It may be misspelt.")


class NoLedger(RequestHandler):
    """The answer to everything while the service has no ledger; why stands in the hub's log."""

    def prepare(self) -> None:
        error = ApiError(
            503,
            "ledger",
            "The GPU service cannot use its ledger, so it grants nothing.",
            "An administrator finds why in the hub's log. It goes on when that is mended.",
        )
        if "/api/" not in self.request.path:
            # The page, at which JupyterHub looks to see whether the service is there: an error
            # would end the hub.
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish(f"{error.message} {error.hint}\n")
            return
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(error.to_dict()))


async def hub_groups(hub_auth: Any) -> dict[str, list[str]]:
    """The groups of all users, as the hub has them."""
    found: dict[str, list[str]] = {}
    client = AsyncHTTPClient()
    while True:
        query = urlencode({"offset": len(found), "limit": GROUPS_PAGE})
        try:
            response = await client.fetch(
                f"{hub_auth.api_url}/users?{query}",
                headers={"Authorization": f"token {hub_auth.api_token}"},
            )
        except (HTTPClientError, OSError) as error:
            raise ApiError(502, "hub", f"The hub does not tell its groups: {error}.") from error
        users = json.loads(response.body)
        found |= {user["name"]: list(user.get("groups", [])) for user in users}
        if len(users) < GROUPS_PAGE:
            return found


def routes(prefix: str, node: Node, secret: str) -> list[tuple[str, type, dict[str, Any]]]:
    """All addresses of the service under its prefix."""
    api = f"{prefix}api/v1/"
    lease = r"([A-Za-z0-9_-]{1,64})"
    own: list[tuple[str, Callable[..., Any]]] = [
        (f"{api}pool", Pool),
        (f"{api}leases", Leases),
        (f"{api}leases/{lease}", LeaseOf),
        (f"{api}leases/{lease}/processes", Processes),
        (f"{api}leases/{lease}/grant", Grant),
        (f"{api}explain", Explain),
        (f"{api}availability", Availability),
        (f"{api}usage", Usage),
        (f"{api}events", Events),
        (f"{prefix}metrics", Metrics),
        (prefix, Index),
        (r".*", NotFound),
    ]
    given = {"node": node, "secret": secret}
    oauth: Any = (f"{prefix}oauth_callback", HubOAuthCallbackHandler, {})
    slash: Any = (prefix.rstrip("/"), RedirectHandler, {"url": prefix})
    return [oauth, slash, *((path, handler, given) for path, handler in own)]
