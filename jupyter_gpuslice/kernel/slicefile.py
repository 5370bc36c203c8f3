"""How a kernel learns what slice it has: a small file, looked at before each cell.

The server replaces the file that ``JUPYTER_GPUSLICE_SLICE`` names when the kernel's lease changes:

    {"version": 7, "lease": {...} | null, "env": {"CUDA_VISIBLE_DEVICES": ...}, "message": "..."}

While nothing changes, a cell costs one ``stat``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from . import frameworks
from .words import lease_words

HOLDING = ("granted", "active")


class SliceFile:
    """The slice file of this kernel, and what of it is in place in this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        self._stamp: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        """Read the file if it was replaced; true if it was. An unreadable one is left for later."""
        try:
            stat = os.stat(self.path)
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp == self._stamp:
                return False
            with open(self.path, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError):
            return False
        if not isinstance(content, dict):
            return False
        self._stamp = stamp
        self.content = content
        return True

    @property
    def lease(self) -> dict[str, Any] | None:
        lease = self.content.get("lease")
        return lease if isinstance(lease, dict) else None

    @property
    def holding(self) -> bool:
        lease = self.lease
        return bool(lease and lease.get("state") in HOLDING and lease.get("slices"))

    @property
    def environment(self) -> dict[str, str | None]:
        env = self.content.get("env")
        return env if isinstance(env, dict) else {}


class SliceHook:
    """Puts a changed slice in place in this process and says so in one line.

    ``say`` takes that line, ``names`` gives devices' names by their UUIDs for it. A process that
    has initialised CUDA keeps its devices: for those it is told, once for each change, that a
    restart is needed.
    """

    def __init__(
        self,
        path: str,
        say: Callable[[str], None] | None = None,
        names: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self.file = SliceFile(path)
        self._say = say if say is not None else _print
        self._names = names
        self.restart_needed = False
        self._told = ""
        self._first = ""
        if self.file.changed():
            # The kernel was started with this environment: only words are news.
            put_in_place(self.file.environment)
            if (self.file.lease or {}).get("request") != "auto":
                self._first = str(self.file.content.get("message") or "")

    def before_cell(self, *_: Any) -> None:
        """IPython's ``pre_run_cell``. Never raises: no cell fails for a file of ours."""
        try:
            if self._first:
                first, self._first = self._first, ""
                self._told = first
                self._say(first)
            self.refresh()
        except Exception as error:
            self._say(f"The GPU slice of this kernel could not be put in place: {error}")

    def refresh(self, quiet: bool = False) -> bool:
        """Look at the file, put a change in place; true if there was one."""
        before, held = self.file.lease, self.file.holding
        devices_before = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not self.file.changed():
            return False
        put_in_place(self.file.environment)
        moved = os.environ.get("CUDA_VISIBLE_DEVICES") != devices_before
        user = frameworks.cuda_user()
        if user and moved:
            self.restart_needed = True
            self._say(
                f"The GPU slice of this kernel changed, but {user} already uses CUDA here and "
                "keeps the devices it found. Restart the kernel to use the new slice "
                "(Kernel → Restart; the slice stays yours)."
            )
            return True
        if user:
            frameworks.apply_memory_fraction()
        if not quiet:
            words = self._news(before, held)
            if words:
                self._say(words)
        return True

    def _news(self, before: dict[str, Any] | None, held: bool) -> str:
        lease = self.file.lease
        message = str(self.file.content.get("message") or "")
        if self.file.holding:
            if held and (before or {}).get("slices") == (lease or {}).get("slices"):
                return ""
            what = "changed" if held else "granted"
            return f"GPU slice {what}: {lease_words(lease, self._names())}."
        if message and message != self._told:
            self._told = message
            return message
        if held:
            return (
                f"This kernel holds no GPU slice now. {(lease or {}).get('detail') or ''}".strip()
            )
        return ""


def put_in_place(environment: dict[str, str | None]) -> None:
    """Set these variables in this process; ``None`` unsets one."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


def _print(text: str) -> None:
    print(text, flush=True)
