"""Let the demo's hub end when the demo was killed, and could not end it itself."""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import threading

from ..devices.process import Process


def end_with(pid: int, folder: str) -> None:
    """End this process in order when process ``pid`` is gone, and then remove ``folder``."""
    try:
        parent = Process.of(pid)
        fd = parent.open_pidfd()
    except (ProcessLookupError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        return
    threading.Thread(target=_watch, args=(fd,), name="demo-parent", daemon=True).start()
    atexit.register(_remove, parent, folder)


def _watch(fd: int) -> None:
    # A pidfd becomes readable when its process ends, see pidfd_open(2).

    select.select([fd], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def _remove(parent: Process, folder: str) -> None:
    if not parent.alive():
        shutil.rmtree(folder, ignore_errors=True)
