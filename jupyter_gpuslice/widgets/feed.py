"""Follows the pool for the panels of a kernel, also while the kernel is busy.

One thread for all panels. It never prints and never raises: what a thread writes lands in whatever
cell happens to run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..kernel.client import Client, Stream
from ..kernel.errors import GpuSliceError

SILENCE_S = 90.0
"""A stream that says nothing for so long is asked for anew."""
RETRY_S = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Picture:
    """What the server last said; ``problem`` is why nothing newer is known."""

    pool: dict[str, Any] | None = None
    leases: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""


class Feed:
    """Pictures of the pool for its subscribers, from a thread that runs while there is one."""

    def __init__(self, connect: Callable[[], Client] = Client.from_environment) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[Picture], None]] = []
        self._last = Picture()
        self._stop: threading.Event | None = None
        self._stream: Stream | None = None

    def subscribe(self, subscriber: Callable[[Picture], None]) -> None:
        """Call ``subscriber`` with each picture, from the feed's thread."""
        with self._lock:
            self._subscribers.append(subscriber)
            last = self._last
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(
                    target=self._run, args=(self._stop,), name="gpuslice-feed", daemon=True
                ).start()
        if last.pool is not None or last.problem:
            subscriber(last)

    def unsubscribe(self, subscriber: Callable[[Picture], None]) -> None:
        """Forget a subscriber; the thread ends with the last one."""
        with self._lock:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)
            if self._subscribers or self._stop is None:
                return
            self._stop.set()
            self._stop = None
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _run(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            client = None
            try:
                # A client of its own: the kernel's own calls never wait for this one.
                client = self._connect()
                for picture in self._follow(client, stop):
                    failures = 0
                    self._tell(picture, stop)
                problem = "The server closed the stream; trying again."
            except GpuSliceError as error:
                problem = str(error)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            finally:
                if client is not None:
                    client.close()
            if stop.is_set():
                return
            failures += 1
            # A single break is mended before anybody needs to know.
            if failures > 1 or self._last.pool is None:
                last = self._last
                self._tell(Picture(last.pool, last.leases, last.groups, problem), stop)
            stop.wait(RETRY_S[min(failures, len(RETRY_S)) - 1])

    def _follow(self, client: Client, stop: threading.Event) -> Any:
        with client.stream("GET", "pool", query={"follow": "1"}, timeout=SILENCE_S) as stream:
            with self._lock:
                if stop.is_set():
                    return
                self._stream = stream
            for message in stream:
                if stop.is_set():
                    return
                pool = _pool_of(message)
                if pool is not None:
                    yield Picture(pool, client.listed("leases"), client.listed("groups"))

    def _tell(self, picture: Picture, stop: threading.Event) -> None:
        self._last = picture
        with self._lock:
            subscribers = list(self._subscribers) if not stop.is_set() else []
        for subscriber in subscribers:
            try:
                subscriber(picture)
            except Exception:  # a panel whose kernel is going away
                self.unsubscribe(subscriber)


def _pool_of(message: Any) -> dict[str, Any] | None:
    if not isinstance(message, dict):
        return None
    pool = message.get("pool", message)
    return pool if isinstance(pool, dict) and "devices" in pool else None
