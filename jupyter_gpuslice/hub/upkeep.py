"""What a process that owns a pool does beside answering: waits its turn, looks after leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from ..broker.ledger import LedgerError
from .node import Node

log = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds to wait for the port and the ledger of an earlier service that is about to end."""
LOOK_SECONDS = 1.0

T = TypeVar("T")


class ServiceError(Exception):
    """The service cannot start; the message is all that the log needs."""


def more_files() -> None:
    """Every reader of news has a file: what the account may have is not what it has by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def look_after(node: Node) -> None:
    """What has to be done now and then."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            node.forget()
            await node.end_due()
        except LedgerError as error:
            log.error("%s", error.message)


async def patiently(
    get: Callable[[], T], later: Callable[[Exception], str], done: asyncio.Event
) -> T:
    """``get()``, again and again while ``later(error)`` says why it may still come right."""
    deadline = time.monotonic() + PATIENCE
    told = ""
    while True:
        try:
            return get()
        except (OSError, LedgerError) as error:
            why = later(error)
            if not why or done.is_set():
                said = getattr(error, "message", str(error))
                raise ServiceError(f"{said} {getattr(error, 'hint', '')}".strip()) from error
            if time.monotonic() > deadline:
                raise ServiceError(why) from error
            if why != told:
                told = why
                log.info("%s It is tried again for %.0f s.", why, PATIENCE)
            await asyncio.sleep(0.1)


def locked(error: Exception) -> str:
    return error.message if getattr(error, "reason", "") == "ledger_locked" else ""  # type: ignore[attr-defined]


def greeting(node: Node) -> str:
    devices = [member.device for member in node.broker.pool]
    simulated = any(device.kind == "simulated" for device in devices)
    if not devices:
        return f"There is no GPU to serve. {node.note}".strip()
    sessions = sum(lease.holds for lease in node.broker.leases())
    kind = f"{'simulated ' if simulated else ''}GPU{'s' if len(devices) != 1 else ''}"
    how = "" if simulated else f" ({node.broker.isolation})"
    live = f"{sessions} session{'s' if sessions != 1 else ''} live"
    return f"Serving {len(devices)} {kind}{how}; {live}."
