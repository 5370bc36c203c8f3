"""open_devices and a session's granted devices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jupyter_gpuslice.devices import FAR, GrantedSource, NvmlSource, SimulatedSource, open_devices


def test_real_devices_come_first(fake_nvml):
    fake_nvml.add()
    source = open_devices("a100-80gb:2", reserve_mib=7)
    assert source.kind == "nvml"
    (device,) = source.devices()
    assert (device.uuid, device.reserve_mib) == (fake_nvml.uuid(0), 7)
    source.close()


def test_simulated_devices_where_there_are_no_real_ones(fake_nvml):
    source = open_devices("tiny-2gb:2", reserve_mib=9)
    assert source.kind == "simulated"
    assert [d.reserve_mib for d in source.devices()] == [9, 9]
    source.close()


def test_no_devices_with_a_reason(fake_nvml):
    source = open_devices()
    assert (source.kind, source.devices(), source.sample({})) == ("none", [], [])
    assert source.note.endswith(".")
    assert source.nearness("a", "b") == FAR
    assert source.nearness("a", "a") == 0
    source.close()


@pytest.mark.parametrize("real", [False, True])
def test_a_bad_text_is_refused(fake_nvml, real):
    if real:
        fake_nvml.add()
    with pytest.raises(ValueError, match="nonsense"):
        open_devices("nonsense")


def test_the_environment_hides_devices(fake_nvml):
    for _ in range(3):
        fake_nvml.add()
    source = open_devices(environ={"CUDA_VISIBLE_DEVICES": "2"})
    assert [device.uuid for device in source.devices()] == [fake_nvml.uuid(2)]
    assert [use.uuid for use in source.sample({})] == [fake_nvml.uuid(2)]
    source.close()
    source = open_devices(environ={"CUDA_VISIBLE_DEVICES": ""})
    assert source.kind == "none"
    assert "environment" in source.note


def test_the_environment_is_the_processs_own(fake_nvml):
    fake_nvml.add()
    fake_nvml.add()
    code = "from jupyter_gpuslice.devices import open_devices as o; print(len(o().devices()))"
    for visible, count in (("0", "1"), ("", "0")):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **fake_nvml.env, "CUDA_VISIBLE_DEVICES": visible},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.strip() == count


def test_importing_does_not_touch_the_driver(fake_nvml):
    fake_nvml.add()
    code = "import jupyter_gpuslice.devices, jupyter_gpuslice.isolation.levels"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **fake_nvml.env}, check=True)
    assert fake_nvml.calls() == 0


def grant(*devices, nearness=()):
    return {"devices": [device.to_dict() for device in devices], "nearness": list(nearness)}


def test_a_grant_of_simulated_devices():
    a, b = SimulatedSource("a100-80gb:2").devices()
    source = GrantedSource(grant(a, b, nearness=[[a.uuid, b.uuid, 3]]))
    assert source.kind == "simulated"
    assert source.devices() == [a, b]
    assert source.nearness(b.uuid, a.uuid) == 3
    assert source.nearness(a.uuid, a.uuid) == 0
    assert source.nearness(a.uuid, "GPU-other") == FAR
    first, second = source.sample({a.uuid: [os.getpid()]})
    assert [process.pid for process in first.processes] == [os.getpid()]
    assert second.processes == ()
    source.close()


def test_a_grant_of_a_real_device_measures_that_one(fake_nvml):
    fake_nvml.add(used_mib=1)
    fake_nvml.add(used_mib=2, utilization=40)
    node = NvmlSource()
    device = node.devices()[1]
    node.close()
    source = GrantedSource(grant(device))
    assert source.kind == "nvml"
    (use,) = source.sample({})
    assert (use.uuid, use.used_mib, use.utilization_percent) == (device.uuid, 2, 40)
    source.close()


def test_a_granted_device_that_nvml_does_not_show_is_unknown(fake_nvml):
    fake_nvml.add()
    node = NvmlSource()
    (device,) = node.devices()
    node.close()
    fake_nvml.state.devices = 0
    source = GrantedSource(grant(device))
    (use,) = source.sample({})
    assert (use.used_mib, use.health) == (None, "unknown")
    source.close()


def test_an_empty_grant():
    source = GrantedSource({"devices": []})
    assert (source.kind, source.devices(), source.sample({})) == ("none", [], [])


@pytest.mark.parametrize(
    "bad",
    [{}, {"devices": None}, {"devices": [{}]}, {"devices": [], "nearness": [["a", "b"]]}, [], None],
)
def test_a_bad_grant_is_refused_with_words(bad):
    with pytest.raises(ValueError, match="grant of this session"):
        GrantedSource(bad)
