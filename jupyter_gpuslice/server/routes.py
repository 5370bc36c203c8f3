"""The REST interface: thin handlers over :mod:`.api` and the groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http.client import responses
from typing import Any

from jupyter_server.auth.authorizer import AllowAllAuthorizer
from jupyter_server.auth.decorator import authorized
from jupyter_server.auth.identity import User
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.iostream import StreamClosedError

from ..broker.explain import Refused
from ..broker.ledger import LedgerError
from ..request import RequestError
from .api import ApiError, Caller
from .runtime import News

BASE = r"/gpuslice/api/v1"
LARGEST_BODY = 2**20
LARGEST_CELL = 100 * 2**20
"""A cell may carry pickled values of up to 64 MiB (``kernel/peer_values.py``), as base64."""
KEEPALIVE_SECONDS = 30.0
STARTING_SECONDS = 1.0
"""How often a stream looks for a pool that is not there yet."""

_REASONS = {
    400: "bad_request",
    401: "not_authenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
}


class GpuSliceHandler(APIHandler):
    """Authentication by Jupyter or by a kernel's capability, and errors of one shape."""

    auth_resource = "gpuslice"
    _capability: Caller | None = None

    @property
    def app(self) -> Any:
        return self.settings["gpuslice_app"]

    @property
    def _track_activity(self) -> bool:  # type: ignore[override]
        # Looking is no activity: a panel that is left open must not keep a server alive.
        return self.request.method != "GET"

    async def prepare(self) -> None:  # type: ignore[override]
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "gpuslice":
            await super().prepare()
            return
        if not self.check_host():
            raise web.HTTPError(403)
        self._capability = self.app.kernels.tokens.caller(token.strip())
        if self._capability is None:
            self.current_user = self._jupyter_current_user = None
            raise ApiError(
                401,
                "not_authenticated",
                "This token is not valid here.",
                "The server was restarted or the kernel has ended: restart the kernel.",
            )
        user = User(username=self._capability.user)
        self.current_user = self._jupyter_current_user = user

    @property
    def authorizer(self) -> Any:
        # What a capability allows is settled by what it is for, and checked where it is used.
        if self._capability is not None:
            return AllowAllAuthorizer(parent=self.serverapp, config=self.config)
        return super().authorizer

    def check_xsrf_cookie(self) -> None:
        # A browser never sends a capability by itself, so nothing can be forged with one.
        if self._capability is None:
            super().check_xsrf_cookie()

    @property
    def caller(self) -> Caller:
        """All who may use this server act for its owner."""
        return self._capability or Caller(self.app.user)

    largest = LARGEST_BODY

    def body(self) -> Any:
        if len(self.request.body) > self.largest:
            most = self.largest // 2**20
            raise ApiError(413, "too_large", f"The body of this call is larger than {most} MiB.")
        try:
            return json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise ApiError(400, "bad_request", "The body of this call is no JSON.") from error

    def reply(self, status: int, data: Any) -> None:
        self.set_status(status)
        self.finish(json.dumps(data, allow_nan=False))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, (ApiError, Refused, RequestError, LedgerError)):
            problem = ApiError.of(error)
        elif isinstance(error, web.HTTPError):
            phrase = responses.get(error.status_code, "Unknown error")
            reason = _REASONS.get(error.status_code, f"http_{error.status_code}")
            problem = ApiError(error.status_code, reason, error.log_message or phrase)
        else:
            problem = ApiError.of(error or Exception())
            problem.status = status_code
        self.set_status(problem.status)
        self.finish(json.dumps(problem.to_dict()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (ApiError, Refused, RequestError)):
            super().log_exception(typ, value, tb)

    def start_stream(self) -> None:
        """Begin an NDJSON answer."""
        self.set_status(200)
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")
        connection = self.request.connection
        if connection is not None:
            stream = getattr(connection, "stream", None)
            if stream is not None:
                stream.set_nodelay(True)

    async def send_line(self, message: Any) -> None:
        """One line of the stream; ``StreamClosedError`` when the client has left."""
        self.write(json.dumps(message, allow_nan=False) + "\n")
        await self.flush()

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        if self._headers_written:
            return web.RequestHandler.finish(self, *args)
        return super().finish(*args, **kwargs)


class PoolHandler(GpuSliceHandler):
    """``GET pool``, and with ``follow=1`` a line for every change of it."""

    _leave: Callable[[], None] = staticmethod(lambda: None)

    @web.authenticated
    @authorized
    async def get(self) -> None:
        if self.get_argument("follow", "0") not in ("1", "true"):
            self.reply(200, self.app.api.pool(self.caller))
            return
        moved = asyncio.Event()
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            moved.set()

        def news(item: News) -> None:
            moved.set()

        self._leave = leave  # type: ignore[method-assign]
        unsubscribe: Callable[[], None] | None = None
        self.start_stream()
        try:
            last, stale = None, False
            while not gone:
                moved.clear()
                if unsubscribe is None and self.app.runtime is not None:
                    unsubscribe = self.app.runtime.subscribe(news)
                pool = self.app.api.pool(self.caller)
                if pool != last or stale:
                    last = pool
                    await self.send_line(pool)
                # A line is sent again after a while, so that proxies keep the connection.
                seconds = KEEPALIVE_SECONDS if unsubscribe is not None else STARTING_SECONDS
                stale = not await self._moved(moved, seconds) and unsubscribe is not None
        except StreamClosedError:
            pass
        finally:
            if unsubscribe is not None:
                unsubscribe()

    async def _moved(self, moved: asyncio.Event, seconds: float) -> bool:
        try:
            await asyncio.wait_for(moved.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def on_connection_close(self) -> None:
        self._leave()
        super().on_connection_close()


class LeasesHandler(GpuSliceHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.reply(200, {"leases": self.app.api.leases(self.caller)})

    @web.authenticated
    @authorized
    async def post(self) -> None:
        self.reply(*self.app.api.create(self.caller, self.body()))


class LeaseHandler(GpuSliceHandler):
    @web.authenticated
    @authorized
    async def get(self, lease_id: str) -> None:
        self.reply(200, self.app.api.lease(self.caller, lease_id))

    @web.authenticated
    @authorized
    async def patch(self, lease_id: str) -> None:
        self.reply(200, self.app.api.change(self.caller, lease_id, self.body()))

    @web.authenticated
    @authorized
    async def delete(self, lease_id: str) -> None:
        self.reply(200, self.app.api.delete(self.caller, lease_id))


class ExplainHandler(GpuSliceHandler):
    @web.authenticated
    @authorized
    async def post(self) -> None:
        self.reply(200, self.app.api.explain(self.caller, self.body()))


class UsageHandler(GpuSliceHandler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        by = self.get_argument("by", "user")
        self.reply(200, {"usage": self.app.api.usage(self.caller, by)})


class GroupsHandlerBase(GpuSliceHandler):
    @property
    def groups(self) -> Any:
        groups = self.app.groups
        if groups is None:
            raise self.app.api.problem
        return groups

    def own(self, group_id: str) -> None:
        self.groups.authorise(self.caller, group_id)


class GroupsHandler(GroupsHandlerBase):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        found = self.app.groups.list(self.caller) if self.app.groups is not None else []
        self.reply(200, {"groups": found})

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body()
        self._making = asyncio.ensure_future(self.groups.create(self.caller, body))
        try:
            self.reply(201, await self._making)
        except asyncio.CancelledError:
            if not self._making.cancelled():
                raise
            # by ourselves, since whoever asked has left: there is nobody to tell

    _making: asyncio.Future[Any] | None = None

    def on_connection_close(self) -> None:
        # Whoever asked has left: a group that nobody would use is not made.
        if self._making is not None:
            self._making.cancel()
        super().on_connection_close()


class GroupHandler(GroupsHandlerBase):
    @web.authenticated
    @authorized
    async def get(self, group_id: str) -> None:
        self.own(group_id)
        self.reply(200, self.groups.get(group_id))

    @web.authenticated
    @authorized
    async def delete(self, group_id: str) -> None:
        self.own(group_id)
        self.reply(200, await self.groups.stop(group_id))


class GroupActionHandler(GroupsHandlerBase):
    @web.authenticated
    @authorized
    async def post(self, group_id: str, action: str) -> None:
        self.own(group_id)
        act = self.groups.interrupt if action == "interrupt" else self.groups.reset
        self._acting = asyncio.ensure_future(act(group_id))
        try:
            self.reply(200, await self._acting)
        except asyncio.CancelledError:
            if not self._acting.cancelled():
                raise

    _acting: asyncio.Future[Any] | None = None

    def on_connection_close(self) -> None:
        # A reset that nobody waits for any more is stopped; an interrupt goes on.
        if self._acting is not None and self.path_args[1] != "interrupt":
            self._acting.cancel()
        super().on_connection_close()


class GroupExecuteHandler(GroupsHandlerBase):
    """Run a cell on a group; its messages stream back, and leaving interrupts it."""

    largest = LARGEST_CELL
    _running: asyncio.Task[None] | None = None

    @web.authenticated
    @authorized
    async def post(self, group_id: str) -> None:
        self.own(group_id)
        # In a thread, since so much JSON would hold up everybody else.
        messages = self.groups.execute(group_id, await asyncio.to_thread(self.body))
        self.start_stream()
        self._running = asyncio.ensure_future(self._stream(messages))
        await asyncio.wait([self._running])

    async def _stream(self, messages: Any) -> None:
        try:
            async for message in messages:
                await self.send_line(message)
        except StreamClosedError:
            pass
        finally:
            await messages.aclose()

    def on_connection_close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        super().on_connection_close()


class KernelsHandler(GpuSliceHandler):
    """``POST kernels``: a kernel that something in the session starts by itself (papermill)."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        self.reply(201, await self.app.visitors.prepare(self.caller, self.body()))


class KernelHandler(GpuSliceHandler):
    @web.authenticated
    @authorized
    async def patch(self, kernel_id: str) -> None:
        self.app.visitors.launched(self.caller, kernel_id, self.body())
        self.reply(200, {})

    @web.authenticated
    @authorized
    async def delete(self, kernel_id: str) -> None:
        await self.app.visitors.ended(self.caller, kernel_id)
        self.reply(200, {})


class UnknownHandler(GpuSliceHandler):
    """Everything else below our address, so that its errors have our shape too."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        raise ApiError(404, "not_found", "There is no such call.")

    post = put = patch = delete = get


def routes() -> list[tuple[str, type[GpuSliceHandler]]]:
    """All handlers; the OpenAPI document has the same."""
    one = r"([A-Za-z0-9_.-]{1,128})"
    return [
        (rf"{BASE}/pool", PoolHandler),
        (rf"{BASE}/leases", LeasesHandler),
        (rf"{BASE}/leases/{one}", LeaseHandler),
        (rf"{BASE}/explain", ExplainHandler),
        (rf"{BASE}/usage", UsageHandler),
        (rf"{BASE}/groups", GroupsHandler),
        (rf"{BASE}/groups/{one}", GroupHandler),
        (rf"{BASE}/groups/{one}/(interrupt|reset)", GroupActionHandler),
        (rf"{BASE}/groups/{one}/execute", GroupExecuteHandler),
        (rf"{BASE}/kernels", KernelsHandler),
        (rf"{BASE}/kernels/{one}", KernelHandler),
        (rf"{BASE}(?:/.*)?", UnknownHandler),
    ]
