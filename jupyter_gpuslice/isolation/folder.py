"""A private folder of a running process, that goes when the process is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

LOCK = "lock"
UNLOCKED_SECONDS = 600.0
"""Age from which a folder without a lock counts as left behind: a younger one may be in the
making."""


class OwnFolder:
    """A new folder (mode 0700) under ``root``, whose name begins with ``prefix``.

    Who lives is told by a lock that the process holds, never by a pid: the same folder may be seen
    from several machines or containers, each with pids of its own. Those whose lock nobody holds
    are removed. Blocks shortly; ``OSError`` if there can be none.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        for old in root.glob(f"{prefix}*"):
            _remove_if_dead(old)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        self._lock = open(self.path / LOCK, "w")  # noqa: SIM115 (held for life)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_dead(folder: Path) -> None:
    try:
        if folder.stat().st_uid != os.geteuid():
            return
        try:
            lock = open(folder / LOCK, "r+")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            if time.time() - folder.stat().st_mtime > UNLOCKED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # it lives, or it is not ours to look at
