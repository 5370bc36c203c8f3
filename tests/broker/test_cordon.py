"""Devices that are taken out of service by an administrator."""

from __future__ import annotations

import pytest

from jupyter_gpuslice.broker import Broker, Ledger, Refused, whole
from jupyter_gpuslice.request import GpuRequest

from .conftest import gpu, kernel


def ask(broker: Broker, text: str, n: int = 1, **more):
    return broker.request(GpuRequest.parse(text), kernel(n), **more)


def test_nothing_new_is_granted_on_a_cordoned_device_and_what_is_held_stays(make):
    broker = make()
    held = ask(broker, "0.5")
    (device,) = {slice_.device for slice_ in held.slices}
    broker.cordon(device, "new fans")
    assert broker.get(held.id).holds
    assert broker.cordoned == {device: "new fans"}
    assert broker.free()[device].memory_mib > 0
    other = ask(broker, "0.5", 2)
    assert {slice_.device for slice_ in other.slices} != {device}


def test_a_request_that_only_a_cordoned_device_could_serve_waits_and_is_told_why(make):
    broker = make(gpu(0))
    broker.cordon("GPU-0", "new fans at noon")
    explanation = broker.explain(GpuRequest.parse("0.5"))
    assert (explanation.fits, explanation.reason) == (False, "cordoned")
    assert "new fans at noon" in explanation.message
    with pytest.raises(Refused) as refused:
        ask(broker, "0.5", wait=False)
    assert refused.value.reason == "cordoned"
    waiting = ask(broker, "0.5")
    assert waiting.state == "queued"
    broker.uncordon("GPU-0")
    assert broker.get(waiting.id).state == "granted"


def test_a_full_device_that_is_cordoned_too_is_not_blamed_on_the_cordon(make):
    broker = make(gpu(0))
    ask(broker, "1")
    broker.cordon("GPU-0", "new fans")
    assert broker.explain(GpuRequest.parse("0.5")).reason != "cordoned"


def test_a_cordon_outlives_the_broker(tmp_path, clock):
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    Broker(whole([gpu(0), gpu(1)]), ledger, clock).cordon("GPU-1", "new fans")
    ledger.close()
    broker = Broker(whole([gpu(0), gpu(1)]), Ledger.open(tmp_path / "ledger.sqlite"), clock)
    assert broker.cordoned == {"GPU-1": "new fans"}
    assert ask(broker, "2").state == "queued"


def test_only_devices_of_the_pool_are_cordoned(make):
    broker = make()
    with pytest.raises(Refused) as refused:
        broker.cordon("GPU-nowhere")
    assert refused.value.reason == "not_found"
    broker.uncordon("GPU-nowhere")
    assert broker.cordoned == {}


def test_a_bundle_does_not_take_a_cordoned_device(make):
    broker = make(gpu(0), gpu(1), gpu(2))
    broker.cordon("GPU-1")
    assert {s.device for s in ask(broker, "2").slices} == {"GPU-0", "GPU-2"}


def test_what_is_held_ends_by_then_and_never_later_than_before(make, clock):
    broker = make()
    long = ask(broker, "0.5")
    short = ask(broker, "0.25", 2, ttl=60)
    for lease in (long, short):
        broker.end_by(lease.id, clock() + 600, "new fans")
    assert broker.get(long.id).expires == clock() + 600
    assert broker.get(long.id).detail == "new fans"
    assert broker.get(short.id).expires == clock() + 60
    clock.sleep(601)
    broker.tick()
    assert broker.get(long.id).state == "expired"
    with pytest.raises(Refused):
        broker.end_by(long.id, clock())
