"""The parts of peer groups that need no kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from jupyter_gpuslice.broker.explain import Refused
from jupyter_gpuslice.broker.lease import Slice
from jupyter_gpuslice.devices.device import Device
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.groups import members, stream, together
from jupyter_gpuslice.groups.backend import choose
from jupyter_gpuslice.groups.cell import Cell
from jupyter_gpuslice.groups.group import Group, WrongStateError
from jupyter_gpuslice.groups.members import RankDiedError
from jupyter_gpuslice.groups.node import Share, shares
from jupyter_gpuslice.groups.stream import Outbox, translate
from jupyter_gpuslice.groups.torchrun import local_devices, torchrun_environment
from jupyter_gpuslice.groups.watch import _poll, watch
from jupyter_gpuslice.kernel import peer_sockets, peer_values


def on(*devices: str) -> tuple[Slice, ...]:
    return tuple(Slice(device, 1024, 50, 50) for device in devices)


def gpus(*names: str, kind: Any = "gpu") -> list[Device]:
    return [Device(name, "H100", kind, 81920) for name in names]


ABLE = {"torch": "2.9", "nccl": True, "gloo": True, "cuda": 1}
CPU = {"torch": "2.9", "nccl": False, "gloo": True, "cuda": 0}


def grown(workers: int = 2) -> Group:
    group = Group("g1", "train", workers, "1")
    for rank in range(workers):
        group.spawned(rank, f"k{rank}", 100 + rank)
    group.ready()
    return group


def test_a_groups_life() -> None:
    seen: list[str] = []
    group = grown()
    group.on_change = lambda changed: seen.append(changed.state)
    group.begin([1])
    assert [rank.state for rank in group.ranks] == ["idle", "busy"]
    group.died(1)
    assert group.state == "busy"
    assert group.dead == [1]
    with pytest.raises(WrongStateError):
        group.ready()
    group.spawned(1, "k9", 109)
    group.ready()
    group.died(0, "Rank 0 has died.")
    assert group.state == "broken"
    assert group.to_dict()["detail"] == "Rank 0 has died."
    with pytest.raises(WrongStateError):
        group.begin([0])
    group.stopped("It was stopped.")
    group.died(1)
    assert group.state == "stopped"
    assert seen == ["busy", "busy", "busy", "ready", "broken", "stopped"]
    assert group.to_dict()["ranks"][0] == {
        "rank": 0, "state": "dead", "kernel": None, "pid": None, "slices": [],
    }  # fmt: skip


def test_which_devices_a_rank_sees() -> None:
    devices = gpus("a", "b") + gpus("m", kind="mig") + gpus("s", kind="simulated")
    assert local_devices([on("b"), on("a")], devices) == ["b", "a"]
    assert local_devices([on("a"), on("a")], devices) is None
    assert local_devices([on("a"), on("m")], devices) is None
    assert local_devices([on("a", "b")], devices) is None
    assert local_devices([on("s")], devices) is None
    assert local_devices([(), ()], devices) is None


@pytest.mark.parametrize(
    ("workers", "nodes", "expected"),
    [(4, 1, [range(4)]), (4, 2, [range(2), range(2, 4)]), (5, 2, [range(3), range(3, 5)])],
)
def test_the_ranks_are_spread_over_the_nodes_in_order(
    workers: int, nodes: int, expected: list[range]
) -> None:
    assert [share.ranks for share in shares("g1", workers, nodes)] == expected


def test_a_rank_on_another_node_is_described_as_torchrun_would() -> None:
    share = shares("g1", 5, 2)[1]
    environment = torchrun_environment(
        4, share, alone=False, cpus=8, interface="eth1", inherited={}
    )
    of = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [environment[name] for name in of] == ["4", "1", "5", "2", "1", "2"]
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "eth1"
    assert environment["OMP_NUM_THREADS"] == "4"


def test_torchrun_environment() -> None:
    shared = torchrun_environment(
        2, Share("g1", 4, 0, 4), alone=False, cpus=8, interface="lo", inherited={}
    )
    assert (shared["LOCAL_RANK"], shared["LOCAL_WORLD_SIZE"]) == ("2", "4")
    assert (shared["GROUP_RANK"], shared["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert shared["OMP_NUM_THREADS"] == "2"
    alone = torchrun_environment(
        2,
        Share("g1", 4, 0, 4),
        alone=True,
        cpus=2,
        interface="lo",
        inherited={"OMP_NUM_THREADS": "7"},
    )
    assert (alone["RANK"], alone["LOCAL_RANK"], alone["LOCAL_WORLD_SIZE"]) == ("2", "0", "1")
    assert (alone["GROUP_RANK"], alone["GROUP_WORLD_SIZE"]) == ("2", "4")
    assert "OMP_NUM_THREADS" not in alone


def test_choice_of_the_backend() -> None:
    apart = [on("a"), on("b")]
    assert choose("auto", apart, [ABLE, ABLE]) == ("nccl", "")
    assert choose("gloo", apart, [ABLE, ABLE]) == ("gloo", "")
    assert choose("auto", [on("a"), on("a")], [ABLE, ABLE])[0] == "gloo"
    assert "share" in choose("auto", [on("a"), on("a")], [ABLE, ABLE])[1]
    assert choose("auto", apart, [ABLE, CPU])[0] == "gloo"
    for asked, slices, probes, words in (
        ("nccl", [on("a"), on("a")], [ABLE, ABLE], "share"),
        ("nccl", apart, [CPU, CPU], "no NCCL"),
        ("auto", apart, [ABLE, {"torch": None, "error": "No torch here."}], "No torch here"),
        ("gloo", apart, [ABLE, {**ABLE, "gloo": False}], "no gloo"),
    ):
        with pytest.raises(Refused, match=words):
            choose(asked, slices, probes)


@pytest.mark.parametrize(
    "body",
    [
        [], {"code": 1}, {"code": "1", "ranks": []}, {"code": "1", "ranks": [True]},
        {"code": "1", "ranks": "0"}, {"code": "1", "train": "yes"}, {"pull": "x"},
        {"code": "1", "wrong": 1}, {"code": "1", "ranks": [-1]}, {"push": 3},
    ],
)  # fmt: skip
def test_bad_cells_are_refused(body: Any) -> None:
    with pytest.raises(Refused) as refused:
        Cell.parse(body, 2)
    assert refused.value.reason == "bad_request"


def say(rank: int, text: str, name: str = "stdout") -> dict[str, Any]:
    return {"type": "stream", "rank": rank, "name": name, "text": text}


def gather(outbox: Outbox) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        found = []
        while batch := await outbox.batch():
            found += batch
        return found

    return asyncio.run(asyncio.wait_for(read(), 5))


def test_pieces_of_one_rank_become_one_message_in_order() -> None:
    outbox = Outbox()
    display = {"type": "display", "rank": 0, "data": {"text/plain": "x"}}
    for n in range(100):
        outbox.put(say(0, f"a{n}\r"))
        outbox.put(say(1, f"b{n}"))
    outbox.put(say(0, "warn", "stderr"))
    outbox.put(display)
    outbox.put(say(0, "end"))
    outbox.put({"type": "done", "ok": True})
    outbox.close()
    messages = gather(outbox)
    assert [(m["type"], m.get("rank")) for m in messages] == [
        ("stream", 0), ("stream", 1), ("stream", 0), ("display", 0), ("stream", 0), ("done", None),
    ]  # fmt: skip
    assert messages[0]["text"] == "".join(f"a{n}\r" for n in range(100))
    assert messages[4]["text"] == "end"
    assert "parts" not in messages[0]


def test_a_reader_that_does_not_keep_up_is_told(monkeypatch) -> None:
    monkeypatch.setattr(stream, "MOST_TEXT", 10)
    monkeypatch.setattr(stream, "MOST_END", 4)
    monkeypatch.setattr(stream, "MOST_MESSAGES", 3)
    outbox = Outbox()
    outbox.put(say(0, "12345678"))
    outbox.put(say(0, "too much"))
    outbox.put(say(0, "x"))
    outbox.put(say(1, "fine"))
    outbox.put({"type": "notice", "text": "n"})
    outbox.put({"type": "display", "rank": 1, "data": {}})
    outbox.put({"type": "done", "ok": True})
    outbox.close()
    messages = gather(outbox)
    texts = [(m.get("rank"), m["text"]) for m in messages if m["type"] == "stream"]
    # What fits is shown, and so is the end.
    assert texts[:2] == [(0, "12345678to"), (1, "fine")]
    assert [text for _, text in texts[2:]][-1] == "muchx"[-4:]
    assert messages[-1]["type"] == "done"


def test_of_a_flood_the_beginning_and_the_end_are_shown(monkeypatch) -> None:
    monkeypatch.setattr(stream, "MOST_TEXT", 1000)
    monkeypatch.setattr(stream, "MOST_END", 100)
    outbox = Outbox()
    outbox.put(say(0, "BEGIN" + "x" * 5000 + "FINAL"))
    outbox.put({"type": "display", "rank": 1, "data": {"text/html": "y" * 2000}})
    outbox.put({"type": "done", "ok": True})
    outbox.close()
    messages = gather(outbox)
    text = "".join(m["text"] for m in messages if m.get("rank") == 0)
    assert text.startswith("BEGINx") and text.endswith("xFINAL")
    assert f"[{5010 - 1000 - 100} characters left out" in text
    assert len(text) < 1300
    (note,) = [m for m in messages if m.get("rank") == 1]
    assert "2000 characters left out" in note["text"], "what is shown counts as well"


def test_what_is_not_for_people_is_left_out() -> None:
    assert translate(0, "comm_open", {}) is None
    assert translate(0, "status", {"execution_state": "busy"}) is None
    assert translate(0, "error", {"ename": "E"}) is None
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}}
    assert translate(0, "display_data", {"data": widget}) is None
    shown = translate(0, "display_data", {"data": {**widget, "text/plain": "50%"}})
    assert shown is not None
    assert shown["data"] == {"text/plain": "50%"}


class Double:
    """A rank that obeys only to some steps; it stands in for a kernel's stubbornness."""

    def __init__(self, rank: int, heeds: str) -> None:
        self.rank = rank
        self.heeds = heeds
        self.told: list[str] = []
        self.alive = True
        self.process = Process(1000 + rank, "x")
        self.over: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def act(self) -> dict[str, Any]:
        return await self.over

    async def interrupt(self) -> None:
        self._step("interrupt")

    async def ask(self, channel: str, operation: str, content: dict[str, Any]) -> dict[str, Any]:
        assert (channel, operation) == ("control", "free")
        assert 1000 + self.rank not in content["pids"]
        self._step("free")
        return {"status": "ok"}

    def kill(self) -> None:
        self.told.append("kill")
        self.over.set_exception(RankDiedError(self.rank, "was killed by SIGKILL"))

    def fails(self, ename: str = "ValueError") -> None:
        self.over.set_result({"status": "error", "ename": ename, "evalue": "no"})

    def _step(self, step: str) -> None:
        self.told.append(step)
        if step == self.heeds and not self.over.done():
            self.fails("KeyboardInterrupt")


def test_steps_of_escalation(monkeypatch) -> None:
    for name in ("SETTLE", "INTERRUPT", "FREE", "LAST"):
        monkeypatch.setattr(together, f"{name}_SECONDS", 0.05)

    async def scenario() -> None:
        heeds = ["never", "interrupt", "free", "kill"]
        ranks = [Double(rank, how) for rank, how in enumerate(heeds)]
        asyncio.get_running_loop().call_later(0.05, ranks[0].fails)
        outcomes = await together.together(
            ranks, lambda rank: rank.act(), asyncio.Event(), lambda: ranks
        )
        assert ranks[0].told == []
        assert ranks[1].told == ["interrupt"]
        assert ranks[2].told == ["interrupt", "free"]
        assert ranks[3].told == ["interrupt", "free", "interrupt", "kill"]
        statuses = [outcomes.by_rank[rank].status for rank in range(4)]
        assert statuses == ["error", "interrupted", "interrupted", "restarted"]
        cause = outcomes.cause
        assert cause is not None
        assert cause.rank == 0
        assert not outcomes.interrupted

    asyncio.run(scenario())


def test_the_cause_is_the_rank_that_died_not_the_first_to_complain() -> None:
    async def scenario() -> None:
        ranks = [Double(rank, "interrupt") for rank in range(3)]
        ranks[0].over.set_result(
            {"status": "error", "ename": "RuntimeError", "evalue": "Connection closed by peer [x]"}
        )
        asyncio.get_running_loop().call_later(
            0.02, lambda: ranks[2].over.set_exception(RankDiedError(2, "is gone"))
        )
        outcomes = await together.together(
            ranks, lambda rank: rank.act(), asyncio.Event(), lambda: ranks
        )
        cause = outcomes.cause
        assert cause is not None
        assert (cause.rank, cause.status) == (2, "died")
        statuses = [outcomes.by_rank[rank].status for rank in range(3)]
        assert statuses == ["interrupted", "interrupted", "died"]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [watch, _poll])
def test_the_end_of_a_process_is_heard_once(how: Any) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def scenario() -> None:
        process = Process.of(child.pid)
        heard: list[int] = []
        how(process, lambda: heard.append(1))
        stop = how(process, lambda: heard.append(2))
        await asyncio.sleep(0.1)
        assert heard == []
        stop()
        child.kill()
        for _ in range(100):
            if heard:
                break
            await asyncio.sleep(0.05)
        child.communicate()
        assert heard == [1]
        how(process, lambda: heard.append(3))
        await asyncio.sleep(0.1)
        assert heard == [1, 3]

    asyncio.run(scenario())


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


REMOTE = """
import socket, sys
ends = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
print("ready", flush=True); input()
"""


def test_only_connections_to_other_ranks_are_shut_down() -> None:
    """One to a rank, one to the store's port in that rank, and one that is none of ours."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [server.getsockname()[1] for server in servers]
    child = subprocess.Popen(
        [sys.executable, "-c", REMOTE, *map(str, ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        rank, store = (server.accept()[0] for server in servers)
        near, far = connected()
        woken = threading.Event()
        threading.Thread(target=lambda: (rank.recv(1), woken.set()), daemon=True).start()
        assert peer_sockets.shut_down([os.getpid()], ports[1]) == 0
        assert peer_sockets.shut_down([child.pid], ports[1]) == 1
        assert woken.wait(5), "the blocked thread was not woken"
        far.sendall(b"x")
        assert near.recv(1) == b"x"
        store.sendall(b"x")  # still open
        # As the store's client: its far end has the store's port.
        assert peer_sockets.shut_down([], far.getsockname()[1]) == 1
        assert near.recv(1) == b""
        for end in (rank, store, near, far):
            end.close()
    finally:
        child.kill()
        child.communicate()
        for server in servers:
            server.close()


def test_folders_of_dead_servers_go_away(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(members, "MOST_BASE", 1000)
    monkeypatch.setattr(members.tempfile, "gettempdir", lambda: str(tmp_path))
    first, second = members._private_folder(), members._private_folder()
    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path]), "both live"
    first._lock.close()  # as when its process ends
    mine = members._private_folder()
    assert mine.path.stat().st_mode & 0o777 == 0o700
    assert sorted(tmp_path.iterdir()) == sorted([second.path, mine.path])
    for folder in (second, mine):
        folder.close()


def test_values_name_what_cannot_be_moved() -> None:
    space: dict[str, Any] = {}
    text = peer_values.pull({"a": [1, 2]}, ["a"])["a"]
    with pytest.raises(peer_values.ValueTransferError, match="no dict"):
        peer_values.push(space, text)
    whole = peer_values.pull({"d": {"a": 1, "b": None}}, ["d"])["d"]
    assert peer_values.push(space, whole) == ["a", "b"]
    assert space == {"a": 1, "b": None}
    with pytest.raises(peer_values.ValueTransferError, match="'gone'"):
        peer_values.pull(space, ["a", "gone"])
