"""Calls into a driver that may never come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class HungError(Exception):
    """The call has not come back in time; it may still be running."""


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value.append(self._function())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, seconds: float) -> T:
        if not self._done.wait(seconds):
            raise HungError
        if self._error is not None:
            raise self._error
        return self._value[0]


class BoundedCalls:
    """Runs calls one after the other in one thread of its own, and waits for each only so long.

    A driver that hangs costs this one thread, never the caller and never one thread for each try:
    while a call is stuck every further one raises `HungError` at once, and when it comes back the
    next works again. The thread is a daemon, so that it does not keep the process from ending.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # one caller at a time
        self._stuck: _Call[Any] | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[[], T], seconds: float | None = None) -> T:
        """``function()``; `HungError` when it (or one before it) does not come back in time."""
        seconds = self._seconds if seconds is None else seconds
        if not self._lock.acquire(timeout=seconds):
            raise HungError
        try:
            if self._stuck is not None:
                if not self._stuck.done():
                    raise HungError
                self._stuck = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            call = _Call(function)
            self._calls.put(call)
            try:
                return call.wait(seconds)
            except HungError:
                self._stuck = call
                raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let the thread end once it is free."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
