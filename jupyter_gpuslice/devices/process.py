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


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start time (clock ticks since boot) of a process; proc(5), ``/proc/pid/stat``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command stands in parentheses and may hold any character, blanks and ")" included.
    after = text.rpartition(")")[2].split()
    return after[0], after[19]


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
        return cls(pid, f"{_boot_id()}-{stat[1]}")

    def alive(self) -> bool:
        """Whether it still runs. A zombie does not: it holds no device any more."""
        stat = _stat(self.pid)
        return (
            stat is not None and stat[0] not in "ZX" and self.created == f"{_boot_id()}-{stat[1]}"
        )

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
