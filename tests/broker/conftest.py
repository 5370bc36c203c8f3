from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpuslice.broker import Broker, Holder, Ledger, whole
from jupyter_gpuslice.devices.device import Device


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gpu(n: int, name: str = "NVIDIA A100-SXM4-80GB", memory_mib: int = 81920, **more) -> Device:
    return Device(f"GPU-{n}", name, "gpu", memory_mib, **more)


def kernel(n: int | str = 1, user: str = "ana") -> Holder:
    return Holder("kernel", f"k{n}", user, f"notebook {n}")


@pytest.fixture
def make(clock: Clock) -> Callable[..., Broker]:
    """Brokers on a ledger in memory: two GPUs of 80 GiB unless told otherwise."""

    def make(*devices: Device, **more) -> Broker:
        return Broker(whole(devices or (gpu(0), gpu(1))), Ledger.open(None), clock, **more)

    return make
