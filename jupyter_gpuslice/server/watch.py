"""Notice the end of processes at once, by pidfd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection

from ..devices.process import Process

POLL_SECONDS = 1.0


class ProcessWatch:
    """Calls ``gone(process)`` on the event loop once for each watched process that ends.

    A kernel or sandbox without pidfd_open(2) is polled instead.
    """

    def __init__(self, gone: Callable[[Process], None]) -> None:
        self._gone = gone
        self._fds: dict[Process, int] = {}
        self._polled: set[Process] = set()
        self._timer: asyncio.TimerHandle | None = None

    def only(self, processes: Collection[Process]) -> None:
        """Watch exactly these; those seen already stay as they are."""
        wanted = set(processes)
        for process in [p for p in self._fds if p not in wanted]:
            self._forget(process)
        self._polled &= wanted
        for process in wanted - self._fds.keys() - self._polled:
            self._add(process)

    def close(self) -> None:
        """Stop watching."""
        self.only(())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _add(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        try:
            fd = process.open_pidfd()
        except ProcessLookupError:
            # Later, as for all others: nobody expects news of a process while adding it.
            self._polled.add(process)
            loop.call_soon(self._end, process)
        except (OSError, AttributeError):
            self._polled.add(process)
            self._poll_later()
        else:
            self._fds[process] = fd
            loop.add_reader(fd, self._end, process)

    def _forget(self, process: Process) -> None:
        fd = self._fds.pop(process)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    def _end(self, process: Process) -> None:
        if process in self._fds:
            self._forget(process)
        elif process in self._polled:
            self._polled.discard(process)
        else:
            return
        self._gone(process)

    def _poll_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._timer = None
        try:
            for process in list(self._polled):
                if not process.alive():
                    self._end(process)
        finally:
            # Also when there was no file to look with: the next time there may be one.
            if self._polled:
                self._poll_later()
