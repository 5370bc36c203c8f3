"""Kernels that something in the session starts by itself."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

from .support import until


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


async def start(server: Any, kernel: str, pid: int) -> int:
    body = {"id": kernel, "requests": [["metadata", "0.25"]]}
    status, _ = await server.call("POST", "kernels", body)
    if status == 201:
        await server.call("PATCH", f"kernels/{kernel}", {"pid": pid})
    return int(status)


async def test_a_kernel_that_died_may_come_again_and_has_a_slice(server):
    first, second = sleeper(), sleeper()
    try:
        assert await start(server, "visiting-1", first.pid) == 201
        lease = server.lease("visiting-1")
        assert lease.holds
        first.kill()
        first.wait()
        await until(lambda: server.app.kernels.get("visiting-1") is None, "it is gone", 15)
        assert await start(server, "visiting-1", second.pid) == 201
        assert server.lease("visiting-1").holds
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


async def test_a_kernel_that_comes_again_waits_for_the_end_of_the_earlier_one(server, monkeypatch):
    runtime = server.app.kernels.runtime
    reap, go_on = runtime._reap, asyncio.Event()

    async def slow(lease: Any) -> None:
        await go_on.wait()
        await reap(lease)

    monkeypatch.setattr(runtime, "_reap", slow)
    first, second = sleeper(), sleeper()
    try:
        assert await start(server, "visiting-1", first.pid) == 201
        earlier = server.lease("visiting-1").id
        first.kill()
        first.wait()
        await until(lambda: server.app.kernels.get("visiting-1") is None, "it is gone", 15)
        again = asyncio.create_task(start(server, "visiting-1", second.pid))
        await asyncio.sleep(0.3)
        assert not again.done()
        go_on.set()
        assert await again == 201
        lease = server.lease("visiting-1")
        assert lease.holds and lease.id != earlier
        assert server.app.kernels.get("visiting-1").file.path.exists()
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


async def test_kernels_that_died_do_not_count(server, monkeypatch):
    monkeypatch.setattr("jupyter_gpuslice.server.visitors.MOST", 2)
    for number in range(4):
        process = sleeper()
        assert await start(server, f"visiting-{number}", process.pid) == 201
        process.kill()
        process.wait()
        gone = f"visiting-{number}"
        await until(lambda gone=gone: server.app.kernels.get(gone) is None, "it is gone", 15)


async def test_the_slices_of_a_group_stay_as_they_are(server):
    body = {"workers": 1, "request": "0.5"}
    _, group = await server.call("POST", "groups", body)
    status, answer = await server.call("PATCH", f"leases/{group['lease']}", {"request": "0.25"})
    assert (status, answer["reason"]) == (409, "wrong_state")
    assert "--fresh" in answer["hint"]
