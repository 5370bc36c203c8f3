"""End what a dead holder left behind, before its slice goes to somebody else.

A kernel that is killed leaves its children running (data loaders, a server started from a cell),
and they keep their device memory. They are known by their environment, which they inherited.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..broker.lease import Lease
from ..devices.process import Process, parent

Belongs = Callable[[dict[bytes, bytes]], bool]
"""Whether a process is meant, by its environment."""

_OURS = (b"JUPYTER_GPUSLICE_", b"JUPYTERHUB_USER", b"JUPYTERHUB_SERVER_NAME")
TERM_GRACE = 0.8
"""Seconds between SIGTERM and SIGKILL: the whole has to fit in the 5 s of a lease's end."""
KILL_GRACE = 2.0
"""Seconds that the kernel gets to take killed processes away."""


def leftovers(lease: Lease, keep: Collection[Process] = ()) -> list[Process]:
    """The processes that carry the mark of this lease or of its kernel (blocks: scans /proc).

    Only those that we may signal, never this process nor one in ``keep``.
    """
    return _marked(lambda environ: _belongs(environ, lease), keep)


def _marked(belongs: Belongs, keep: Collection[Process]) -> list[Process]:
    kept = {process.pid for process in keep} | {os.getpid(), 1}
    found = []
    for pid in _pids():
        if pid in kept:
            continue
        environ = _environ(pid)
        if environ is not None and belongs(environ):
            try:
                found.append(Process.of(pid))
            except ProcessLookupError:
                continue
    return found


def reap(lease: Lease, keep: Collection[Process] = ()) -> list[Process]:
    """SIGTERM, then SIGKILL, to all that a lease's holder left (blocks for up to 3 s).

    Returns those that are still there: a process in an uninterruptible sleep cannot be ended.
    """
    return _reap(lambda: leftovers(lease, keep))


def end(processes: Iterable[Process]) -> list[Process]:
    """The same for processes that are known, such as the server that held a lease.

    Never this process. Those that may not be signalled are still there.
    """
    mine = [process for process in processes if process.pid not in (1, os.getpid())]
    return _reap(lambda: [process for process in mine if process.alive()])


def reap_group(group_id: str) -> list[Process]:
    """The same for what the ranks of a group without a lease left."""
    mark = group_id.encode()
    return _reap(
        lambda: _marked(lambda environ: environ.get(b"JUPYTER_GPUSLICE_GROUP") == mark, ())
    )


def _reap(find: Callable[[], list[Process]]) -> list[Process]:
    for attempt, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, KILL_GRACE)):
        # Looked up anew before each signal: a dying process may have started others.
        rest = find()
        if not rest:
            return []
        for process in rest:
            _signal(process, attempt)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(process.alive() for process in rest):
            time.sleep(0.02)
    return [process for process in find() if process.alive()]


@dataclass(frozen=True)
class Session:
    """A user server that lives, as its environment tells: whose it is and what it was granted."""

    user: str
    server: str
    grant: Mapping[str, Any]
    processes: tuple[Process, ...]


def sessions() -> list[Session]:
    """The user servers with a grant that run on this machine (blocks: scans /proc)."""
    grants: dict[int, bytes] = {}
    environs = {pid: environ for pid in _pids() if (environ := _environ(pid))}
    for pid, environ in environs.items():
        if environ.get(b"JUPYTER_GPUSLICE_GRANT"):
            grants[pid] = environ[b"JUPYTER_GPUSLICE_GRANT"]
    tops: dict[bytes, list[int]] = {}
    for pid, text in grants.items():
        # Children inherit the grant; the server is the one whose parent does not have it.
        if grants.get(parent(pid)) != text:
            tops.setdefault(text, []).append(pid)
    found = []
    for text, pids in tops.items():
        environ = environs[pids[0]]
        try:
            grant = json.loads(text)
            processes = tuple(Process.of(pid) for pid in pids)
        except (ValueError, ProcessLookupError):
            continue
        user = environ.get(b"JUPYTERHUB_USER", b"").decode(errors="replace")
        server = environ.get(b"JUPYTERHUB_SERVER_NAME", b"").decode(errors="replace")
        if isinstance(grant, dict) and user:
            found.append(Session(user, server, grant, processes))
    return found


def _pids() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)


def _environ(pid: int) -> dict[bytes, bytes] | None:
    """What the process was started with; ``None`` where we may not look or it is gone."""
    path = Path(f"/proc/{pid}")
    try:
        uid = path.stat().st_uid
        if os.geteuid() not in (0, uid):
            return None
        text = (path / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name.startswith(_OURS)}


def _belongs(environ: dict[bytes, bytes], lease: Lease) -> bool:
    if environ.get(b"JUPYTER_GPUSLICE_LEASE") == lease.id.encode():
        return True
    if lease.holder.kind == "kernel":
        return environ.get(b"JUPYTER_GPUSLICE_KERNEL_ID") == lease.holder.id.encode()
    if lease.holder.kind == "session":
        try:
            grant = json.loads(environ.get(b"JUPYTER_GPUSLICE_GRANT", b"{}"))
        except ValueError:
            return False
        return isinstance(grant, dict) and grant.get("lease") == lease.id
    return False


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        fd = process.open_pidfd()
    except ProcessLookupError:
        return
    except OSError:
        # Without pidfds a pid could change hands between the look and the signal.
        if process.alive():
            try:
                os.kill(process.pid, number)
            except OSError:
                pass
        return
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
    finally:
        os.close(fd)
