"""Who is at the other end of a Unix socket, as the kernel of the operating system knows it."""

from __future__ import annotations

import grp
import json
import os
import pwd
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_unix_socket

from ..devices.process import Process
from ..hub.node import HUB
from ..hub.upkeep import ServiceError
from ..server.api import ApiError, Caller

LONGEST_PATH = 107
"""Bytes of a Unix socket's path, see unix(7)."""

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
        pid, uid, _ = _UCRED.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        )
        process = Process.of(pid)
        owner = os.stat(f"/proc/{pid}").st_uid
    except (OSError, ProcessLookupError) as error:
        raise ApiError(
            401,
            "unauthorized",
            "The broker cannot see the process that asks.",
            "It has to run on this machine, and to live while it asks.",
        ) from error
    if owner != uid and owner != 0:
        # The pid has a new owner: whoever connected is gone. (What is not readable belongs to
        # root in /proc, whoever runs it.)
        raise ApiError(401, "unauthorized", "The process that asked is gone.")
    return Peer(
        name_of(uid),
        admin=uid in (0, os.geteuid()),
        process=process,
        groups=groups_of(uid),
    )


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


class PeerDoor:
    """Lets in every account of the machine, as the one that it is."""

    request: HTTPServerRequest

    async def who(self) -> Caller:
        """Who calls, see `hub.handlers.Handler.who`."""
        stream = getattr(self.request.connection, "stream", None)
        sock = getattr(stream, "socket", None)
        if sock is None:
            raise ApiError(401, "unauthorized", "The process that asked is gone.")
        peer = peer_of(sock)
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
        return bind_unix_socket(str(path), mode=mode, backlog=1024)
    except (OSError, ValueError) as error:
        raise ServiceError(f"The socket {path} cannot be made: {error}.") from error
