"""Who is at the other end of a Unix socket, as the kernel of the operating system knows it."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import json
import os
import pwd
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream
from tornado.netutil import bind_unix_socket

from ..devices.process import Process
from ..hub.node import HUB
from ..hub.upkeep import ServiceError
from ..server.api import ApiError, Caller

LONGEST_PATH = 107
"""Bytes of a Unix socket's path, see unix(7)."""

MOST_CONNECTIONS = 128
"""Of one account at a time."""

_UCRED = struct.Struct("3i")
"""``struct ucred``: pid, uid and gid, see unix(7)."""


FOR = "Gpuslice-For"
"""The header in which a hub says for whom it asks."""


@dataclass(frozen=True)
class Peer(Caller):
    """A process of one of the machine's accounts. Root is an admin, and the broker's own account.

    ``user`` is the account's name, ``#1234`` where it has none.
    """

    process: Process | None = None
    groups: frozenset[str] = frozenset()


def peer_of(sock: socket.socket) -> Peer:
    """The process that connected. :class:`ApiError` if it cannot be seen from here.

    Source: unix(7), ``SO_PEERCRED``: the credentials are those of the moment of connect(2), and
    nobody can set others without being root.
    """
    try:
        pid, uid, _ = _credentials(sock)
        process = Process.of(pid)
        owner = _acts_as(pid)
    except (OSError, ValueError, StopIteration) as error:
        raise ApiError(
            401,
            "unauthorized",
            "The broker cannot see the process that asks.",
            "It has to run on this machine, and to live while it asks.",
        ) from error
    if owner != uid:
        # The pid has a new owner: whoever connected is gone, and has left the socket to a child.
        raise ApiError(401, "unauthorized", "The process that asked is gone.")
    return Peer(
        name_of(uid),
        admin=uid in (0, os.geteuid()),
        process=process,
        groups=groups_of(uid),
    )


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of whoever connected."""
    text = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(text)
    return pid, uid, gid


def _acts_as(pid: int) -> int:
    """The effective uid of a process. The owner of ``/proc/pid`` is root's for what cannot be
    traced, whoever runs it. Source: proc_pid_status(5)."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        line = next(line for line in status if line.startswith("Uid:"))
    return int(line.split()[2])


def name_of(uid: int) -> str:
    """The account's name; no account may be called ``#`` and a number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def groups_of(uid: int) -> frozenset[str]:
    """The names of the groups that an account is in, as the machine has them now."""
    try:
        return groups_called(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return frozenset()


def groups_called(user: str) -> frozenset[str]:
    """The same for an account by its name."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return frozenset()
    found = set()
    for gid in os.getgrouplist(account.pw_name, account.pw_gid):
        try:
            found.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return frozenset(found)


def told_for(caller: Caller, hub: bool) -> str:
    """The value of the header `FOR`: for a caller, or for the hub itself."""
    return json.dumps({"user": caller.user, "admin": caller.admin, "hub": hub})


def _spoken_for(peer: Peer, told: str) -> Caller:
    if not peer.admin:
        raise ApiError(403, "forbidden", "Only a hub that runs as root may ask for others.")
    try:
        whom = json.loads(told)
        user, admin, hub = str(whom["user"]), whom["admin"] is True, whom["hub"] is True
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(400, "bad_request", f"The header {FOR} cannot be read.") from error
    return HUB if hub else Caller(user, admin=admin)


class PeerServer(HTTPServer):
    """Keeps so many connections of one account open at a time: each is a file, which all need.

    A hub needs one for each server that starts, so those who may do everything are not counted.
    """

    def initialize(self, *args: Any, **more: Any) -> None:
        super().initialize(*args, **more)
        self._streams: dict[int, list[IOStream]] = {}

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        uid = _credentials(stream.socket)[1]
        if uid not in (0, os.geteuid()):
            open_ = [each for each in self._streams.get(uid, ()) if not each.closed()]
            if len(open_) >= MOST_CONNECTIONS:
                stream.close()
                return
            self._streams[uid] = [*open_, stream]
        super().handle_stream(stream, address)


class PeerDoor:
    """Lets in every account of the machine, as the one that it is."""

    request: HTTPServerRequest

    async def who(self) -> Caller:
        """Who calls, see `hub.handlers.Handler.who`."""
        stream = getattr(self.request.connection, "stream", None)
        sock = getattr(stream, "socket", None)
        if sock is None:
            raise ApiError(401, "unauthorized", "The process that asked is gone.")
        # Accounts may be those of a directory service, which may take its time.
        peer = await asyncio.to_thread(peer_of, sock)
        told = self.request.headers.get(FOR)
        return peer if told is None else _spoken_for(peer, told)


def listen(path: Path, mode: int) -> socket.socket:
    """A Unix socket at ``path``, for those whom ``mode`` lets in. :class:`ServiceError`."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ServiceError(f"The path {path} is longer than {LONGEST_PATH} bytes.")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)
        folder = path.parent.stat()
        if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
            raise ServiceError(
                f"Others may write in {path.parent}, and could put a socket of their own there. "
                "Choose another folder."
            )
        if _answers(path):
            raise ServiceError(
                f"Another broker serves {path} already. Two would grant the same GPUs twice: stop "
                "that one first."
            )
        return bind_unix_socket(str(path), mode=mode, backlog=1024)
    except (OSError, ValueError) as error:
        raise ServiceError(f"The socket {path} cannot be made: {error}.") from error


def _answers(path: Path) -> bool:
    """Whether somebody listens at a Unix socket, busy or not."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
