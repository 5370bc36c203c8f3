"""What the spawn page tells while a server starts: for everybody who looks, from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..request import GpuRequest
from .choice import describe
from .form import duration


class Progress:
    """Messages that several readers may follow; each gets all of them."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._open = True
        self._news = asyncio.Event()

    def tell(self, message: str, percent: int) -> None:
        """Add a message, unless it is the last one said."""
        if not self._events or self._events[-1]["message"] != message:
            self._events.append({"progress": percent, "message": message})
            self._wake()

    def close(self) -> None:
        """Nothing more comes."""
        self._open = False
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """All messages, those to come too, until it is closed."""
        told = 0
        while True:
            news = self._news
            while told < len(self._events):
                yield dict(self._events[told])
                told += 1
            if not self._open:
                return
            await news.wait()


def waiting_words(lease: Mapping[str, Any]) -> str:
    """Where a lease stands in the queue, for its user; Stop Server is a button beside it."""
    place = f"position {lease['position']} in the queue"
    if lease["position"] == 1:
        place += " (you are next)"
    wait = "How long is unknown, since those who use the GPUs have set no end."
    if lease["estimate_s"] is not None:
        wait = f"It takes {duration(lease['estimate_s'])}."
    return (
        f"There is no room yet: you wait for {amount_words(lease['request'])}, at {place}. {wait} "
        "The server starts by itself when it is your turn. Stop Server leaves the queue."
    )


def amount_words(text: str) -> str:
    """A request in words, and as it is written where those differ: half a GPU is 0.5."""
    request = GpuRequest.parse(text)
    words = describe(request)
    if request.whole:
        return words.replace("One", "one")
    return f"{words} ({request})"
