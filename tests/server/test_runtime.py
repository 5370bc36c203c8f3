from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from jupyter_gpuslice.broker.lease import Holder
from jupyter_gpuslice.devices import DeviceUse, Process, SimulatedSource
from jupyter_gpuslice.request import GpuRequest
from jupyter_gpuslice.server import runtime as runtime_module
from jupyter_gpuslice.server.runtime import News
from jupyter_gpuslice.server.view import Viewer

from .support import make_runtime, sleeper, until

HALF = GpuRequest.parse("0.5")
WHOLE = GpuRequest.parse("1")


def holder(name: str = "k1", user: str = "ada") -> Holder:
    return Holder("kernel", name, user)


async def running(runtime):
    await runtime.start()
    return runtime


async def _a_death_frees_the_slice_and_serves_the_queue():
    runtime = await running(make_runtime(simulate="a100-80gb"))
    process = sleeper()
    try:
        first = runtime.broker.request(WHOLE, holder())
        runtime.broker.activate(first.id, [Process.of(process.pid)])
        second = runtime.broker.request(WHOLE, holder("k2"))
        assert second.state == "queued"
        await asyncio.sleep(0.05)
        process.kill()
        await until(lambda: runtime.broker.get(second.id).state == "granted", "second is served", 5)
        assert runtime.broker.get(first.id).state == "released"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        await runtime.stop()


def test_a_death_frees_the_slice_and_serves_the_queue():
    asyncio.run(_a_death_frees_the_slice_and_serves_the_queue())


def test_without_pidfd_deaths_are_polled(monkeypatch):
    def unsupported(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", unsupported)
    asyncio.run(_a_death_frees_the_slice_and_serves_the_queue())


def test_restart_frees_the_dead_and_watches_the_survivors(tmp_path):
    path = tmp_path / "ledger.sqlite"
    survivor, victim = sleeper(), sleeper()

    async def before():
        runtime = await running(make_runtime(path))
        leases = [runtime.broker.request(HALF, holder(name)) for name in ("dead", "alive")]
        for lease, process in zip(leases, (victim, survivor), strict=True):
            runtime.broker.activate(lease.id, [Process.of(process.pid)])
        await runtime.stop()
        return leases

    async def after(dead, alive):
        runtime = await running(make_runtime(path))
        try:
            assert runtime.broker.get(dead.id).state == "released"
            assert runtime.broker.get(alive.id).state == "active"
            assert runtime.broker.get(alive.id).slices == alive.slices
            survivor.kill()
            await until(lambda: not runtime.broker.leases(), "the survivor's end is seen", 5)
        finally:
            await runtime.stop()

    try:
        leases = asyncio.run(before())
        victim.kill()
        victim.wait()
        asyncio.run(after(*leases))
    finally:
        for process in (survivor, victim):
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_restarted_holder_keeps_its_lease():
    async def main():
        waits = []
        runtime = make_runtime(patience=lambda lease, process: 60.0 if not waits.append(1) else 0)
        await runtime.start()
        old, new = sleeper(), sleeper()
        try:
            lease = runtime.broker.request(HALF, holder())
            runtime.broker.activate(lease.id, [Process.of(old.pid)])
            await asyncio.sleep(0.05)
            old.kill()
            await until(lambda: waits, "the death is seen")
            runtime.broker.activate(lease.id, [Process.of(new.pid)])
            await asyncio.sleep(0.4)
            assert runtime.broker.get(lease.id).state == "active"
            runtime.patience = lambda lease, process: 0.0
            new.kill()
            await until(lambda: not runtime.broker.leases(), "the lease ends", 5)
        finally:
            for process in (old, new):
                process.kill()
                process.wait()
                process.stdout.close()
            await runtime.stop()

    asyncio.run(main())


def test_expiry_needs_nobody():
    async def main():
        runtime = await running(make_runtime())
        lease = runtime.broker.request(HALF, holder(), ttl=0.3)
        await until(lambda: runtime.broker.get(lease.id).state == "expired", "it expires", 5)
        await runtime.stop()

    asyncio.run(main())


class Hanging(SimulatedSource):
    """A driver whose calls do not return while ``held`` is not set."""

    def __init__(self) -> None:
        super().__init__("a100-80gb")
        self.calls = 0
        self.free = threading.Event()

    def sample(self, holders):
        self.calls += 1
        self.free.wait()
        return super().sample(holders)


def test_a_driver_that_hangs_costs_one_thread_and_no_number_is_shown(monkeypatch):
    monkeypatch.setattr(runtime_module, "SAMPLE_TIMEOUT", 0.1)
    monkeypatch.setattr(runtime_module, "SAMPLE_SECONDS", 0.1)

    async def main():
        source = Hanging()
        runtime = await running(make_runtime(source=source))
        before = threading.active_count()
        runtime.broker.request(HALF, holder())
        began = time.monotonic()
        for _ in range(20):
            await asyncio.sleep(0.05)
        assert time.monotonic() - began < 3  # the loop went on
        assert source.calls == 1
        assert threading.active_count() <= before + 1
        device = runtime.pool_dict()["devices"][0]
        assert device["used_mib"] is None
        assert device["health"] == "unknown"
        source.free.set()
        await until(lambda: runtime.pool_dict()["devices"][0]["health"] == "ok", "it comes back")
        await runtime.stop()

    asyncio.run(main())


class Failing(SimulatedSource):
    health = "ok"

    def sample(self, holders):
        if self.health == "error":
            raise RuntimeError("NVML says no")
        return [DeviceUse(device.uuid, 0, 0, self.health) for device in self.devices()]


def test_a_lost_device_loses_its_leases_and_comes_back(monkeypatch):
    monkeypatch.setattr(runtime_module, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(runtime_module, "IDLE_SAMPLE_SECONDS", 0.1)

    async def main():
        source = Failing("a100-80gb")
        runtime = await running(make_runtime(source=source))
        lease = runtime.broker.request(HALF, holder())
        source.health = "lost"
        await until(lambda: runtime.broker.get(lease.id).state == "lost", "the lease is lost")
        assert runtime.pool_dict()["devices"][0]["health"] == "lost"
        source.health = "ok"
        await until(lambda: not runtime.broker.lost, "it comes back")
        source.health = "error"
        await until(lambda: runtime.pool_dict()["devices"][0]["used_mib"] is None, "unknown")
        assert not runtime.broker.lost
        await runtime.stop()

    asyncio.run(main())


def test_use_is_measured_and_told_once_it_moves(monkeypatch):
    monkeypatch.setattr(runtime_module, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(runtime_module, "BUSY_SECONDS", 0.2)
    busy = "print(1, flush=True)\nx = bytearray(1)\nwhile True: x[0] = 1"

    async def main():
        news: list[News] = []
        runtime = await running(make_runtime())
        runtime.subscribe(news.append)
        process = sleeper(code=busy)
        try:
            lease = runtime.broker.request(HALF, holder())
            assert runtime.lease_dict(lease)["used"]["memory_mib"] is None
            runtime.broker.activate(lease.id, [Process.of(process.pid)])
            view = Viewer("ada")
            await until(
                lambda: (
                    (
                        (
                            runtime.lease_dict(runtime.broker.get(lease.id))["used"][
                                "utilization_percent"
                            ]
                        )
                        or 0
                    )
                    > 10
                ),
                "the load shows",
            )
            session = runtime.pool_dict(view)["session"]
            assert session["used"]["percent"] > 10
            assert session["held"]["percent"] == 50
            assert session["entitled"]["devices"] == 2
            assert {item.kind for item in news} == {"lease", "pool"}
            await until(
                lambda: any(s.busy_s > 0 for s in runtime.ledger.spans(0, time.time() + 1)),
                "busy time is recorded",
            )
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            await runtime.stop()

    asyncio.run(main())


def test_others_are_seen_without_their_names():
    async def main():
        runtime = await running(make_runtime(simulate="a100-80gb"))
        mine = runtime.broker.request(HALF, holder("k1", "ada"))
        theirs = runtime.broker.request(HALF, holder("k2", "bob"))
        waiting = runtime.broker.request(HALF, holder("k3", "bob"))
        pool = runtime.pool_dict(Viewer("ada"))
        assert pool["devices"][0]["leases"] == [mine.id]
        assert pool["queue"][0]["holder"] == {
            "kind": "kernel",
            "id": None,
            "user": None,
            "name": None,
        }
        assert pool["queue"][0]["id"] is None
        assert "bob" not in repr(pool)
        assert "bob" not in repr(runtime.lease_dict(theirs, Viewer("ada")))
        admin = runtime.pool_dict(Viewer("root", admin=True))
        assert admin["devices"][0]["leases"] == [mine.id, theirs.id]
        assert admin["queue"][0]["id"] == waiting.id
        await runtime.stop()

    asyncio.run(main())


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_a_killed_holder_left_is_gone_before_its_slice_is_free(stubborn, tmp_path):
    # The grandchild is in a process group of its own, as nohup or a data loader would be.
    grandchild = (
        "import signal, time\n"
        + ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else "")
        + "open(r'%s', 'w').write(str(__import__('os').getpid())); time.sleep(600)"
    )
    pidfile = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild % pidfile!r}],"
        " start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print(1, flush=True); time.sleep(600)"
    )

    async def main():
        runtime = await running(make_runtime(simulate="a100-80gb"))
        first = runtime.broker.request(WHOLE, holder())
        process = sleeper({**os.environ, "JUPYTER_GPUSLICE_LEASE": first.id}, code)
        bystander = sleeper({**os.environ, "JUPYTER_GPUSLICE_LEASE": "another"})
        try:
            await until(lambda: pidfile.exists() and pidfile.read_text(), "the grandchild runs")
            left = Process.of(int(pidfile.read_text()))
            runtime.broker.activate(first.id, [Process.of(process.pid)])
            second = runtime.broker.request(WHOLE, holder("k2"))
            still_there = []
            runtime.subscribe(
                lambda news: (
                    still_there.append(left.alive())
                    if news.lease and news.lease.id == second.id and news.lease.holds
                    else None
                )
            )
            await asyncio.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: still_there, "the next one is served", 10)
            assert still_there[0] is False
            assert bystander.poll() is None
        finally:
            for one in (process, bystander):
                one.kill()
                one.wait()
                one.stdout.close()
            await runtime.stop()

    asyncio.run(main())
