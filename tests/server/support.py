"""What several server tests share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from jupyter_gpuslice.broker.broker import Broker
from jupyter_gpuslice.broker.ledger import Ledger
from jupyter_gpuslice.broker.pool import whole
from jupyter_gpuslice.devices import SimulatedSource
from jupyter_gpuslice.server.runtime import BrokerRuntime

DEADLINE = 30.0


async def until(true: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """Wait for a condition on the event loop; its value."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, f"never came to pass: {what}"
        await asyncio.sleep(0.02)
    return value


def sleeper(env: dict[str, str] | None = None, code: str = "") -> subprocess.Popen[bytes]:
    """A process that lives until it is killed."""
    code = code or "import time; print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def make_runtime(path: Any = None, simulate: str = "a100-80gb:2", **options: Any) -> BrokerRuntime:
    source = options.pop("source", None) or SimulatedSource(simulate)
    ledger = Ledger.open(path)
    broker = Broker(whole(source.devices()), ledger, time.time, nearness=source.nearness)
    return BrokerRuntime(broker, ledger, source, **options)
