"""What a look at the pool costs while many wait: the page of everybody who watches asks for it.

``GET pool`` of a broker with many waiting leases beside one with as many that hold something and
nobody who waits. What waits has a place and an estimate, which take a replay of the queue: found
out once for each change. So the first look after a change is a row of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from jupyter_gpuslice.broker import Broker, Holder, Ledger, whole
from jupyter_gpuslice.devices.device import Device
from jupyter_gpuslice.request import GpuRequest
from jupyter_gpuslice.server.measure import Measurement
from jupyter_gpuslice.server.view import EVERYTHING, pool_view

from .table import machine, show


def broker_with(held: int, waiting: int) -> Broker:
    """A broker of eight devices whose leases end one after another."""
    devices = [Device(f"GPU-{n}", "NVIDIA A100-SXM4-80GB", "gpu", 81920) for n in range(8)]
    broker = Broker(whole(devices), Ledger.open(None), time.time)
    for n in range(held):
        holder = Holder("session", f"user{n}/", f"user{n}")
        broker.request(GpuRequest.parse("0.04"), holder, ttl=3600 + n)
    for n in range(waiting):
        holder = Holder("session", f"waiter{n}/", f"waiter{n}")
        broker.request(GpuRequest.parse("1"), holder, ttl=3600)
    return broker


def timed(look: Callable[[], object], runs: int) -> list[float]:
    """Milliseconds of each of so many looks."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        look()
        found.append(1000 * (time.perf_counter() - began))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=100)
    parser.add_argument("--runs", type=int, default=50)
    args = parser.parse_args()
    print(machine())
    calm, busy = broker_with(args.waiting, 0), broker_with(args.waiting, args.waiting)

    def change_and_look() -> object:
        waiting = busy.queue()[-1]
        busy.release(waiting.id)
        busy.request(waiting.request, waiting.holder, ttl=waiting.ttl)
        return pool_view(busy, Measurement(), EVERYTHING, "")

    rows = {
        "nobody waits": timed(lambda: pool_view(calm, Measurement(), EVERYTHING, ""), args.runs),
        f"{args.waiting} wait": timed(
            lambda: pool_view(busy, Measurement(), EVERYTHING, ""), args.runs
        ),
        f"{args.waiting} wait, one leaves, one joins": timed(change_and_look, args.runs),
    }
    show("a view of the pool", rows, "nobody waits", "ms")


if __name__ == "__main__":
    main()
