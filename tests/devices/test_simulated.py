"""Simulated devices: the text that makes them, and their use as measured from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from jupyter_gpuslice.devices import SimulatedSource
from jupyter_gpuslice.devices.measure import SETTLED_S, ProcessMeter
from jupyter_gpuslice.devices.nvml import CONTEXT_MIB

DEADLINE = 60

# Does as it is told, a line at a time, and answers "ok"; ``sys.argv[1]`` is this code itself.
PUPPET = """
import subprocess, sys, time
held, children = [], []
print("ok", flush=True)
for line in sys.stdin:
    answer = "ok"
    word, _, value = line.strip().partition(" ")
    if word == "hold":
        held.append(bytearray(b"x") * (int(value) << 20))
    elif word == "drop":
        held.clear()
    elif word == "burn":
        end = time.process_time() + float(value)
        while time.process_time() < end:
            pass
    elif word == "child":
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1]], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        children.append(child)
        answer = child.pid
    elif word == "childhold":
        print("hold", value, file=children[-1].stdin, flush=True)
        children[-1].stdout.readline()
    elif word == "endchild":
        child = children.pop()
        child.communicate()
    print(answer, flush=True)
"""


class Puppet:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PUPPET, PUPPET],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ok\n"

    @property
    def pid(self):
        return self.process.pid

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()


@pytest.fixture
def puppets():
    made = []

    def make():
        made.append(Puppet())
        return made[-1]

    yield make
    for puppet in made:
        if puppet.process.poll() is None:
            puppet.end()


def settle(measure):
    """Measure until every process counts as started."""
    time.sleep(SETTLED_S + 0.1)
    measure()


# -- the text --------------------------------------------------------------------------------------


def test_devices_of_a_text():
    source = SimulatedSource("a100-80gb:2,h100-80gb")
    devices = source.devices()
    assert [d.name for d in devices] == ["Simulated A100-80GB"] * 2 + ["Simulated H100-80GB"]
    assert [d.memory_mib for d in devices] == [81920, 81920, 81559]
    assert {d.kind for d in devices} == {"simulated"}
    assert {d.reserve_mib for d in devices} == {CONTEXT_MIB}
    assert [d.index for d in devices] == [0, 1, 2]
    assert all(d.uuid.startswith("GPU-sim-") for d in devices)
    assert len({d.uuid for d in devices}) == 3
    assert source.kind == "simulated"


def test_uuids_stay_the_same_everywhere():
    code = (
        "from jupyter_gpuslice.devices import SimulatedSource as S\n"
        "print([d.uuid for d in S('a100-80gb:2,h100-80gb').devices()])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = [d.uuid for d in SimulatedSource("a100-80gb:2,h100-80gb").devices()]
    assert run.stdout.strip() == str(own)
    # More devices do not change those that were there, nor does the order of the text.
    more = [d.uuid for d in SimulatedSource("h100-80gb, a100-80gb , a100:1,A100-80GB:1").devices()]
    assert set(own) < set(more)
    other = {d.uuid for d in SimulatedSource("a100-80gb", seed="another node").devices()}
    assert not other & set(own)


@pytest.mark.parametrize(
    ("text", "name", "mib"),
    [
        ("h100", "Simulated H100-80GB", 81559),
        ("tiny-2gb", "Simulated TINY-2GB", 2048),
        ("my-own-gpu-12gb", "Simulated MY-OWN-GPU-12GB", 12288),
    ],
)
def test_models(text, name, mib):
    (device,) = SimulatedSource(text).devices()
    assert (device.name, device.memory_mib) == (name, mib)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a100-80gb:",
        "a100-80gb:0",
        "a100-80gb:-1",
        "a100-80gb:65",
        "a100-80gb:2x",
        "a100-80gb:²",
        "a100-80gb:1:2",
        "a100-80gb,",
        "a100-80gb;h100",
        "a100-80gb:40,h100-80gb:40",
        ":2",
        "foo",
        "foo-0gb",
        "80gb",
    ],
)
def test_bad_texts_are_refused_with_examples(text):
    with pytest.raises(ValueError, match=r'"a100-80gb:2,h100-80gb"') as caught:
        SimulatedSource(text)
    assert repr(text) in str(caught.value)


def test_the_reserve_can_be_set():
    assert [d.reserve_mib for d in SimulatedSource("tiny-1gb:2", reserve_mib=0).devices()] == [0, 0]
    assert SimulatedSource("tiny-1gb", reserve_mib=9999).devices()[0].grantable_mib == 0


def test_nearness():
    source = SimulatedSource("a100:2")
    a, b = (device.uuid for device in source.devices())
    assert source.nearness(a, a) == 0
    assert source.nearness(a, b) == source.nearness(b, a) == 2


# -- use -------------------------------------------------------------------------------------------


def test_without_holders_devices_are_idle():
    for use in SimulatedSource("a100:2").sample({}):
        assert (use.used_mib, use.utilization_percent, use.processes) == (0, 0, ())
        assert use.health == "ok"


def test_memory_since_the_start_is_used_memory(puppets):
    source = SimulatedSource("a100-80gb:2")
    a, b = (device.uuid for device in source.devices())
    puppet = puppets()

    def used():
        return {use.uuid: use.used_mib for use in source.sample({a: [puppet.pid]})}

    assert used()[a] == 0
    settle(used)
    assert used()[a] <= 5
    puppet.do("hold 200")
    assert 195 <= used()[a] <= 215
    assert used()[b] == 0
    puppet.do("drop")
    assert used()[a] <= 15


def test_what_a_process_has_before_it_holds_is_not_its_use(puppets):
    puppet = puppets()
    puppet.do("hold 150")
    time.sleep(SETTLED_S + 0.1)
    source = SimulatedSource("a100-80gb")
    uuid = source.devices()[0].uuid
    assert source.sample({uuid: [puppet.pid]})[0].used_mib == 0
    puppet.do("hold 100")
    assert 95 <= source.sample({uuid: [puppet.pid]})[0].used_mib <= 115


def test_children_count(puppets):
    meter = ProcessMeter()
    puppet = puppets()
    holders = {"a": [puppet.pid]}

    def used():
        (use,) = meter.measure(holders)["a"]
        return use.used_mib

    used()
    settle(used)
    puppet.do("child")
    assert used() <= 15
    settle(used)
    assert used() <= 15, "an interpreter that has started uses no device"
    puppet.do("childhold 120")
    assert 115 <= used() <= 135
    puppet.do("endchild")
    assert used() <= 15


def test_one_tree_uses_what_its_processes_use_one_by_one(puppets):
    """The node measures a session as one tree, the session its kernels: the numbers agree."""
    tree, parts = ProcessMeter(), ProcessMeter()
    puppet = puppets()
    tree.measure({"a": [puppet.pid]})
    child = int(puppet.do("child"))
    holders = {"a": [puppet.pid, child]}

    def both():
        whole = sum(use.used_mib for use in tree.measure({"a": [puppet.pid]})["a"])
        return whole, sum(use.used_mib for use in parts.measure(holders)["a"])

    settle(both)
    puppet.do("hold 60")
    puppet.do("childhold 90")
    whole, sums = both()
    assert 145 <= whole <= 180
    assert abs(whole - sums) <= 5


def test_a_holder_below_another_is_counted_once(puppets):
    meter = ProcessMeter()
    puppet = puppets()
    meter.measure({"a": [puppet.pid]})
    settle(lambda: meter.measure({"a": [puppet.pid]}))
    child = int(puppet.do("child"))
    meter.measure({"a": [puppet.pid]})
    settle(lambda: meter.measure({"a": [puppet.pid]}))
    puppet.do("childhold 100")
    uses = meter.measure({"a": [puppet.pid], "b": [child]})
    assert [use.pid for use in uses["a"]] == [puppet.pid]
    assert uses["a"][0].used_mib <= 15
    assert [use.pid for use in uses["b"]] == [child]


def test_busy_is_a_core(puppets):
    source = SimulatedSource("a100-80gb:2")
    a, b = (device.uuid for device in source.devices())
    puppet = puppets()
    sample = {a: [puppet.pid]}
    assert source.sample(sample)[0].utilization_percent is None  # nothing to compare with yet
    time.sleep(0.5)
    assert source.sample(sample)[0].utilization_percent < 30
    before = time.monotonic()
    puppet.do("burn 1")
    share = 100 / (time.monotonic() - before)
    use = source.sample(sample)[0]
    assert abs(use.utilization_percent - min(100, share)) < 30
    assert use.processes[0].pid == puppet.pid
    assert source.sample(sample)[1].uuid == b


def test_a_device_is_at_most_fully_busy(puppets):
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock = Clock()
    meter = ProcessMeter(clock)
    puppet = puppets()
    meter.measure({"a": [puppet.pid]})
    puppet.do("burn 0.5")
    clock.now += 0.1  # half a second of CPU in a tenth of a second: many cores
    assert meter.measure({"a": [puppet.pid]})["a"][0].utilization_percent == 100


def test_several_devices_share_their_holders_use(puppets):
    source = SimulatedSource("a100-80gb:2")
    holders = {device.uuid: [] for device in source.devices()}
    puppet = puppets()
    for pids in holders.values():
        pids.append(puppet.pid)
    source.sample(holders)
    settle(lambda: source.sample(holders))
    puppet.do("hold 200")
    for use in source.sample(holders):
        assert 95 <= use.used_mib <= 110
        assert use.processes[0].used_mib == use.used_mib


def test_holders_of_one_device_add_up(puppets):
    source = SimulatedSource("tiny-1gb")
    uuid = source.devices()[0].uuid
    one, two = puppets(), puppets()
    holders = {uuid: [one.pid, two.pid]}
    source.sample(holders)
    settle(lambda: source.sample(holders))
    one.do("hold 100")
    two.do("hold 300")
    use = source.sample(holders)[0]
    assert 395 <= use.used_mib <= 430
    by_pid = {process.pid: process.used_mib for process in use.processes}
    assert by_pid[one.pid] < 120 < by_pid[two.pid]


def test_a_device_never_holds_more_than_it_has(puppets):
    source = SimulatedSource("tiny-1gb", reserve_mib=0)
    uuid = source.devices()[0].uuid
    puppet = puppets()
    source.sample({uuid: [puppet.pid]})
    settle(lambda: source.sample({uuid: [puppet.pid]}))
    puppet.do("hold 1100")
    assert source.sample({uuid: [puppet.pid]})[0].used_mib == 1024


def test_a_process_that_ends_is_gone(puppets):
    source = SimulatedSource("a100-80gb")
    uuid = source.devices()[0].uuid
    puppet = puppets()
    assert len(source.sample({uuid: [puppet.pid]})[0].processes) == 1
    puppet.end()
    use = source.sample({uuid: [puppet.pid]})[0]
    assert (use.processes, use.used_mib, use.utilization_percent) == ((), 0, 0)


def test_a_zombie_uses_nothing(puppets):
    source = SimulatedSource("a100-80gb")
    uuid = source.devices()[0].uuid
    puppet = puppets()
    puppet.process.kill()
    os.waitid(os.P_PID, puppet.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped
    assert source.sample({uuid: [puppet.pid]})[0].processes == ()


def test_unknown_devices_and_pids_are_ignored():
    source = SimulatedSource("a100-80gb")
    uuid = source.devices()[0].uuid
    (use,) = source.sample({uuid: [2**22 + 1], "GPU-other": [os.getpid()]})
    assert (use.used_mib, use.utilization_percent, use.processes) == (0, 0, ())
