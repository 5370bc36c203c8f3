"""The promises, against any sequence of events: requests, ends, failures and crashes."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpuslice.broker import Broker, Holder, Lease, Ledger, Refused, granted, whole
from jupyter_gpuslice.devices.device import Device
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.request import GpuRequest

from .conftest import Clock

REQUESTS = st.sampled_from(
    [
        "0.01",
        "0.1",
        "0.25",
        "0.33",
        "0.5",
        "0.999",
        "1",
        "2",
        "2x0.5",
        "2x0.3",
        "3",
        "auto",
        "1GiB",
        "10GiB/30%",
        "79GiB",
        "2x40GiB/50%",
        "a100:0.5",
        "h100:1",
        "a100:auto",
        "9GB",
    ]
)


def check_never_granted_twice(broker: Broker) -> None:
    """Promise 1: at every instant the leases on a device sum to at most the device."""
    memory: dict[str, int] = defaultdict(int)
    compute: dict[str, int] = defaultdict(int)
    for lease in broker.leases():
        if lease.holds:
            for slice_ in lease.slices:
                assert slice_.memory_mib > 0
                memory[slice_.device] += slice_.memory_mib
                compute[slice_.device] += slice_.compute_percent
        else:
            assert lease.slices == ()
    for member in broker.pool:
        uuid = member.device.uuid
        assert memory[uuid] <= member.memory_mib <= member.device.memory_mib, uuid
        assert compute[uuid] <= member.compute_percent <= 100, uuid


def check_whole_or_not_at_all(broker: Broker) -> None:
    """Promise 5: a lease has all of its slices, one rank's on different devices, or none."""
    for lease in broker.leases():
        if lease.holds:
            assert len(lease.slices) == lease.workers * lease.request.count
            for rank in range(lease.workers):
                devices = [slice_.device for slice_ in lease.slices_of(rank)]
                assert len(set(devices)) == len(devices)


def check_nobody_waits_in_vain(broker: Broker) -> None:
    """Whoever is first in the queue does not fit."""
    queue = broker.queue()
    if queue:
        head = queue[0]
        with pytest.raises(Refused):
            broker.request(
                head.request, head.holder, workers=head.workers, wait=False, priority=10**6
            )


class Life(RuleBasedStateMachine):
    """A node's broker through whatever may happen to it."""

    @initialize(reserve=st.sampled_from([0, 512, 1021]))
    def start(self, reserve: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger.sqlite3"
        self.clock = Clock()
        self.pids = 0
        names = ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]
        self.devices = [
            Device(f"GPU-{n}", name, "gpu", 81_559 + n, reserve_mib=reserve)
            for n, name in enumerate(names)
        ]
        self.lost: set[str] = set()
        self.open()

    def open(self) -> None:
        self.ledger = Ledger.open(self.path)
        self.broker = Broker(whole(self.devices), self.ledger, self.clock)
        for uuid in self.lost:
            self.broker.device_lost(uuid, "failed")

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.folder.cleanup()

    def leases(self, *states: str) -> list[Lease]:
        return [lease for lease in self.broker.leases() if lease.state in states]

    @rule(text=REQUESTS, workers=st.integers(1, 4), wait=st.booleans(), more=st.booleans())
    def ask(self, text: str, workers: int, wait: bool, more: bool) -> None:
        self.pids += 1
        holder = Holder("group" if workers > 1 else "kernel", str(self.pids), "ana")
        try:
            self.broker.request(
                GpuRequest.parse(text),
                holder,
                workers=workers,
                wait=wait,
                ttl=100 if more else None,
                priority=int(more),
            )
        except Refused as refused:
            assert refused.reason and refused.message and refused.hint

    @precondition(lambda self: self.leases("granted", "queued"))
    @rule(data=st.data(), processes=st.integers(1, 3))
    def come_alive(self, data: st.DataObject, processes: int) -> None:
        lease = data.draw(st.sampled_from(self.leases("granted", "queued")))
        pids = range(self.pids + 1, self.pids + 1 + processes)
        self.pids += processes
        self.broker.activate(lease.id, [Process(pid, "x") for pid in pids])

    @precondition(lambda self: any(lease.processes for lease in self.broker.leases()))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        alive = [p for lease in self.broker.leases() for p in lease.processes]
        process = data.draw(st.sampled_from(alive))
        others = {
            lease.id: lease
            for lease in self.broker.leases()
            if process not in lease.processes and lease.holds
        }
        self.broker.process_gone(process)
        for id_, lease in others.items():
            assert self.broker.get(id_) == lease

    @precondition(lambda self: self.broker.leases())
    @rule(data=st.data(), text=REQUESTS)
    def resize(self, data: st.DataObject, text: str) -> None:
        lease = data.draw(st.sampled_from(self.broker.leases()))
        try:
            self.broker.resize(lease.id, GpuRequest.parse(text))
        except Refused:
            assert self.broker.get(lease.id) == lease

    @precondition(lambda self: self.broker.leases())
    @rule(data=st.data(), how=st.sampled_from(["release", "revoke", "extend"]))
    def change(self, data: st.DataObject, how: str) -> None:
        lease = data.draw(st.sampled_from(self.broker.leases()))
        arguments = {"revoke": ("why",), "extend": (50.0,)}.get(how, ())
        getattr(self.broker, how)(lease.id, *arguments)

    @precondition(lambda self: self.leases("active"))
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        self.broker.park(data.draw(st.sampled_from(self.leases("active"))).id)

    @precondition(lambda self: self.leases("parked"))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.broker.resume(data.draw(st.sampled_from(self.leases("parked"))).id)

    @precondition(lambda self: self.leases("granted", "active"))
    @rule(data=st.data(), workers=st.integers(1, 3), wait=st.booleans())
    def lend(self, data: st.DataObject, workers: int, wait: bool) -> None:
        own = data.draw(st.sampled_from(self.leases("granted", "active")))
        group = Holder("group", own.id, "ana")
        request = GpuRequest.parse("0.25")
        try:
            self.broker.request(request, group, workers=workers, wait=wait, instead_of=own.id)
        except Refused:
            assert self.broker.get(own.id) == own
        else:
            assert own.request.kind == "auto"

    @rule(seconds=st.sampled_from([1, 60, 100, 121]))
    def sleep(self, seconds: int) -> None:
        self.clock.sleep(seconds)
        due = self.broker.tick()
        assert due is None or due > self.clock()

    @rule(n=st.integers(0, 2))
    def fail_or_mend(self, n: int) -> None:
        uuid = self.devices[n].uuid
        if uuid in self.lost:
            self.lost.discard(uuid)
            self.broker.device_back(uuid)
        else:
            self.lost.add(uuid)
            for lease in self.broker.device_lost(uuid, "failed"):
                assert lease.state == "lost"

    @rule()
    def crash(self) -> None:
        """kill -9: the ledger is all that is left."""
        before = {lease.id: lease for lease in self.broker.leases()}
        self.ledger.close()
        self.open()
        # Until it hears again that a device has failed, it may grant what others wait for.
        if not self.lost:
            assert {lease.id: lease for lease in self.broker.leases()} == before

    @invariant()
    def promises(self) -> None:
        if hasattr(self, "broker"):
            check_never_granted_twice(self.broker)
            check_whole_or_not_at_all(self.broker)
            check_nobody_waits_in_vain(self.broker)
            for lease in self.leases("granted", "active"):
                assert not {s.device for s in lease.slices} & self.lost


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_slice_is_a_pool(make, clock) -> None:
    """What a session holds is the pool of its kernels: never more than the session's part."""
    node = make()
    session = node.request(GpuRequest.parse("2x0.5"), Holder("session", "s", "ana"))
    pool = granted([member.device for member in node.pool], session.slices)
    inner = Broker(pool, Ledger.open(None), clock)
    leases = [
        inner.request(GpuRequest.parse("0.25"), Holder("kernel", str(n), "ana")) for n in range(5)
    ]
    assert [lease.state for lease in leases] == ["granted"] * 4 + ["queued"]
    check_never_granted_twice(inner)
    with pytest.raises(Refused) as refused:
        inner.request(GpuRequest.parse("0.75"), Holder("kernel", "x", "ana"))
    assert refused.value.reason == "insufficient_memory"
    with pytest.raises(Refused) as refused:
        inner.request(GpuRequest.parse("1"), Holder("kernel", "x", "ana"))
    assert "part of each GPU" in refused.value.message
