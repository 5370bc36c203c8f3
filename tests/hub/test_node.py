"""What a node takes over when its ledger is new."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpuslice.broker import Ledger
from jupyter_gpuslice.devices import SimulatedSource
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.hub.node import ABANDON_SECONDS, HUB, Machine, Node
from jupyter_gpuslice.server.api import ApiError, Caller

URL = "http://127.0.0.1:1/services/gpuslice/api/v1/"
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture
def run() -> Iterator[Callable[..., int]]:
    """Starts a process with a grant in its environment, and a child that inherits it."""
    processes = []

    def run(grant: Any, user: str = "ana") -> int:
        text = grant if isinstance(grant, str) else json.dumps(grant)
        env = {**os.environ, "JUPYTER_GPUSLICE_GRANT": text, "JUPYTERHUB_USER": user}
        process = subprocess.Popen([sys.executable, "-c", SERVER], env=env, stdin=subprocess.PIPE)
        processes.append(process)
        return process.pid

    yield run
    for process in processes:
        process.stdin.close()
        process.wait(30)


def test_it_takes_over_its_own_servers_and_nobody_elses(run) -> None:
    source = SimulatedSource("a100-80gb:1")
    machine = Machine.look(source)
    (device,) = machine.devices

    def grant(lease: str, percent: int, url: str = URL, **more: Any) -> dict[str, Any]:
        share = {"device": device.uuid, "memory_mib": device.grantable_mib * percent // 100}
        slices = [{**share, "compute_percent": percent, "compute_cap_percent": percent}]
        return {"lease": lease, "request": "0.5", "url": url, "slices": slices, **more}

    mine = run(grant("mine", 50))
    run(grant("another hub's", 25, url=URL.replace(":1/", ":2/")))
    run(grant("more than there is", 75))
    run(grant("no request", 10, request="what"))
    run(grant("no slices", 10, slices=None))
    run({"url": URL, "lease": None, "slices": []})
    run("no JSON")
    run(grant("nobody's", 10), user="")

    async def start() -> None:
        node = Node.of(machine, source, Ledger.open(None), URL)
        await node.start()
        try:
            (lease,) = node.broker.leases()
            assert (lease.id, lease.state, lease.holder.user) == ("mine", "active", "ana")
            assert [process.pid for process in lease.processes] == [mine]
        finally:
            await node.stop()

    asyncio.run(start())


def ask(session: str, request: str = "1") -> dict[str, Any]:
    return {"request": request, "holder": {"kind": "session", "id": session}, "wait": True}


def with_node(work: Callable[..., Any], path: Path | None = None, **more: Any) -> None:
    async def do() -> None:
        source = SimulatedSource("a100-80gb:1")
        node = Node.of(Machine.look(source), source, Ledger.open(path), URL, **more)
        await node.start()
        try:
            await work(node)
        finally:
            await node.stop()

    asyncio.run(do())


def test_what_an_earlier_hub_asked_for_is_free_when_the_next_one_begins(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"

    async def begin(node: Node) -> None:
        _, granted = await node.start_anew(HUB, ask("ana/"))
        _, queued = await node.start_anew(HUB, ask("ben/"))
        assert (granted["state"], queued["state"]) == ("granted", "queued")

    async def same_hub(node: Node) -> None:
        assert [lease.state for lease in node.broker.leases()] == ["granted", "queued"]

    async def next_hub(node: Node) -> None:
        assert node.broker.leases() == []

    began = time.time() - 10
    with_node(begin, ledger, hub_began=began)
    with_node(same_hub, ledger, hub_began=began)
    with_node(next_hub, ledger, hub_began=time.time() + 1)


def test_a_new_start_ends_what_is_left_of_an_earlier_one() -> None:
    """A server whose hub was killed before it had noted it: no hub would ever stop it."""
    orphans = []

    async def work(node: Node) -> None:
        _, first = await node.start_anew(HUB, ask("ana/"))
        env = {**os.environ, "JUPYTER_GPUSLICE_LEASE": first["id"]}
        orphan = await asyncio.to_thread(subprocess.Popen, ["sleep", "600"], env=env)
        orphans.append(orphan)
        node.broker.activate(first["id"], [Process.of(orphan.pid)])
        _, second = await node.start_anew(HUB, ask("ana/"))
        assert second["state"] == "granted" and second["id"] != first["id"]
        assert [lease.id for lease in node.broker.leases()] == [second["id"]]
        assert await asyncio.to_thread(orphan.wait, 30) != 0

    try:
        with_node(work)
    finally:
        for orphan in orphans:
            orphan.kill()
            orphan.wait()


def test_a_start_keeps_its_slice_for_as_long_as_it_is_asked_for() -> None:
    async def work(node: Node) -> None:
        now = node._monotonic()
        node._monotonic = lambda: now
        _, lease = await node.start_anew(HUB, ask("ana/"))
        for _ in range(10):
            now += ABANDON_SECONDS - 1
            node.forget()
            assert node.lease(HUB, lease["id"])["state"] == "granted"
        now += ABANDON_SECONDS + 1
        node.forget()
        assert node.broker.leases() == []

    with_node(work)


ADMIN = Caller("root", admin=True)


def test_an_admin_takes_a_device_out_of_service_and_puts_it_back() -> None:
    async def work(node: Node) -> None:
        (device,) = node.pool(ADMIN)["devices"]
        assert device["cordoned"] is None
        body = {"devices": [device["uuid"]], "cordoned": True, "why": "new fans"}
        told: list[str] = []
        node.subscribe(lambda news: told.append(news.kind))
        (device,) = node.operate(ADMIN, body)["devices"]
        assert "pool" in told  # those who follow the news see it at once
        assert device["cordoned"] == "new fans"
        _, waiting = await node.start_anew(HUB, ask("ana/", "0.5"))
        assert waiting["state"] == "queued"
        offer = node.availability(HUB, ["0.5"])["offers"]["0.5"]
        assert (offer["free"], offer["total"]) == (0, 2)
        assert "new fans" in offer["message"]
        (device,) = node.operate(ADMIN, {"cordoned": False})["devices"]
        assert device["cordoned"] is None
        assert node.lease(HUB, waiting["id"])["state"] == "granted"

    with_node(work)


def test_a_drain_ends_what_is_held_after_its_grace_and_nothing_before() -> None:
    async def work(node: Node) -> None:
        _, held = await node.start_anew(HUB, ask("ana/", "0.5"))
        before = time.time()
        node.operate(ADMIN, {"why": "a new driver", "within": "30m"})
        drained = node.lease(HUB, held["id"])
        assert drained["state"] == "granted"
        assert before + 1790 < drained["expires"] < before + 1830
        assert "a new driver" in drained["detail"]
        node.operate(ADMIN, {"why": "a new driver", "within": 1})
        await node.end_due()
        ended = node.lease(HUB, held["id"])
        assert not ended["slices"] and "a new driver" in ended["detail"]

    with_node(work)


@pytest.mark.parametrize(
    ("caller", "body", "status"),
    [
        (Caller("ana"), {}, 403),
        (HUB, {}, 403),
        (ADMIN, [], 400),
        (ADMIN, {"devices": "GPU"}, 400),
        (ADMIN, {"devices": ["GPU-none"]}, 404),
        (ADMIN, {"cordoned": "yes"}, 400),
        (ADMIN, {"why": "two\nlines"}, 400),
        (ADMIN, {"why": "x" * 300}, 400),
        (ADMIN, {"within": -1}, 400),
        (ADMIN, {"cordoned": False, "within": "1h"}, 400),
        (ADMIN, {"drain": True}, 400),
    ],
)
def test_what_is_no_operation_changes_nothing(caller: Caller, body: Any, status: int) -> None:
    async def work(node: Node) -> None:
        with pytest.raises(ApiError) as error:
            node.operate(caller, body)
        assert error.value.status == status
        assert node.broker.cordoned == {}

    with_node(work)


def test_the_end_of_its_time_ends_a_server_that_carries_no_mark_and_will_not_go() -> None:
    """A server that asked for its slice itself was started before it had one."""
    stubborn = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            "print(flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )

    async def work(node: Node) -> None:
        await asyncio.to_thread(stubborn.stdout.readline)
        _, lease = await node.start_anew(HUB, ask("ana/"))
        node.broker.activate(lease["id"], [Process.of(stubborn.pid)])
        node.broker.extend(lease["id"], 1)
        await node.end_due()
        assert await asyncio.to_thread(stubborn.wait, 30) != 0
        assert node.broker.leases() == []

    try:
        with_node(work)
    finally:
        stubborn.kill()
        stubborn.wait()
        stubborn.stdout.close()
