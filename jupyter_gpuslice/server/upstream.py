"""A shared machine's broker, seen from one user's server: its session's lease.

Where a machine has a broker (``jupyter gpuslice broker``), a server that no hub started asks it for
its slice. The broker knows the server's process from the socket, and takes the slice back when that
process has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..broker.explain import clock_text
from ..request import GpuRequest
from .api import ApiError
from .grant import no_grant
from .link import Link, LinkError

URL = "http://gpuslice/api/v1/"
WAIT_SECONDS = 2.0
AGAIN_SECONDS = 5.0
FOLLOW_SECONDS = 5.0

Tell = Callable[[str], None]


class Upstream:
    """The broker at ``socket``; ``tell(message)`` says what is waited for."""

    def __init__(self, socket: str, tell: Tell, log: Any = None) -> None:
        self._link = Link(URL, socket=socket)
        self._socket = socket
        self._tell = tell
        self._log = log or logging.getLogger(__name__)
        self._told = ""

    async def obtain(self, request: str) -> Mapping[str, Any]:
        """The grant of this process's session, however long that takes.

        ``request`` may be empty: then it is what the broker gives to those who do not say.
        :class:`ApiError` when it is never to be had.
        """
        if request and GpuRequest.parse(request).kind == "none":
            return no_grant("")
        body = {"request": request} if request else {}
        while True:
            try:
                lease = await self._link.call("POST", "leases", body)
                while lease["state"] == "queued":
                    self._say(_waiting_words(lease))
                    await asyncio.sleep(WAIT_SECONDS)
                    lease = await self._link.call("GET", f"leases/{lease['id']}")
                return await self._link.call("GET", f"leases/{lease['id']}/grant")
            except LinkError as error:
                if error.reason != "unreachable" and error.status not in (404, 503):
                    raise ApiError(503, error.reason, error.message, error.hint) from error
                self._say(self._silence() if error.reason == "unreachable" else str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def follow(self, lease_id: str, ended: Callable[[str], Any]) -> None:
        """Until the lease ends tell of what comes; then call ``ended(why)`` once."""
        expires: float | None = None
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                lease = await self._link.call("GET", f"leases/{lease_id}")
            except LinkError as error:
                if error.status == 404:
                    ended("The GPU broker of this machine knows nothing of it any more.")
                    return
                # It may be starting anew: what was granted stands in its ledger.
                continue
            if not lease["slices"]:
                ended(lease["detail"] or f"It is {lease['state']}.")
                return
            if lease["expires"] != expires:
                expires = lease["expires"]
                if expires is not None:
                    self._tell(_end_words(lease))

    def _silence(self) -> str:
        return (
            f"The GPU broker of this machine does not answer at {self._socket}, so there is no GPU "
            "yet. It is asked again and again; an administrator finds the reason with "
            "`systemctl status jupyter-gpuslice`."
        )

    def _say(self, message: str) -> None:
        if message != self._told:
            self._told = message
            self._tell(message)


def _waiting_words(lease: Mapping[str, Any]) -> str:
    wait = lease["estimate_s"]
    how_long = (
        "for how long is unknown, since those who use the GPUs have set no end"
        if wait is None
        else f"about {max(1, round(wait / 60))} min"
    )
    return (
        f"This server waits for {lease['request']} of the machine's GPUs, at position "
        f"{lease['position']} in the queue, {how_long}. Its kernels get their GPU when it comes."
    )


def _end_words(lease: Mapping[str, Any]) -> str:
    clock = clock_text(lease["expires"], time.time())
    why = f" {lease['detail']}" if lease["detail"] else ""
    return f"This server's GPU slice ends at {clock}, and the server with it.{why} Save your work."
