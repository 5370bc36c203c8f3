"""Unmodified pynvml on the fake library, in this process and in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pynvml
import pytest

from jupyter_gpuslice.devices.nvml import CONTEXT_MIB, FAR, NvmlSource
from tests.fakes.nvml import (
    HOST_BRIDGE,
    MULTIPLE_SWITCHES,
    NUMA_NODE,
    SAME_BOARD,
    SINGLE_SWITCH,
    SYSTEM,
)


@pytest.fixture
def source():
    source = NvmlSource(patience=20)
    yield source
    source.close()


def only(uses):
    (use,) = uses
    return use


CHILD = """
import json, sys
from jupyter_gpuslice.devices.nvml import NvmlSource
source = NvmlSource(patience=20)
devices = source.devices()
for line in sys.stdin:
    uses = source.sample({})
    print(json.dumps({
        "note": source.note,
        "devices": [d.to_dict() for d in devices],
        "uses": [[u.uuid, u.used_mib, u.utilization_percent, u.health] for u in uses],
    }), flush=True)
source.close()
"""


@pytest.fixture
def child():
    """Starts a process with a source; its ``ask()`` takes a sample there."""
    started = []

    def start(**environ):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        return ask

    yield start
    for process in started:
        process.stdin.close()
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.stdout.close()


# -- what is there ---------------------------------------------------------------------------------


def test_devices_are_told_as_they_are(fake_nvml, source):
    fake_nvml.add("NVIDIA A100-SXM4-80GB", 81920, reserved_mib=600, numa=1)
    fake_nvml.add("NVIDIA H100 80GB HBM3", 81559, reserved_mib=0)
    first, second = source.devices()
    assert first.uuid == fake_nvml.uuid(0)
    assert (first.name, first.kind, first.memory_mib) == ("NVIDIA A100-SXM4-80GB", "gpu", 81920)
    assert first.reserve_mib == 600 + CONTEXT_MIB
    assert (first.index, first.numa, first.pci) == (0, 1, "00000000:10:00.0")
    assert (second.memory_mib, second.reserve_mib, second.numa) == (81559, CONTEXT_MIB, None)
    assert source.note == ""
    assert source.kind == "nvml"


def test_the_reserve_can_be_set(fake_nvml):
    fake_nvml.add(memory_mib=1000)
    for wanted, reserve in ((0, 0), (300, 300), (5000, 1000)):
        source = NvmlSource(reserve_mib=wanted)
        assert source.devices()[0].reserve_mib == reserve
        source.close()


def test_memory_by_version_1_where_there_is_no_other(fake_nvml, source):
    fake_nvml.add(memory_mib=16384, reserved_mib=400, used_mib=100)
    fake_nvml.fault("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    (device,) = source.devices()
    assert (device.memory_mib, device.reserve_mib) == (16384, CONTEXT_MIB)
    assert only(source.sample({})).used_mib == 500


def test_memory_by_version_2_leaves_the_drivers_share_out(fake_nvml, source):
    fake_nvml.add(memory_mib=16384, reserved_mib=400, used_mib=100)
    assert only(source.sample({})).used_mib == 100


def test_a_device_of_unknown_memory_is_left_out_with_words(fake_nvml, source):
    fake_nvml.add("NVIDIA GB10")
    fake_nvml.add("NVIDIA L4", 23034)
    fake_nvml.fault("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_NOT_SUPPORTED, device=0)
    assert [device.name for device in source.devices()] == ["NVIDIA L4"]
    assert "NVIDIA GB10" in source.note


def test_mig_devices_stand_for_their_gpu(fake_nvml, source):
    fake_nvml.add("NVIDIA L4", 23034, mig=None)
    board = fake_nvml.add("NVIDIA A100-SXM4-80GB", mig=True, utilization=50, numa=0)
    one = fake_nvml.add_mig(board, "1g.10gb", 9856, used_mib=12)
    two = fake_nvml.add_mig(board, "1g.10gb+me", 9856)
    three = fake_nvml.add_mig(board, "3g.40gb", 40192)
    fake_nvml.add_process(board, 77, 12, mig=0)
    fake_nvml.add_process(board, 78, 5, mig=2)

    l4, *migs = source.devices()
    assert l4.kind == "gpu"
    assert [(m.uuid, m.kind, m.profile, m.memory_mib) for m in migs] == [
        (one, "mig", "1g.10gb", 9856),
        (two, "mig", "1g.10gb+me", 9856),
        (three, "mig", "3g.40gb", 40192),
    ]
    assert {m.parent for m in migs} == {fake_nvml.uuid(board)}
    assert {m.numa for m in migs} == {0}
    assert [m.index for m in migs] == [0, 1, 2]

    uses = {use.uuid: use for use in source.sample({})}
    assert uses[one].used_mib == 12
    assert uses[one].utilization_percent is None  # not known on MIG, which is not 0
    assert uses[one].health == "ok"
    assert [p.pid for p in uses[one].processes] == [77]
    assert uses[two].processes == ()
    assert [p.pid for p in uses[three].processes] == [78]
    assert uses[l4.uuid].utilization_percent == 0


@pytest.mark.parametrize(
    ("board_mib", "mib", "slices", "profile"),
    [
        (81920, 9856, "1", "1g.10gb"),
        (81920, 40192, "3", "3g.40gb"),
        (81920, 80384, "7", "7g.80gb"),
        (40960, 4864, "1", "1g.5gb"),
        (81559, 19968, "2", "2g.20gb"),
    ],
)
def test_a_profile_is_known_without_a_name(fake_nvml, source, board_mib, mib, slices, profile):
    board = fake_nvml.add(memory_mib=board_mib, mig=True)
    fake_nvml.add_mig(board, f"{slices}g.0gb", mib)
    fake_nvml.state.device[board].migs[0].name = b"NVIDIA A100"
    assert only(source.devices()).profile == profile


def test_mig_instances_come_and_go(fake_nvml, source):
    board = fake_nvml.add(mig=True)
    assert source.devices() == []
    assert "MIG mode" in source.note
    one = fake_nvml.add_mig(board, "3g.40gb", 40192)
    assert [d.uuid for d in source.devices()] == [one]
    assert source.note == ""
    fake_nvml.remove_mig(board, one)
    assert only(source.sample({})).health == "lost"  # listed a moment ago
    other = fake_nvml.add_mig(board, "4g.40gb", 40192, uuid="MIG-other")
    assert [d.uuid for d in source.devices()] == [other]
    assert only(source.sample({})).health == "ok"


def test_no_device_at_all(fake_nvml, source):
    assert source.devices() == []
    assert source.sample({}) == []
    assert source.note.endswith(".")


# -- how it is used --------------------------------------------------------------------------------


def test_use_and_processes(fake_nvml, source):
    gpu = fake_nvml.add(used_mib=3500, utilization=63)
    fake_nvml.add_process(gpu, 30, 1000, sm=40)
    fake_nvml.add_process(gpu, 20, 2000)
    fake_nvml.add_process(gpu, 10, 5, graphics=True)
    fake_nvml.add_process(gpu, 20, 2000, graphics=True)  # computes and draws: counted once
    use = only(source.sample({}))
    assert (use.used_mib, use.utilization_percent, use.health) == (3500, 63, "ok")
    assert [(p.pid, p.used_mib) for p in use.processes] == [(10, 5), (20, 2000), (30, 1000)]
    # 30 has a sample; the driver looked at the others too and saw them do nothing
    assert [p.utilization_percent for p in use.processes] == [0, 0, 40]


def test_utilisation_of_processes_is_unknown_where_the_driver_can_not_tell(fake_nvml, source):
    gpu = fake_nvml.add(utilization=63, samples=False)
    fake_nvml.add_process(gpu, 30, 1000, sm=40)
    assert only(source.sample({})).processes[0].utilization_percent is None


def test_memory_of_a_process_may_be_unknown(fake_nvml, source):
    gpu = fake_nvml.add(used_mib=800)
    fake_nvml.add_process(gpu, 30, None)
    use = only(source.sample({}))
    assert use.used_mib == 800
    assert use.processes[0].used_mib is None


def test_pids_of_the_host_are_passed_on_and_summed(fake_nvml, source):
    """In a container NVML may tell pids of the host: nobody's here, yet memory that is taken."""
    gpu = fake_nvml.add(used_mib=0)
    fake_nvml.add_process(gpu, 3_999_999, 700)
    fake_nvml.add_process(gpu, os.getpid(), 300)
    fake_nvml.set(gpu, used_mib=1000)
    use = only(source.sample({fake_nvml.uuid(gpu): [os.getpid()]}))
    assert use.used_mib == 1000
    assert sum(p.used_mib for p in use.processes) == 1000
    assert {p.pid for p in use.processes} == {os.getpid(), 3_999_999}


QUERIES = [
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetMemoryInfo*",
]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    ],
)
def test_one_failing_query_leaves_the_rest(fake_nvml, source, query, error):
    for index in range(2):
        fake_nvml.add(used_mib=100, utilization=5)
        fake_nvml.add_process(index, 10 + index, 100, sm=5)
    source.devices()
    fake_nvml.fault(query, error, device=0)
    bad, good = source.sample({})
    assert (good.used_mib, good.utilization_percent, good.health) == (100, 5, "ok")
    assert good.processes[0].used_mib == 100
    if query == "nvmlDeviceGetUtilizationRates":
        assert bad.utilization_percent is None
    else:
        assert bad.utilization_percent == 5
    if query.startswith("nvmlDeviceGetMemoryInfo"):
        assert bad.used_mib == 100  # from the processes, all of which are known
        assert bad.health == ("unknown" if error == pynvml.NVML_ERROR_UNKNOWN else "ok")
    else:
        assert (bad.used_mib, bad.health) == (100, "ok")


def test_unsupported_memory_is_none_and_not_zero(fake_nvml, source):
    fake_nvml.add(used_mib=100)
    source.devices()
    fake_nvml.fault("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert only(source.sample({})).used_mib is None


def test_a_device_in_trouble_when_listed_stays_listed(fake_nvml, source):
    fake_nvml.add()
    before = source.devices()
    fake_nvml.fault("nvmlDeviceGetMemoryInfo*", pynvml.NVML_ERROR_UNKNOWN)
    assert source.devices() == before
    assert only(source.sample({})).health == "unknown"


# -- loss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mig", [False, True])
def test_a_lost_device_is_told_and_the_others_go_on(fake_nvml, source, mig):
    for index in range(3):
        fake_nvml.add(mig=mig, used_mib=7)
        if mig:
            fake_nvml.add_mig(index, "3g.40gb", 40192, used_mib=7)
    before = source.devices()
    fake_nvml.lose(1)
    assert [use.health for use in source.sample({})] == ["ok", "lost", "ok"]
    assert source.devices() == before
    first, lost, third = source.sample({})
    assert (lost.used_mib, lost.utilization_percent, lost.processes) == (None, None, ())
    assert (first.used_mib, third.used_mib) == (7, 7)
    fake_nvml.lose(1, False)
    assert [use.health for use in source.sample({})] == ["ok", "ok", "ok"]


def test_a_device_that_is_lost_from_the_start_is_not_offered(fake_nvml, source):
    fake_nvml.add()
    fake_nvml.add()
    fake_nvml.lose(0)
    assert [device.uuid for device in source.devices()] == [fake_nvml.uuid(1)]


def test_loss_in_the_midst_of_a_sample(fake_nvml, source):
    fake_nvml.add(used_mib=5)
    source.devices()
    fake_nvml.fault("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_GPU_IS_LOST)
    use = only(source.sample({}))
    assert (use.health, use.used_mib) == ("lost", None)


def test_somebody_elses_shutdown_is_survived(fake_nvml, source):
    fake_nvml.add(used_mib=5)
    source.devices()
    pynvml.nvmlShutdown()
    assert only(source.sample({})).used_mib == 5


# -- time ------------------------------------------------------------------------------------------


def test_a_slow_driver_is_waited_for(fake_nvml, source):
    fake_nvml.add(used_mib=5)
    source.devices()
    fake_nvml.fault("nvmlDeviceGetMemoryInfo_v2", slow_ms=300)
    begin = time.monotonic()
    assert only(source.sample({})).used_mib == 5
    assert time.monotonic() - begin >= 0.3


def nvml_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gpuslice-nvml"]


def test_a_hanging_driver_costs_one_thread_and_no_caller(fake_nvml):
    before = len(nvml_threads())
    source = NvmlSource(patience=0.5)
    fake_nvml.add(used_mib=5)
    devices = source.devices()
    fake_nvml.fault("nvmlDeviceGetMemoryInfo_v2", hang=True)
    for _ in range(5):
        use = only(source.sample({}))
        assert (use.used_mib, use.health) == (None, "unknown")
    assert source.devices() == devices
    assert source.nearness("a", "b") == FAR
    assert source.driver_version() is None
    assert source.note == "The NVIDIA driver does not answer."
    assert len(nvml_threads()) == before + 1

    fake_nvml.mend()
    deadline = time.monotonic() + 20
    while only(source.sample({})).health != "ok" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert only(source.sample({})).used_mib == 5
    source.close()
    while len(nvml_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(nvml_threads()) == before


def test_a_driver_may_take_its_time_to_start(fake_nvml):
    fake_nvml.add()
    fake_nvml.fault("nvmlInit", slow_ms=700)
    source = NvmlSource(patience=0.3)
    assert len(source.devices()) == 1
    source.close()


def test_a_driver_that_hangs_at_its_start(fake_nvml):
    fake_nvml.add()
    fake_nvml.fault("nvmlInit", hang=True)
    source = NvmlSource(patience=0.3, start_patience=0.3)
    assert source.devices() == []
    assert source.note == "The NVIDIA driver does not answer."
    source.close()


# -- topology --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ancestor", "level"),
    [
        (SAME_BOARD, 1),
        (SINGLE_SWITCH, 2),
        (MULTIPLE_SWITCHES, 3),
        (HOST_BRIDGE, 4),
        (NUMA_NODE, 4),
        (SYSTEM, 5),
    ],
)
def test_nearness_on_pcie(fake_nvml, source, ancestor, level):
    a, b = fake_nvml.add(), fake_nvml.add()
    fake_nvml.connect(a, b, ancestor)
    assert source.nearness(fake_nvml.uuid(a), fake_nvml.uuid(b)) == level
    assert source.nearness(fake_nvml.uuid(b), fake_nvml.uuid(a)) == level
    assert source.nearness(fake_nvml.uuid(a), fake_nvml.uuid(a)) == 0


def test_nearness_by_nvlink(fake_nvml, source):
    a, b, c = fake_nvml.add(), fake_nvml.add(), fake_nvml.add()
    fake_nvml.nvlink(a, b, link=3)
    uuids = [fake_nvml.uuid(i) for i in (a, b, c)]
    assert source.nearness(uuids[0], uuids[1]) == 0
    assert source.nearness(uuids[1], uuids[0]) == 0
    assert source.nearness(uuids[0], uuids[2]) == 5


def test_nearness_through_a_switch(fake_nvml, source):
    for _ in range(3):
        fake_nvml.add()
    fake_nvml.nvswitch(0, 1)
    assert source.nearness(fake_nvml.uuid(0), fake_nvml.uuid(1)) == 0
    assert source.nearness(fake_nvml.uuid(0), fake_nvml.uuid(2)) == 5


def test_the_driver_has_the_last_word_on_nvlink(fake_nvml, source):
    for _ in range(3):
        fake_nvml.add()
    fake_nvml.nvlink(0, 1)
    fake_nvml.p2p(0, 1, pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
    fake_nvml.p2p(0, 2, pynvml.NVML_P2P_STATUS_OK)
    assert source.nearness(fake_nvml.uuid(0), fake_nvml.uuid(1)) == 5
    assert source.nearness(fake_nvml.uuid(0), fake_nvml.uuid(2)) == 0


def test_mig_devices_are_near_but_never_linked(fake_nvml, source):
    a, b = fake_nvml.add(mig=True), fake_nvml.add(mig=True)
    one, two = (fake_nvml.add_mig(a, "3g.40gb", 40192) for _ in range(2))
    far = fake_nvml.add_mig(b, "3g.40gb", 40192)
    fake_nvml.nvlink(a, b)
    fake_nvml.connect(a, b, SINGLE_SWITCH)
    assert source.nearness(one, two) == 1
    assert source.nearness(one, far) == 2


def test_unknown_nearness_is_far_and_asked_again(fake_nvml, source):
    a, b = fake_nvml.add(), fake_nvml.add()
    uuids = fake_nvml.uuid(a), fake_nvml.uuid(b)
    fake_nvml.connect(a, b, SINGLE_SWITCH)
    fake_nvml.fault("nvmlDeviceGetTopologyCommonAncestor", pynvml.NVML_ERROR_UNKNOWN)
    assert source.nearness(*uuids) == FAR
    fake_nvml.mend()
    assert source.nearness(*uuids) == 2
    assert source.nearness(uuids[0], "GPU-nobody") == FAR


# -- the node --------------------------------------------------------------------------------------


def test_driver_and_mig_modes(fake_nvml, source):
    fake_nvml.add(mig=True)
    fake_nvml.add(mig=False)
    fake_nvml.add("NVIDIA L4", mig=None)
    assert source.driver_version() == "580.82.07"
    assert list(source.mig_modes().values()) == [True, False, None]


# -- other processes -------------------------------------------------------------------------------


def test_other_processes_see_the_same_machine_and_its_changes(fake_nvml, child):
    fake_nvml.add(used_mib=10, utilization=1)
    board = fake_nvml.add(mig=True)
    mig = fake_nvml.add_mig(board, "1g.10gb", 9856)
    ask = child(**fake_nvml.env)
    first = ask()
    assert [d["uuid"] for d in first["devices"]] == [fake_nvml.uuid(0), mig]
    assert first["uses"] == [
        [fake_nvml.uuid(0), 10, 1, "ok"],
        [mig, 0, None, "ok"],
    ]
    fake_nvml.set(0, used_mib=4000, utilization=99)
    assert ask()["uses"][0] == [fake_nvml.uuid(0), 4000, 99, "ok"]
    fake_nvml.lose(0)
    assert ask()["uses"][0] == [fake_nvml.uuid(0), None, None, "lost"]


def test_without_the_library(child):
    answer = child(LD_LIBRARY_PATH="")()
    if answer["devices"]:
        pytest.skip("this machine has a driver")
    assert answer["uses"] == []
    assert answer["note"].endswith(".")
    assert "driver" in answer["note"]


def test_without_the_driver(fake_nvml, child, tmp_path):
    environ = {**fake_nvml.env, "GPUSLICE_FAKE_NVML": str(tmp_path / "none")}
    answer = child(**environ)()
    assert (answer["devices"], answer["uses"]) == ([], [])
    assert answer["note"] == "The NVIDIA driver is not loaded."


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not talk"),
        (pynvml.NVML_ERROR_UNKNOWN, "could not be started"),
    ],
)
def test_a_driver_that_does_not_start_is_told_in_words(fake_nvml, source, error, words):
    fake_nvml.add()
    fake_nvml.fault("nvmlInit", error)
    assert source.devices() == []
    assert words in source.note
    fake_nvml.mend()
    assert len(source.devices()) == 1
    assert source.note == ""


# -- real hardware ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(
    os.environ.get("GPUSLICE_TEST_REAL_NVML") != "1", reason="GPUSLICE_TEST_REAL_NVML=1 is not set"
)
def test_the_real_library_answers(source):
    devices = source.devices()
    assert devices, source.note
    assert source.driver_version()
    for device in devices:
        assert device.uuid.startswith(("GPU-", "MIG-"))
        assert device.memory_mib > device.reserve_mib >= CONTEXT_MIB
        assert device.name
        assert (device.kind == "mig") == (device.profile is not None)
    uses = source.sample({})
    assert [use.uuid for use in uses] == [device.uuid for device in devices]
    for use, device in zip(uses, devices, strict=True):
        assert use.health == "ok"
        assert use.used_mib is None or 0 <= use.used_mib <= device.memory_mib
        assert use.utilization_percent is None or 0 <= use.utilization_percent <= 100
    for a in devices:
        for b in devices:
            assert 0 <= source.nearness(a.uuid, b.uuid) <= FAR
