"""A warm ``%%gpu run`` of an empty cell on two ranks, beside a bare kernel.

In one run, in turn: an empty cell in a bare kernel over ZMQ, in a kernel behind the websocket of a
Jupyter Server without the extension, behind that of one with it, and ``%%gpu run`` on two warm
ranks from the latter. Goal: at most 25 ms in the median for the last.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from .jupyter import Server
from .table import machine, show

GOAL_MS = 25.0


async def over_zmq(client: AsyncKernelClient) -> float:
    start = time.perf_counter()
    await client._async_execute_interactive("pass", store_history=False, timeout=60)  # type: ignore[attr-defined]
    return time.perf_counter() - start


async def measure(runs: int) -> dict[str, list[float]]:
    manager = AsyncKernelManager()
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    try:
        async with (
            Server(extension=False) as bare,
            Server("--GpuSlice.simulate=a100-80gb:2") as ours,
        ):
            plain, notebook = await bare.kernel(), await ours.kernel()
            await notebook.run("%%gpu train -n 2 --name benchmark\npass")
            rows: dict[str, list[float]] = {
                "bare kernel, ZMQ": [],
                "bare server, websocket": [],
                "with the extension, websocket": [],
                "%%gpu run, two warm ranks": [],
            }
            for _ in range(runs):
                for name, once in {
                    "bare kernel, ZMQ": over_zmq(client),
                    "bare server, websocket": plain.run("pass"),
                    "with the extension, websocket": notebook.run("pass"),
                    "%%gpu run, two warm ranks": notebook.run("%%gpu run --name benchmark\npass"),
                }.items():
                    rows[name].append(1000 * await once)
            plain.close()
            notebook.close()
            return rows
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    print(machine())
    rows = asyncio.run(measure(runs))
    show("An empty cell, from sending it to its reply", rows, "bare kernel, ZMQ")
    print(f"goal for %%gpu run: a median of at most {GOAL_MS:.0f} ms")


if __name__ == "__main__":
    main()
