"""How much of each request is free, counted on a real broker."""

from __future__ import annotations

import pytest

from jupyter_gpuslice.broker.broker import Broker
from jupyter_gpuslice.broker.lease import Holder
from jupyter_gpuslice.broker.ledger import Ledger
from jupyter_gpuslice.broker.pool import whole
from jupyter_gpuslice.devices.device import Device
from jupyter_gpuslice.hub.availability import Availability, availability
from jupyter_gpuslice.request import GpuRequest


def broker() -> Broker:
    devices = [Device(f"GPU-{n}", "A100-80GB", "simulated", 80 * 1024) for n in range(2)]
    return Broker(whole(devices), Ledger.open(None), lambda: 1000.0)


def lease(at: Broker, text: str, user: str = "ana", ttl: float | None = None) -> None:
    at.request(GpuRequest.parse(text), Holder("session", f"{user}/", user), ttl=ttl)


def ask(at: Broker, *texts: str) -> Availability:
    return availability(at, [GpuRequest.parse(text) for text in texts])


@pytest.mark.parametrize(
    ("held", "text", "free", "total"),
    [
        ([], "0.25", 8, 8),
        (["0.25"], "0.25", 7, 8),
        (["0.25"], "0.5", 3, 4),
        (["0.25"], "1", 1, 2),
        (["0.25"], "2", 0, 1),
        (["0.25"], "2x0.5", 1, 2),
        (["1", "1"], "0.25", 0, 8),
        ([], "64MiB", 1000, 1000),
    ],
)
def test_counts(held: list[str], text: str, free: int, total: int) -> None:
    at = broker()
    for request in held:
        lease(at, request)
    offer = ask(at, text).offer(GpuRequest.parse(text))
    assert (offer.free, offer.total, offer.never) == (free, total, False)
    assert (offer.position is None) is (free > 0)


def test_never_and_the_queue_and_the_wait() -> None:
    at = broker()
    lease(at, "2", ttl=600)
    lease(at, "0.5", "ben")
    found = ask(at, "3", "0.5", "0")
    assert found.offer(GpuRequest.parse("3")).never
    assert found.offer(GpuRequest.parse("3")).message
    half = found.offer(GpuRequest.parse("0.5"))
    assert (half.free, half.position, half.estimate_s) == (0, 2, 600)
    assert found.waiting == 1
    assert [(kind.name, kind.kind, kind.count) for kind in found.devices] == [
        ("A100-80GB", "simulated", 2)
    ]
    assert at.queue()[0].holder.user == "ben", "looking changes nothing"


def test_it_survives_the_way_to_the_hub() -> None:
    found = ask(broker(), "0.5", "3")
    assert Availability.from_dict(found.to_dict()) == found
