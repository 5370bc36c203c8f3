from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpuslice.devices import Device, NvmlSource, SimulatedSource, open_devices
from jupyter_gpuslice.isolation.levels import (
    APPLIED,
    LEVELS,
    Probes,
    doctor,
    level,
    level_of,
    node_level,
    probe,
    reasons,
)
from tests.fakes.nvml.fixtures import fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]

GPU = Device("GPU-a", "NVIDIA A100", "gpu", 80_000)
MIG = Device("MIG-m", "NVIDIA A100 MIG 1g.10gb", "mig", 9856, profile="1g.10gb", parent="GPU-c")
SIMULATED = SimulatedSource("a100-80gb")
FULL = Probes(
    devices=[GPU],
    driver="615.71.05",
    mig_modes={"GPU-a": False},
    memory_limits=True,
    cgroup_v2=True,
    root=True,
    mps_control="/usr/bin/nvidia-cuda-mps-control",
    libvgpu="/usr/local/vgpu/libvgpu.so",
)


def findings(probes):
    return {finding.level: finding for finding in doctor(probes)}


def test_levels_are_those_of_the_design():
    names = [known.name for known in LEVELS]
    assert names == ["mig", "cgroup", "mps", "hami", "framework", "watch", "simulated"]
    for known in LEVELS:
        assert known.holds.endswith(".")
        assert known.lacks.endswith(".")
        assert level(known.name) is known
    with pytest.raises(KeyError):
        level("magic")


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([], "watch"),
        ([GPU], "framework"),
        ([MIG], "mig"),
        ([MIG, GPU], "framework"),
        (SIMULATED.devices(), "simulated"),
    ],
)
def test_the_level_of_devices_is_their_weakest(devices, expected):
    assert level_of(devices) == expected


def test_node_level_asks_the_source(fake_nvml):
    assert node_level(SIMULATED) == "simulated"
    source = NvmlSource()
    assert node_level(source) == "watch"
    fake_nvml.add(mig=True)
    fake_nvml.add_mig(0, "1g.10gb", 9856)
    assert node_level(source) == "mig"
    fake_nvml.add()
    assert node_level(source) == "framework"
    source.close()


def test_the_findings_are_in_the_order_of_the_levels():
    for probes in (Probes(), FULL):
        assert [finding.level for finding in doctor(probes)] == [known.name for known in LEVELS]
        for finding in doctor(probes):
            assert finding.why.endswith(".")
            assert finding.remedy == "" or finding.remedy.endswith((".", "…"))
            assert not (finding.available and finding.remedy)


def test_a_node_with_everything():
    found = findings(FULL)
    assert found["framework"].available
    assert found["watch"].available
    assert not found["simulated"].available
    for name in ("cgroup", "mps", "hami"):
        # Being able to is not doing it: what this release does not apply is not claimed.
        assert found[name].available == (name in APPLIED)
        assert "has what it needs" in found[name].why
        assert found[name].remedy == ""


@pytest.mark.parametrize(
    ("change", "why", "remedy"),
    [
        ({"driver": "580.82.07"}, "The driver is 580.82.07.", "driver 615"),
        ({"memory_limits": False}, "The driver is 615.71.05.", "nvidia-ml-py"),
        ({"cgroup_v2": False}, "Cgroup v2 is not mounted", "unified_cgroup_hierarchy"),
        ({"root": False}, "This process is not root.", "as root"),
    ],
)
def test_what_cgroup_limits_need(change, why, remedy):
    finding = findings(replace(FULL, **change))["cgroup"]
    assert not finding.available
    assert why in finding.why
    assert remedy in finding.remedy


def test_several_things_may_be_missing():
    finding = findings(replace(FULL, driver="580.1", root=False))["cgroup"]
    assert finding.why == "The driver is 580.1; this process is not root."
    assert "615" in finding.remedy
    assert "as root" in finding.remedy


def test_mps_and_hami_are_looked_for():
    found = findings(replace(FULL, mps_control=None, libvgpu=None))
    assert "nvidia-cuda-mps-control" in found["mps"].why
    assert found["mps"].remedy
    assert "libvgpu.so" in found["hami"].why
    assert found["hami"].remedy


@pytest.mark.parametrize(
    ("change", "available", "why", "remedy"),
    [
        ({"devices": [MIG]}, True, "1 MIG instance in the pool", ""),
        ({"devices": [MIG, MIG]}, True, "2 MIG instances in the pool", ""),
        ({}, False, "can do MIG, but the mode is off", "-mig 1"),
        ({"mig_modes": {"GPU-a": True}}, False, "has no MIG instance", "-cgi"),
        ({"mig_modes": {"GPU-a": None}}, False, "No GPU of this node can do MIG", ""),
    ],
)
def test_mig(change, available, why, remedy):
    finding = findings(replace(FULL, **change))["mig"]
    assert finding.available is available
    assert why in finding.why
    assert remedy in finding.remedy


def test_a_node_without_a_gpu():
    note = "No NVIDIA driver is installed."
    found = findings(Probes(note=note))
    assert not any(finding.available for finding in found.values())
    assert found["cgroup"].why == note
    assert "c.GpuSlice.simulate" in found["simulated"].remedy


def test_a_node_with_simulated_devices():
    found = findings(Probes(devices=SIMULATED.devices()))
    assert [name for name, finding in found.items() if finding.available] == ["simulated"]
    assert found["simulated"].why == "1 simulated device in the pool."


def test_probing_this_node(fake_nvml):
    fake_nvml.add(mig=None)
    source = open_devices()
    found = {finding.level: finding for finding in doctor(probe(source))}
    source.close()
    assert found["framework"].available
    assert "580.82.07" in found["watch"].why
    assert "580.82.07" in found["cgroup"].why
    assert not found["mig"].available


def test_mig_mode_without_instances_is_seen_though_there_are_no_devices(fake_nvml):
    fake_nvml.add(mig=True)
    source = open_devices()
    found = {finding.level: finding for finding in doctor(probe(source))}
    assert source.kind == "none"
    assert "-cgi" in found["mig"].remedy


def test_what_several_levels_lack_alike_is_said_once():
    found = doctor(Probes(note="No NVIDIA driver is installed."))
    [(why, remedy)] = reasons(found).items()
    assert why == "No NVIDIA driver is installed."
    assert "Install the NVIDIA driver" in remedy
    assert reasons(doctor(FULL)) == {}


def test_the_devices_of_a_session_count_in_place_of_the_machine_s():
    device = SIMULATED.devices()[0]
    pool = [{**device.to_dict(), "free_mib": 1, "leases": []}]
    seen = Probes(note="No NVIDIA driver is installed.").of_pool(pool)
    assert [each.name for each in seen.devices] == [device.name]
    assert level_of(seen.devices) == "simulated"
    assert [finding.level for finding in doctor(seen) if finding.available] == ["simulated"]
