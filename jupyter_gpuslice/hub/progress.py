"""What the spawn page tells while a server starts: for everybody who looks, from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

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
    """Where a lease stands in the queue, for its user."""
    text = f"Waiting for {lease['request']}: position {lease['position']} in the queue"
    if lease["estimate_s"] is None:
        return f"{text}. How long is unknown: what is held has no set end."
    return f"{text}, {duration(lease['estimate_s'])}."
