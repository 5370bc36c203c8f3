"""A process that is never mistaken for a later one with the same pid."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def _boot_id() -> str:
    """Start times count from boot, so two boots may repeat one; the boot's id tells them apart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "boot"


@dataclass(frozen=True)
class _Stat:
    """What proc(5) tells in ``/proc/pid/stat``; ``start`` counts clock ticks since boot."""

    state: str
    parent: int
    start: str

    @property
    def alive(self) -> bool:
        """A zombie is not: it holds no device any more."""
        return self.state not in "ZX"


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command stands in parentheses and may hold any character, blanks and ")" included.
    after = text.rpartition(")")[2].split()
    return _Stat(after[0], int(after[1]), after[19])


def parent(pid: int) -> int:
    """The pid of a process's parent; 0 if the process is gone."""
    stat = _stat(pid)
    return stat.parent if stat else 0


@dataclass(frozen=True)
class Process:
    """A pid and a word that no other process with that pid shares."""

    pid: int
    created: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has ``pid`` now; ``ProcessLookupError`` if there is none."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, f"{_boot_id()}-{stat.start}")

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        stat = _stat(self.pid)
        return stat is not None and stat.alive and self.created == f"{_boot_id()}-{stat.start}"

    def open_pidfd(self) -> int:
        """A file descriptor that becomes readable when the process ends (pidfd_open(2)).

        ``ProcessLookupError`` if it is gone already, also when its pid has a new owner.
        """
        fd = os.pidfd_open(self.pid)
        if not self.alive():
            os.close(fd)
            raise ProcessLookupError(f"process {self.pid} is gone")
        return fd

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "created": self.created}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Process:
        return cls(int(data["pid"]), str(data["created"]))
