"""What the ranks print and show, as one stream of messages."""

from __future__ import annotations

import asyncio
from typing import Any

FLUSH_SECONDS = 0.03
"""For so long text is collected, so that a flood of small pieces becomes few messages."""
MOST_TEXT = 4 * 2**20
"""Characters of one rank that may wait for a reader that does not keep up."""
MOST_END = 8192
"""Characters from the end of what is left out that are shown all the same."""
MOST_MESSAGES = 2000
_WIDGET = "application/vnd.jupyter.widget-view+json"

Message = dict[str, Any]


def translate(rank: int, kind: str, content: dict[str, Any]) -> Message | None:
    """A kernel's iopub message as one of the group's, or ``None`` if it is not for people."""
    if kind == "stream":
        return {"type": "stream", "rank": rank, "name": content["name"], "text": content["text"]}
    if kind == "clear_output":
        return {"type": "clear", "rank": rank, "wait": bool(content.get("wait"))}
    if kind not in ("display_data", "update_display_data", "execute_result"):
        return None
    # A peer's widgets have no model in the notebook; what they say in plain text is shown.
    data = {mime: value for mime, value in content["data"].items() if mime != _WIDGET}
    if not data:
        return None
    message = {"rank": rank, "data": data, "metadata": content.get("metadata", {})}
    if kind == "execute_result":
        return {"type": "result", **message}
    transient = content.get("transient", {})
    update = kind == "update_display_data"
    return {"type": "display", **message, "transient": transient, "update": update}


def _size(message: Message) -> int:
    """Characters of a message's text, or of what it shows."""
    if "text" in message:
        return len(message["text"])
    return sum(len(value) for value in message.get("data", {}).values() if isinstance(value, str))


class Outbox:
    """Messages on their way to the reader: in order for each rank, of bounded size."""

    def __init__(self) -> None:
        self._waiting: list[Message] = []
        self._last: dict[int, Message] = {}
        self._text: dict[int, int] = {}
        self._left_out: dict[int, int] = {}
        self._end: dict[int, str] = {}
        self._arrived = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closed = False

    def put(self, message: Message) -> None:
        rank = message.get("rank")
        kind = message["type"]
        if rank is not None and kind in ("stream", "display", "result", "clear"):
            room = self._room(rank, message)
            if room is None:
                return
            message = room
            last = self._last.get(rank)
            if kind == "stream":
                if last and last["type"] == "stream" and last["name"] == message["name"]:
                    last["parts"].append(message["text"])
                    return
                message = {**message, "parts": [message["text"]]}
            self._last[rank] = message
        else:
            # What is not a rank's output stays where it is among it, and goes out at once.
            self._last.clear()
            self._urgent.set()
        self._waiting.append(message)
        self._arrived.set()

    def close(self) -> None:
        """No more messages will come."""
        self._closed = True
        self._urgent.set()
        self._arrived.set()

    async def batch(self) -> list[Message]:
        """The next messages; empty at the end."""
        await self._arrived.wait()
        if not self._urgent.is_set():
            try:
                await asyncio.wait_for(self._urgent.wait(), FLUSH_SECONDS)
            except asyncio.TimeoutError:
                pass
        return self._take()

    def _room(self, rank: int, message: Message) -> Message | None:
        """The message, or as much of its text as there is room for; ``None`` if there is none.

        Of what is left out the end is kept: errors and results stand there.
        """
        size = _size(message)
        left = MOST_TEXT - self._text.get(rank, 0)
        if message["type"] != "stream":
            if len(self._waiting) >= MOST_MESSAGES or rank in self._left_out or size > left:
                self._left_out[rank] = self._left_out.get(rank, 0) + max(size, 1)
                return None
            self._text[rank] = self._text.get(rank, 0) + size
            return message
        if rank in self._left_out:
            left = 0
        self._text[rank] = self._text.get(rank, 0) + min(size, left)
        if size <= left:
            return message
        text = message["text"]
        self._left_out[rank] = self._left_out.get(rank, 0) + size - left
        self._end[rank] = (self._end.get(rank, "") + text[left:])[-MOST_END:]
        return {**message, "text": text[:left]} if left else None

    def _take(self) -> list[Message]:
        taken = self._waiting
        for message in taken:
            if "parts" in message:
                message["text"] = "".join(message.pop("parts"))
        notes = [
            {
                "type": "stream",
                "rank": rank,
                "name": "stderr",
                "text": f"\n[{count - len(self._end.get(rank, ''))} characters left out: more than "
                "can be shown at once]\n",
            }
            for rank, count in sorted(self._left_out.items())
        ]
        notes += [
            {"type": "stream", "rank": rank, "name": "stdout", "text": text}
            for rank, text in sorted(self._end.items())
        ]
        if notes:
            # Before the words that end the cell.
            end = len(taken) - 1 if taken and taken[-1]["type"] == "done" else len(taken)
            taken[end:end] = notes
        self._waiting = []
        self._last.clear()
        self._text.clear()
        self._left_out.clear()
        self._end.clear()
        self._urgent.clear()
        if self._closed:
            self._urgent.set()
        else:
            self._arrived.clear()
        return taken
