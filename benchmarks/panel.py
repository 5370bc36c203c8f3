"""What the extension costs a Jupyter Server, and whether it ever holds the server up.

First: two servers, one with the extension, each with eight idle kernels and (the one with it) one
open sidebar, side by side for the same time: processor time and memory of the server's process.
Goal: less than 2 % of a core and less than 60 MiB more.

Second: ``/api/status`` of both, asked in turn, while 200 subscribers listen to the events of the
one with the extension and its NVML takes 20 ms for each call. Goal: p95 below 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tests.fakes.nvml import FakeNvml, build

from .jupyter import Server
from .table import machine, percentile, show

KERNELS = 8
SUBSCRIBERS = 200
SLOW_MS = 20
CPU_GOAL, MEMORY_GOAL, STATUS_GOAL = 2.0, 60.0, 10.0
EVENTS = "api/events/subscribe"


async def cost(seconds: float, rounds: int) -> None:
    async with (
        Server(extension=False) as bare,
        Server("--GpuSlice.simulate=a100-80gb:2", "--GpuSlice.default_request=0.25") as ours,
    ):
        kernels = [await server.kernel() for server in (bare, ours) for _ in range(KERNELS)]
        sidebar = await ours.socket(EVENTS)
        for path in ("pool", "leases", "groups"):
            await ours.call("GET", f"gpuslice/api/v1/{path}")
        cpu: dict[str, list[float]] = {"bare server": [], "with the extension": []}
        servers = dict(zip(cpu, (bare, ours), strict=True))
        await asyncio.sleep(5)
        for _ in range(rounds):
            before = {name: server.process.cpu_times() for name, server in servers.items()}
            await asyncio.sleep(seconds / rounds)
            for name, server in servers.items():
                now = server.process.cpu_times()
                used = now.user + now.system - before[name].user - before[name].system
                cpu[name].append(100 * used / (seconds / rounds))
        memory = {
            name: [server.process.memory_full_info().uss / 2**20]
            for name, server in servers.items()
        }
        sidebar.close()
        for kernel in kernels:
            kernel.close()
    title = f"{KERNELS} idle kernels, one open sidebar: processor time"
    show(title, cpu, "bare server", "% of a core")
    show("memory of the server's process (unique)", memory, "bare server", "MiB", 1)
    more = {
        name: sum(rows["with the extension"]) / len(rows["with the extension"])
        - sum(rows["bare server"]) / len(rows["bare server"])
        for name, rows in (("cpu", cpu), ("memory", memory))
    }
    print(
        f"more than bare: {more['cpu']:.2f} % of a core (goal: below {CPU_GOAL:.0f}), "
        f"{more['memory']:.1f} MiB (goal: below {MEMORY_GOAL:.0f})"
    )


async def status(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        nvml = FakeNvml(Path(folder) / "state", build(Path(folder)))
        for _ in range(2):
            nvml.add(used_mib=2000, utilization=40)
        nvml.fault("nvmlDevice*", slow_ms=SLOW_MS)
        async with Server(extension=False) as bare, Server(env=nvml.env) as ours:
            pool = await ours.call("GET", "gpuslice/api/v1/pool")
            deadline = time.monotonic() + 60
            while len(pool["devices"]) < 2 and time.monotonic() < deadline:
                await asyncio.sleep(0.5)
                pool = await ours.call("GET", "gpuslice/api/v1/pool")
            if len(pool["devices"]) != 2:
                raise RuntimeError(f"the NVML double shows no devices: {pool}")
            kernel = await ours.kernel()
            listening = [await ours.socket(EVENTS) for _ in range(SUBSCRIBERS)]
            news = [0]

            async def listen(n: int) -> None:
                while await listening[n].read_message() is not None:
                    news[0] += 1

            async def move() -> None:
                # Numbers that move, so that there is something to tell.
                step = 0
                while True:
                    step += 1
                    nvml.set(step % 2, used_mib=2000 + step, utilization=step % 100)
                    await asyncio.sleep(0.5)

            tasks = [asyncio.create_task(listen(n)) for n in range(SUBSCRIBERS)]
            tasks.append(asyncio.create_task(move()))
            rows: dict[str, list[float]] = {"bare server": [], "with the extension": []}
            for _ in range(runs):
                for name, server in zip(rows, (bare, ours), strict=True):
                    start = time.perf_counter()
                    await server.call("GET", "api/status")
                    rows[name].append(1000 * (time.perf_counter() - start))
                    await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for connection in listening:
                connection.close()
            kernel.close()
    title = f"GET /api/status; {SUBSCRIBERS} subscribers, NVML calls of {SLOW_MS} ms"
    show(title, rows, "bare server")
    p95 = percentile(rows["with the extension"], 95)
    print(f"p95 {p95:.1f} ms (goal: below {STATUS_GOAL:.0f}); {news[0]} events arrived meanwhile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long the cost is measured")
    parser.add_argument("--runs", type=int, default=500, help="how often /api/status is asked")
    arguments = parser.parse_args()
    print(machine())
    asyncio.run(cost(arguments.seconds, rounds=6))
    asyncio.run(status(arguments.runs))


if __name__ == "__main__":
    main()
