"""Blocking calls of one source, one after another, off the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class UnansweredError(Exception):
    """A call did not return in time, or an earlier one still has not."""


class Worker:
    """One daemon thread for calls that may block for ever (a driver that hangs, say).

    A call that does not return in time is given up, but its thread cannot be: until it returns
    every further call fails at once, so that a hanging driver costs one thread and not many. The
    thread is a daemon, since an executor's would keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up still has not returned."""
        return self._pending > 0

    async def call(self, function: Callable[[], T], timeout: float) -> T:
        """The result of ``function()``; :class:`UnansweredError` after ``timeout`` seconds."""
        if self._pending:
            raise UnansweredError("an earlier call has not returned yet")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._pending += 1

        def settle(result: Any, error: BaseException | None) -> None:
            self._pending -= 1
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except Exception as caught:
                error = caught
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                pass  # the loop was closed while the call was out: nobody waits for it

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(work)
        # Not wait_for: before Python 3.12 it may swallow a cancellation that comes with the answer.
        await asyncio.wait([future], timeout=timeout)
        if not future.done():
            future.cancel()
            raise UnansweredError(f"no answer within {timeout:g} s")
        return future.result()

    def close(self) -> None:
        """Let the thread end when its call has returned; does not wait for it."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
