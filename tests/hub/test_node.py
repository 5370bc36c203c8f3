"""What a node takes over when its ledger is new."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpuslice.broker import Ledger
from jupyter_gpuslice.devices import SimulatedSource
from jupyter_gpuslice.hub.node import Machine, Node

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
