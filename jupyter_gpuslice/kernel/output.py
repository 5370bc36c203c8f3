"""What the ranks of a peer group say, rendered in the notebook (or terminal) as it arrives.

Lines carry their rank: ``[1] loss 0.3``. Text that has no end yet (progress bars with ``\\r``, a
prompt without a newline) stands in one live block with a line for each rank, so that several bars
never garble each other; where a display cannot be updated, in one rewritten line of the terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import uuid
from typing import Any, TextIO

REFRESH_S = 0.1
"""The live block is redrawn at most this often."""
UNFINISHED_S = 0.2
"""A line that has no end after this long is shown as far as it is there."""
TELL_S = 2.0
"""A failed rank is told before the end if the others run on for longer than this."""
LONGEST_LINE = 1 << 16
"""Text without a line's end is cut into lines of this length."""

# Cursor movement and erasing (several bars of one tqdm); colours are kept.
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")
_CARRIAGE = re.compile(r"\r+\n")


class _Row:
    """A line of the live block: what a rank has written since its last line's end."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.text = ""
        self.open = True

    def render(self) -> str:
        return f"[{self.rank}] {self.text}"


class NotebookBlock:
    """A display that is updated in place; finished lines stay in it."""

    keeps_finished = True

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._id = f"gpuslice-live-{uuid.uuid4().hex}"
        self._shown = ""

    def draw(self, rows: list[_Row]) -> None:
        text = "\n".join(row.render() for row in sorted(rows, key=lambda row: row.rank))
        if text == self._shown:
            return
        first, self._shown = not self._shown, text
        self._publisher.publish(
            {"text/plain": text},
            metadata={},
            transient={"display_id": self._id},
            update=not first,
        )

    def lift(self) -> None:
        """Before ordinary output: the block stays where it is."""


class TerminalBlock:
    """One line at the bottom of a terminal, rewritten; finished lines scroll away above it."""

    keeps_finished = False

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = False

    def draw(self, rows: list[_Row]) -> None:
        text = " │ ".join(row.render() for row in rows if row.open)
        width = shutil.get_terminal_size().columns - 1
        self.lift()
        if text:
            self._out.write(text if len(text) <= width else text[: width - 1] + "…")
            self._out.flush()
            self._drawn = True

    def lift(self) -> None:
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._drawn = False


class SilentBlock:
    """Where nothing can be rewritten (a pipe, a log): only whole lines are written."""

    keeps_finished = False

    def draw(self, rows: list[_Row]) -> None:
        pass

    def lift(self) -> None:
        pass


class Renderer:
    """Renders the messages of one cell on a group.

    ``label``: whether lines carry their rank. ``show``: the ranks whose output is shown (``None``:
    all); errors of the others are shown all the same. ``prefix`` makes display ids unique.
    Use ``message`` for each, ``idle`` when none came for a while, ``finish`` at the end.
    """

    def __init__(
        self,
        shell: Any,
        *,
        label: bool = True,
        show: set[int] | None = None,
        prefix: str = "",
    ) -> None:
        self._shell = shell
        self._label = label
        self._show = show
        self._prefix = prefix or uuid.uuid4().hex
        self._rest: dict[tuple[int, str], str] = {}
        self._since: dict[tuple[int, str], float] = {}
        self._rows: dict[tuple[int, str], _Row] = {}
        self._block: Any = None
        self._block_rows: list[_Row] = []
        self._drawn_at = 0.0
        self._stale = False
        self._pending: set[int] = set()
        self._used: dict[int, list[str]] = {}
        self._reusable: dict[int, list[str]] = {}
        self._steps: list[str] = []
        self._told = 0
        self._failed_at = 0.0
        self._last_stream = "stdout"
        self._results: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        self.values: dict[str, dict[int, str]] = {}
        self.done: dict[str, Any] | None = None

    def message(self, message: dict[str, Any]) -> None:
        """Render one message of the stream; unknown kinds are passed over."""
        handler = getattr(self, f"_on_{message.get('type')}", None)
        if handler is not None:
            handler(message)
        if self._since:
            # Also while others keep talking.
            self._show_unfinished(time.monotonic() - UNFINISHED_S)

    def idle(self) -> None:
        """Nothing came for a moment: show what is unfinished."""
        self._show_unfinished(time.monotonic())
        self._draw(force=True)
        self._show_results()
        if len(self.errors) > self._told and time.monotonic() - self._failed_at > TELL_S:
            for error in self.errors[self._told :]:
                what = f"{error.get('ename')}: {error.get('evalue')}"
                self._write("stderr", f"{self._tag(error)}{what} (others are still running)\n")
            self._told = len(self.errors)
        sys.stdout.flush()
        sys.stderr.flush()

    def finish(self) -> None:
        """Give unfinished text its line's end."""
        for key, rest in list(self._rest.items()):
            if rest:
                self._line(key, rest)
        self._rest.clear()
        self._since.clear()
        self._draw(force=True)
        self._show_results()
        if self._block is not None:
            self._block.lift()

    # One method for each type of message.

    def _on_status(self, message: dict[str, Any]) -> None:
        text = str(message.get("text") or "")
        if text and text not in self._steps[-1:]:
            self._steps.append(text)
            self._write("stdout", f"{text}\n")

    def _on_notice(self, message: dict[str, Any]) -> None:
        self._write("stderr", f"{message.get('text')}\n")

    def _on_stream(self, message: dict[str, Any]) -> None:
        rank, name = _rank(message), str(message.get("name") or "stdout")
        if not self._shows(rank):
            return
        text = str(message.get("text") or "")
        if not self._label:
            self._write(name, text)
            return
        key = (rank, name)
        *lines, rest = (self._rest.get(key, "") + _CARRIAGE.sub("\n", text)).split("\n")
        if lines:
            self._lines(key, lines)
        while len(rest) > LONGEST_LINE:
            self._line(key, rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        # What a carriage return has overwritten is gone; a last one alone still shows its line.
        head, sign, tail = rest.rpartition("\r")
        if sign:
            rest = tail if tail else head.rpartition("\r")[2] + "\r"
        if not rest:
            self._since.pop(key, None)
        elif lines or key not in self._since:
            self._since[key] = time.monotonic()
        self._rest[key] = rest
        if sign or key in self._rows:
            self._open_row(key, rest)
        self._draw()

    def _on_display(self, message: dict[str, Any]) -> None:
        rank = _rank(message)
        if not self._shows(rank):
            return
        data = message.get("data") or {}
        own = (message.get("transient") or {}).get("display_id")
        update = bool(message.get("update"))
        if self._plain(data) and own is None and rank not in self._pending and not update:
            self._text(rank, str(data.get("text/plain") or ""))
            return
        self._publish(rank, data, message.get("metadata") or {}, own, update)

    def _on_result(self, message: dict[str, Any]) -> None:
        if self._shows(_rank(message)):
            self._results.append(message)

    def _on_clear(self, message: dict[str, Any]) -> None:
        rank = _rank(message)
        if not self._shows(rank):
            return
        if not self._label and self._in_notebook():
            self._shell.display_pub.clear_output(wait=bool(message.get("wait")))
            return
        # Clearing everything would take the other ranks' output too: what this rank displays
        # next takes the place of what it displayed before.
        self._pending.add(rank)
        self._reusable[rank] = self._used.pop(rank, [])

    def _on_error(self, message: dict[str, Any]) -> None:
        self.errors.append(dict(message, rank=_rank(message)))
        self._failed_at = time.monotonic()

    def _on_value(self, message: dict[str, Any]) -> None:
        values = self.values.setdefault(str(message.get("name")), {})
        values[_rank(message)] = str(message.get("pickle"))

    def _on_done(self, message: dict[str, Any]) -> None:
        self.done = message

    # Rendering.

    def _show_unfinished(self, before: float) -> None:
        """Bring lines that began before that time into the live block."""
        for key, since in self._since.items():
            if since <= before and key not in self._rows:
                self._open_row(key, self._rest[key])
        self._draw()

    def _show_results(self) -> None:
        """Values of last expressions that came close together: in the order of ranks."""
        results, self._results = self._results, []
        for message in sorted(results, key=_rank):
            rank, data = _rank(message), message.get("data") or {}
            if self._plain(data):
                self._text(rank, str(data.get("text/plain") or ""))
            else:
                self._publish(rank, data, message.get("metadata") or {}, None, False)

    def _shows(self, rank: int) -> bool:
        return self._show is None or rank in self._show

    def _tag(self, message: dict[str, Any]) -> str:
        return f"[{_rank(message)}] " if self._label else ""

    def _plain(self, data: dict[str, Any]) -> bool:
        return set(data) <= {"text/plain"} or not self._in_notebook()

    def _in_notebook(self) -> bool:
        # Only a kernel has a channel to publish on.
        return getattr(self._shell, "kernel", None) is not None

    def _text(self, rank: int, text: str) -> None:
        label = f"[{rank}] " if self._label else ""
        self._write("stdout", "".join(f"{label}{line}\n" for line in text.split("\n")))

    def _publish(
        self,
        rank: int,
        data: dict[str, Any],
        metadata: dict[str, Any],
        own: str | None,
        update: bool,
    ) -> None:
        if not self._in_notebook():
            self._text(rank, str(data.get("text/plain") or ""))
            return
        reused = False
        if own is not None:
            display_id = f"gpuslice-{self._prefix}-{rank}-{own}"
        elif self._pending and self._reusable.get(rank):
            display_id, reused = self._reusable[rank].pop(0), True
        else:
            display_id = f"gpuslice-{uuid.uuid4().hex}"
        if not update:
            self._used.setdefault(rank, []).append(display_id)
        if self._label and not update and not reused:
            self._write("stdout", f"[{rank}]\n")
        self._shell.display_pub.publish(
            data,
            metadata=metadata,
            transient={"display_id": display_id},
            update=update or reused,
        )

    def _lines(self, key: tuple[int, str], lines: list[str]) -> None:
        first, *others = lines
        if key in self._rows:
            self._line(key, first)
        else:
            others = lines
        if others:
            rank, name = key
            text = "".join(f"[{rank}] {_visible(line)}\n" for line in others)
            self._write(name, text)

    def _line(self, key: tuple[int, str], line: str) -> None:
        """One whole line: into the live block if it stood there, else written."""
        row = self._rows.pop(key, None)
        text = _visible(line)
        if row is not None:
            row.text, row.open = text, False
            self._stale = True
            keeps = self._block is not None and self._block.keeps_finished
            if keeps and text.strip():
                return
            self._block_rows.remove(row)
            if not text.strip():
                # A bar that wiped itself away.
                return
        self._write(key[1], f"[{key[0]}] {text}\n")

    def _open_row(self, key: tuple[int, str], text: str) -> None:
        row = self._rows.get(key)
        if row is None:
            if self._block is not None and not any(r.open for r in self._block_rows):
                # The last bars are done: new ones stand below what was written since.
                self._draw(force=True)
                self._block, self._block_rows = None, []
            row = self._rows[key] = _Row(key[0])
            self._block_rows.append(row)
        row.text = _visible(text)
        self._stale = True

    def _draw(self, force: bool = False) -> None:
        if not self._stale:
            return
        now = time.monotonic()
        if not force and now - self._drawn_at < REFRESH_S:
            return
        if self._block is None:
            self._block = self._new_block()
        self._block.draw(self._block_rows)
        self._drawn_at, self._stale = now, False

    def _new_block(self) -> Any:
        if self._in_notebook():
            return NotebookBlock(self._shell.display_pub)
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            return TerminalBlock(sys.stdout)
        return SilentBlock()

    def _write(self, name: str, text: str) -> None:
        if self._block is not None:
            self._block.lift()
            self._stale = self._stale or bool(self._rows)
        if name != self._last_stream:
            # The two are sent apart: what was written first shall be seen first.
            _stream(self._last_stream).flush()
            self._last_stream = name
        _stream(name).write(text)
        if not self._in_notebook():
            _stream(name).flush()


def _stream(name: str) -> TextIO:
    return sys.stderr if name == "stderr" else sys.stdout


def _rank(message: dict[str, Any]) -> int:
    rank = message.get("rank")
    return rank if isinstance(rank, int) else 0


def _visible(text: str) -> str:
    """A line as it looks when it has been written: carriage returns and movements done."""
    parts = [part for part in text.split("\r") if part]
    return _MOVES.sub("", parts[-1] if parts else "")
