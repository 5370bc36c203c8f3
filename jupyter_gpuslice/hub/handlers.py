"""The HTTP side of a node's broker: thin handlers around :class:`Node`, behind any door."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from ..server.api import ApiError, Caller
from ..server.runtime import News
from .shown import Shown

log = logging.getLogger(__name__)

POOL_SECONDS = 2.0
"""News of the pool come at most so often."""
ALIVE_SECONDS = 20.0
"""An empty line on a silent stream, so that a reader that is gone is noticed. As often it is asked
whether the reader may still read it."""
MOST_REQUESTS = 200
MOST_BODY = 1 << 20
MOST_STREAMS = 32
"""Of one user at a time: each costs a file descriptor and its share of all news."""


class Handler(RequestHandler):
    """Finds out who calls before anything else is done; nobody is let in without that."""

    caller: Caller
    scrapers = False
    """Whether services of the hub that may read its metrics are let in as well."""

    def initialize(self, node: Shown) -> None:
        self.node = node

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")

    async def prepare(self) -> None:
        caller = await self.who()
        if caller is not None:
            self.caller = caller

    async def who(self) -> Caller | None:
        """Who calls; ``None`` when the answer was given already. :class:`ApiError`.

        A *door* says it, which `routes` puts before each of these classes.
        """
        raise NotImplementedError

    async def still(self) -> bool:
        """Whether the caller, let in a while ago, would be let in now."""
        return True

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, HTTPError) and not isinstance(error, ApiError):
            message = error.reason or error.log_message or "The call failed."
            error = ApiError(status_code, "bad_request", message)
        answer = ApiError.of(error if isinstance(error, Exception) else Exception())
        self.set_status(answer.status)
        self.write_refusal(answer)

    def write_refusal(self, answer: ApiError) -> None:
        """The body of a refusal."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(answer.to_dict()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Refusals are no failures of the service."""
        if not isinstance(value, ApiError):
            super().log_exception(typ, value, tb)

    def _request_summary(self) -> str:
        # Without the query: an OAuth code stands in one.
        return f"{self.request.method} {self.request.path} ({self.request.remote_ip})"

    async def learn_groups(self) -> None:
        """Let the node know who is in which group, for sums of use."""

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
        self.answer(
            self.node.availability(
                self.caller, list(requests)[:MOST_REQUESTS], self.get_argument("user", "")
            )
        )


class Usage(Handler):
    async def get(self) -> None:
        by = self.get_argument("by", "user")
        if by == "group":
            await self.learn_groups()
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
                if not await self.still():
                    raise _ClientGoneError from None
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
    """The reader of a stream has left, or may not read it any more."""


class Metrics(Handler):
    """Prometheus metrics of the pool, for admins and for services with the scope read:metrics."""

    scrapers = True

    def get(self) -> None:
        if not self.caller.admin:
            raise ApiError(403, "forbidden", "Only an admin may read the metrics.")
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(self.node.metrics))


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


Route = tuple[str, type, dict[str, Any]]


def routes(prefix: str, node: Shown, door: type) -> list[Route]:
    """The addresses of the REST interface under ``prefix``.

    ``door`` is the class that finds out who calls (see `Handler.who`) and stands before each
    handler.
    """
    api = f"{prefix}api/v1/"
    lease = r"([A-Za-z0-9_-]{1,64})"
    own: list[tuple[str, type]] = [
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
        (r".*", NotFound),
    ]
    return [(path, behind(door, handler), {"node": node}) for path, handler in own]


def behind(door: type, handler: type) -> type:
    """A handler whose callers are those that a door lets in."""
    return type(handler.__name__, (door, handler), {})
