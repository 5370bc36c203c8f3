"""Who is believed to be at the other end of a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application

from jupyter_gpuslice.broker import Holder, Ledger, Slice
from jupyter_gpuslice.devices import SimulatedSource
from jupyter_gpuslice.hub.handlers import routes
from jupyter_gpuslice.hub.node import Machine
from jupyter_gpuslice.hub.upkeep import ServiceError
from jupyter_gpuslice.request import GpuRequest
from jupyter_gpuslice.server.api import ApiError
from jupyter_gpuslice.server.link import Link, LinkError
from jupyter_gpuslice.server.upstream import URL
from jupyter_gpuslice.workstation.node import Workstation, anything
from jupyter_gpuslice.workstation.peer import FOR, PeerDoor, groups_called, listen, name_of, peer_of

from .accounts import two, why_not


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair(socket.AF_UNIX)
    yield ends
    for end in ends:
        end.close()


def test_the_operating_system_says_who_it_is(pair: Any) -> None:
    peer = peer_of(pair[0])
    assert peer.user == pwd.getpwuid(os.geteuid()).pw_name
    assert peer.process is not None and peer.process.pid == os.getpid()
    assert peer.admin
    assert peer.groups == groups_called(peer.user)


def test_a_process_that_is_gone_is_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    end, _ = server.accept()
    with pytest.raises(ApiError) as error:
        peer_of(end)
    assert error.value.status == 401
    end.close()
    server.close()


@pytest.mark.skipif(bool(why_not()), reason=f"Two accounts: {why_not()}")
def test_a_process_of_roots_that_has_the_pid_of_one_that_is_gone_is_not_the_caller(
    tmp_path: Path,
) -> None:
    ana, _ = two(tmp_path)
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    path.chmod(0o666)
    # The one that connects ends, and its child keeps the connection.
    code = (
        "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX); "
        f"s.connect({str(path)!r}); pid = os.fork(); pid or time.sleep(60); "
        "print(os.getpid(), pid, flush=True)"
    )
    command = [*ana.prefix, sys.executable, "-c", code]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    connected, child = map(int, started.stdout.readline().split())
    end, _ = server.accept()
    started.wait()
    thief = None
    try:
        for _ in range(200):
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(connected - 1))
            thief = subprocess.Popen(["sleep", "60"])
            if thief.pid == connected:
                break
            thief.kill()
            thief.wait()
        else:
            pytest.skip("another process was faster each time")
        with pytest.raises(ApiError) as error:
            peer_of(end)
        assert error.value.status == 401
    except OSError as error:
        pytest.skip(f"no pid can be chosen here: {error}")
    finally:
        os.kill(child, signal.SIGKILL)
        if thief is not None:
            thief.kill()
            thief.wait()
        end.close()
        server.close()


def test_an_account_without_a_name_has_one_that_no_account_can_have() -> None:
    assert name_of(3_999_999_999) == "#3999999999"
    assert groups_called("#3999999999") == frozenset()


@pytest.mark.parametrize(("mode", "kind"), [(0o666, "all"), (0o600, "its own")])
def test_a_socket_lets_in_whom_it_should(tmp_path: Path, mode: int, kind: str) -> None:
    path = tmp_path / "made" / "here.sock"
    listen(path, mode).close()
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    # A socket that an earlier broker left is no hindrance.
    listen(path, mode).close()


def test_a_socket_at_which_somebody_answers_is_left_to_them(tmp_path: Path) -> None:
    first = listen(tmp_path / "s", 0o666)
    with pytest.raises(ServiceError, match="Another broker serves"):
        listen(tmp_path / "s", 0o666)
    # Not even when it is too busy to answer, and the first one still has it.
    first.listen(0)
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            each.connect(str(tmp_path / "s"))
    with pytest.raises(ServiceError, match="Another broker serves"):
        listen(tmp_path / "s", 0o666)
    for each in (*waiting, first):
        each.close()


def test_a_socket_where_others_could_put_theirs_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(ServiceError, match="Others may write"):
        listen(open_to_all / "s", 0o666)
    with pytest.raises(ServiceError, match="longer than"):
        listen(tmp_path / ("x" * 120), 0o666)
    (tmp_path / "file").write_text("no socket")
    with pytest.raises(ServiceError, match="cannot be made"):
        listen(tmp_path / "file", 0o666)


def served(tmp_path: Path, work: Any) -> None:
    async def do() -> None:
        source = SimulatedSource("a100-80gb:1")
        node = Workstation.of(Machine.look(source), source, Ledger.open(None), "")
        node.profiles = anything(1)
        await node.start()
        server = HTTPServer(Application(routes("/", node, PeerDoor)))
        server.add_socket(listen(tmp_path / "s", 0o666))
        try:
            await work(node, Link(URL, socket=str(tmp_path / "s")))
        finally:
            server.stop()
            await server.close_all_connections()
            await node.stop()

    asyncio.run(do())


def test_a_session_asks_again_and_has_what_it_had(tmp_path: Path) -> None:
    async def work(node: Workstation, link: Link) -> None:
        first = await link.call("POST", "leases", {"request": "0.5"})
        again = await link.call("POST", "leases", {"request": "0.5"})
        assert first["id"] == again["id"] and first["state"] == "active"
        with pytest.raises(LinkError) as refused:
            await link.call("POST", "leases", {"request": "0.25"})
        assert refused.value.reason == "already_held"
        grant = await link.call("GET", f"leases/{first['id']}/grant")
        assert grant["slices"] == first["slices"] and grant["url"] == ""
        (lease,) = node.broker.leases()
        assert lease.processes[0].pid == os.getpid()

    served(tmp_path, work)


def test_who_says_nothing_gets_the_default(tmp_path: Path) -> None:
    async def work(node: Workstation, link: Link) -> None:
        lease = await link.call("POST", "leases", {})
        assert lease["request"] == "0.25"

    served(tmp_path, work)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"request": "0"}, "bad_request"),
        ({"request": "auto"}, "over_limit"),
        ({"request": "lots"}, "bad_request"),
        ({"request": "2"}, "over_limit"),
        ({"request": "h100:1"}, "unknown_model"),
        ({"request": "0.5", "holder": {"kind": "session", "id": "root/"}}, "bad_request"),
        ({"request": "0.5", "priority": 5}, "bad_request"),
        ([], "bad_request"),
    ],
)
def test_what_a_session_cannot_ask_for(tmp_path: Path, body: Any, reason: str) -> None:
    async def work(node: Workstation, link: Link) -> None:
        with pytest.raises(LinkError) as refused:
            await link.call("POST", "leases", body)
        assert refused.value.reason == reason
        assert node.broker.leases() == []

    served(tmp_path, work)


@pytest.mark.parametrize("told", [{}, {"user": "ana"}, "no JSON {", 5, None])
def test_words_that_say_nothing_of_whom_are_refused(tmp_path: Path, told: Any) -> None:
    text = told if isinstance(told, str) else json.dumps(told)

    async def work(node: Workstation, link: Link) -> None:
        with pytest.raises(LinkError) as refused:
            await Link(URL, {FOR: text}, link.socket).call("GET", "leases")
        assert (refused.value.status, refused.value.reason) == (400, "bad_request")

    served(tmp_path, work)


def test_what_a_process_says_that_it_holds_is_not_believed_where_no_hub_said_so(
    tmp_path: Path,
) -> None:
    """A new ledger, and a process with a grant of its own making for all there is."""
    device = SimulatedSource("a100-80gb:1").devices()[0]
    all_of_it = Slice(device.uuid, 1024, 100, 100).to_dict()
    grant = {"lease": "mine", "request": "1", "url": "", "slices": [all_of_it]}
    environ = {"JUPYTERHUB_USER": "root", "JUPYTER_GPUSLICE_GRANT": json.dumps(grant)}
    liar = subprocess.Popen(["sleep", "60"], env={**os.environ, **environ})
    while b"GRANT" not in Path(f"/proc/{liar.pid}/environ").read_bytes():
        time.sleep(0.01)
    try:

        async def work(node: Workstation, link: Link) -> None:
            assert node.broker.leases() == []

        served(tmp_path, work)
    finally:
        liar.kill()
        liar.wait()


@pytest.mark.parametrize("holding", [0.5, 1])
def test_a_broker_that_was_killed_while_it_granted_leaves_nothing_held_by_nobody(
    tmp_path: Path, holding: float
) -> None:
    """Between the grant and the name of its process; the rest of the ledger stays."""

    async def work(node: Workstation, link: Link) -> None:
        mine = await link.call("POST", "leases", {"request": "0.5"})
        assert mine["state"] == "active"
        # As the ledger has it in that moment: granted, or waiting.
        holder = Holder("session", "ana//4711", "ana", "process 4711")
        lost = node.broker.request(GpuRequest.parse(holding), holder)
        assert not lost.processes and lost.state == ("granted" if holding == 0.5 else "queued")
        await Workstation.start(node)
        assert [lease.id for lease in node.broker.leases()] == [mine["id"]]

    served(tmp_path, work)
