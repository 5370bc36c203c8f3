"""Errors that a person meets in a notebook: words, never a traceback of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class GpuSliceError(Exception):
    """Something that cannot be done, said for people.

    ``message`` says what, ``reason`` is a stable word for programs, ``hint`` what to do,
    ``details`` is what a server's refusal says for programs.
    """

    def __init__(
        self,
        message: str,
        reason: str = "error",
        hint: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = message
        self.reason = reason
        self.hint = hint
        self.details = dict(details or {})
        super().__init__(f"{message} {hint}".strip())

    @property
    def passes(self) -> bool:
        """Whether it is a refusal of what could be had by waiting for it."""
        return self.details.get("never") is False

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        lines = [f"{type(self).__name__}: {self.message}"]
        return [*lines, self.hint] if self.hint else lines


class NotReachableError(GpuSliceError):
    """The server does not answer."""


class CellSyntaxError(GpuSliceError):
    """The cell cannot be parsed, found before anything was sent."""

    def __init__(self, error: SyntaxError, rendered: list[str]) -> None:
        super().__init__(str(error), "syntax")
        self._rendered = rendered

    def _render_traceback_(self) -> list[str]:
        return self._rendered


class PeerError(Exception):
    """A cell failed on a rank of a peer group.

    ``errors`` holds one mapping a failed rank, in the order in which they failed, with ``rank``,
    ``ename``, ``evalue`` and ``traceback`` (lines). Shown as the first one's own traceback.
    """

    def __init__(self, errors: list[dict[str, Any]], *, labelled: bool = True) -> None:
        self.errors = errors
        self._labelled = labelled
        super().__init__("; ".join(self._headline(error) for error in errors[:4]))

    def _headline(self, error: dict[str, Any]) -> str:
        what = f"{error.get('ename', 'Error')}: {error.get('evalue', '')}".rstrip(": ")
        return f"rank {error['rank']}: {what}" if self._labelled else what

    def _render_traceback_(self) -> list[str]:
        first, *others = self.errors
        lines = "\n".join(first.get("traceback") or []).split("\n")
        if lines in ([""], str(first.get("evalue")).split("\n")):
            # Words of the server about a rank, not a traceback of its own.
            lines = [f"{first.get('ename', 'Error')}: {first.get('evalue', '')}"]
        elif self._labelled:
            lines.insert(0, f"rank {first['rank']} failed:")
        same = [
            str(error["rank"])
            for error in others
            if (error.get("ename"), error.get("evalue"))
            == (first.get("ename"), first.get("evalue"))
        ]
        if same:
            lines += ["", f"The same on rank{'s' if len(same) > 1 else ''} {', '.join(same)}."]
        different = [error for error in others if str(error["rank"]) not in same]
        if different:
            lines += ["", *(self._headline(error) for error in different)]
        return lines


class CellInterrupted(KeyboardInterrupt):
    """The interrupt that ended a cell on its ranks, shown without our frames.

    ``where``: lines that show where a rank was.
    """

    def __init__(self, message: str, where: Sequence[str] = ()) -> None:
        self._where = list(where)
        super().__init__(message)

    def _render_traceback_(self) -> list[str]:
        return [*self._where, f"KeyboardInterrupt: {self}"]
