"""Free a rank that is blocked in a collective, by shutting down its connections to other ranks.

A thread blocked in gloo's C++ does not see SIGINT, and ``ProcessGroupGloo.abort()`` wakes nobody.
What does wake it is an end of its connection. Which sockets those are is read from ``/proc``: a
connection is one between ranks when its other end belongs to the process of another rank. All
others (the kernel's own, a database, a download) are left alone. See proc(5).
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Connection(NamedTuple):
    """A TCP connection; addresses as the kernel writes them: hexadecimal ``address:port``."""

    local: str
    remote: str

    @property
    def ports(self) -> tuple[int, int]:
        return int(self.local.rpartition(":")[2], 16), int(self.remote.rpartition(":")[2], 16)


def _sockets(pid: int | str) -> dict[int, int]:
    """The inodes of a process's sockets and a file descriptor of each."""
    found = {}
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    for name in names:
        try:
            match = _SOCKET.fullmatch(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
        if match:
            found[int(match[1])] = int(name)
    return found


def _table() -> Iterator[tuple[int, Connection]]:
    """All TCP connections of this network namespace, by inode."""
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(path) as lines:
                next(lines, None)
                for line in lines:
                    fields = line.split()
                    yield int(fields[9]), Connection(fields[1], fields[2])
        except OSError:
            continue


def shut_down(peers: Iterable[int], store_port: int | None) -> int:
    """Shut down this process's connections to the processes ``peers``; returns how many.

    Also its own as a client of the rendezvous store, in which it may wait for a key. In the rank
    that has the store, those of the others stay: the store serves them on.
    """
    table = dict(_table())
    own = _sockets("self")
    theirs = {
        table[inode]
        for pid in peers
        if pid != os.getpid()
        for inode in _sockets(pid)
        if inode in table
    }
    count = 0
    for inode, fd in own.items():
        connection = table.get(inode)
        if connection is None:
            continue
        local_port, remote_port = connection.ports
        if store_port is not None and store_port in (local_port, remote_port):
            wanted = remote_port == store_port
        else:
            wanted = Connection(connection.remote, connection.local) in theirs
        if wanted and _shut(fd, inode):
            count += 1
    return count


def _shut(fd: int, inode: int) -> bool:
    try:
        copy = os.dup(fd)
    except OSError:
        return False
    # Between the look and the copy the descriptor may have come to mean something else.
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        return False
    with socket.socket(fileno=copy) as connection:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
