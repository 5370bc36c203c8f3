"""Hear of a process's end at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ..devices.process import Process

POLL_SECONDS = 0.5


def watch(process: Process, ended: Callable[[], None]) -> Callable[[], None]:
    """Call ``ended`` once on this loop when the process has ended; returns how to stop.

    By pidfd (Linux 5.3), otherwise by looking twice a second.
    """
    loop = asyncio.get_running_loop()
    try:
        fd = process.open_pidfd()
    except ProcessLookupError:
        handle = loop.call_soon(ended)
        return handle.cancel
    except OSError:
        return _poll(process, ended)

    def stop() -> None:
        nonlocal fd
        if fd >= 0:
            loop.remove_reader(fd)
            os.close(fd)
            fd = -1

    def readable() -> None:
        stop()
        ended()

    loop.add_reader(fd, readable)
    return stop


def _poll(process: Process, ended: Callable[[], None]) -> Callable[[], None]:
    async def look() -> None:
        while process.alive():  # noqa: ASYNC110 - nothing tells of it here
            await asyncio.sleep(POLL_SECONDS)
        ended()

    task = asyncio.ensure_future(look())

    def stop() -> None:
        task.cancel()

    return stop
