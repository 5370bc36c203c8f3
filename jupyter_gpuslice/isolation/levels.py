"""How a slice can be enforced: the levels, which of them a node has, and how to get more."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pynvml

from ..devices.device import Device, DeviceSource
from ..devices.nvml import NvmlSource

CGROUP_DRIVER = 615
"""The first driver branch with device memory limits for each cgroup."""


@dataclass(frozen=True)
class Level:
    """One way to enforce a slice; the sentences are for people."""

    name: str
    holds: str
    lacks: str


LEVELS: tuple[Level, ...] = (
    Level(
        "mig",
        "The GPU itself keeps MIG instances apart: memory, compute and faults.",
        "Sizes are the board's fixed profiles, and a process uses one instance.",
    ),
    Level(
        "cgroup",
        "The driver refuses memory beyond the limit of the kernel's cgroup, whatever the program.",
        "Compute is shared in turns.",
    ),
    Level(
        "mps",
        "The MPS server caps memory and compute of its clients.",
        "A fatal fault of one client ends the others on that GPU, and compute is not reserved.",
    ),
    Level(
        "hami",
        "HAMi-core, loaded into the process, refuses memory beyond the slice and slows compute.",
        "A program that is linked statically, or a user who unloads it, is not held.",
    ),
    Level(
        "framework",
        "PyTorch, JAX and CuPy refuse to allocate beyond the slice.",
        "Other programs, CUDA's own memory and compute are not limited; a user can undo it.",
    ),
    Level(
        "watch",
        "What each process uses is measured and shown.",
        "Nothing keeps a process from using more than its slice.",
    ),
    Level(
        "simulated",
        "The device is not real: its slices are counted as those of a real one.",
        "Nothing is enforced, since there is no GPU.",
    ),
)
"""From the strongest to the weakest."""

APPLIED = frozenset({"mig", "framework", "watch", "simulated"})
"""The levels that this release puts to use."""


def level(name: str) -> Level:
    """KeyError for a name that is no level."""
    for candidate in LEVELS:
        if candidate.name == name:
            return candidate
    raise KeyError(name)


def node_level(source: DeviceSource) -> str:
    """The level at which all of a source's devices are held (blocks)."""
    return level_of(source.devices())


def level_of(devices: list[Device]) -> str:
    """The weakest of the levels of ``devices``; ``watch`` where there is nothing to limit."""
    kinds = {device.kind for device in devices}
    if "gpu" in kinds:
        return "framework"
    if "mig" in kinds:
        return "mig"
    return "simulated" if kinds else "watch"


@dataclass(frozen=True)
class Finding:
    """Whether a node has a level: ``why`` is a sentence, ``remedy`` what to do to get it or ""."""

    level: str
    available: bool
    why: str
    remedy: str = ""


@dataclass(frozen=True)
class Probes:
    """What was found out about a node."""

    devices: list[Device] = field(default_factory=list)
    note: str = ""
    driver: str | None = None
    mig_modes: dict[str, bool | None] = field(default_factory=dict)
    memory_limits: bool = False
    cgroup_v2: bool = False
    root: bool = False
    mps_control: str | None = None
    libvgpu: str | None = None

    def of_pool(self, devices: Iterable[Mapping[str, Any]]) -> Probes:
        """The same node with the devices of a pool, from its JSON: those of a session, say."""
        return replace(self, devices=[Device.from_dict(device) for device in devices])


def probe(source: DeviceSource) -> Probes:
    """Look at this node (blocks)."""
    nvml = NvmlSource()
    try:
        driver, modes = nvml.driver_version(), nvml.mig_modes()
    finally:
        nvml.close()
    return Probes(
        devices=source.devices(),
        note=source.note,
        driver=driver,
        mig_modes=modes,
        memory_limits=hasattr(pynvml, "nvmlDeviceSetMemoryLimits_v1"),
        cgroup_v2=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        root=os.geteuid() == 0,
        mps_control=shutil.which("nvidia-cuda-mps-control"),
        libvgpu=_libvgpu(),
    )


def doctor(seen: Probes) -> list[Finding]:
    """Each level in the order of `LEVELS`: is it there on this node, why, and what to do."""
    simulated = [device for device in seen.devices if device.kind == "simulated"]
    real = [device for device in seen.devices if device.kind != "simulated"]
    return [
        _mig(seen, real),
        _cgroup(seen),
        _mps(seen),
        _hami(seen),
        _framework(seen, real),
        _watch(seen, real),
        Finding(
            "simulated",
            bool(simulated),
            f"{_count(simulated, 'simulated device')} in the pool."
            if simulated
            else "No device in the pool is simulated.",
            ""
            if simulated or real
            else 'Set c.GpuSlice.simulate = "a100-80gb:2" to try everything without a GPU.',
        ),
    ]


def reasons(findings: Iterable[Finding]) -> dict[str, str]:
    """What several levels lack alike, with what to do about it: to be said once."""
    findings = list(findings)
    count = Counter(finding.why for finding in findings if not finding.available)
    common = {why: "" for why, times in count.items() if times > 1}
    for finding in findings:
        if finding.why in common:
            common[finding.why] = common[finding.why] or finding.remedy
    return common


def _mig(seen: Probes, real: list[Device]) -> Finding:
    instances = [device for device in real if device.kind == "mig"]
    if instances:
        return Finding("mig", True, f"{_count(instances, 'MIG instance')} in the pool.")
    if seen.driver is None:
        return _no_driver("mig", seen)
    divided = [uuid for uuid, mode in seen.mig_modes.items() if mode]
    able = [uuid for uuid, mode in seen.mig_modes.items() if mode is False]
    if divided:
        return Finding(
            "mig",
            False,
            f"{divided[0]} is in MIG mode, but the pool has no MIG instance.",
            "Create instances as root, such as: nvidia-smi mig -cgi 3g.40gb,3g.40gb -C "
            "(nvidia-smi mig -lgip lists the profiles).",
        )
    if able:
        return Finding(
            "mig",
            False,
            f"{able[0]} can do MIG, but the mode is off.",
            f"When nobody uses the GPU, as root: nvidia-smi -i {able[0]} -mig 1, then create "
            "instances with nvidia-smi mig -cgi … -C.",
        )
    return Finding("mig", False, "No GPU of this node can do MIG.")


def _cgroup(seen: Probes) -> Finding:
    if seen.driver is None:
        return _no_driver("cgroup", seen)
    missing, steps = [], []
    if _branch(seen.driver) < CGROUP_DRIVER or not seen.memory_limits:
        missing.append(f"the driver is {seen.driver}")
        steps.append(f"install driver {CGROUP_DRIVER} or newer, and a recent nvidia-ml-py")
    if not seen.cgroup_v2:
        missing.append("cgroup v2 is not mounted at /sys/fs/cgroup")
        steps.append("boot with systemd.unified_cgroup_hierarchy=1")
    if not seen.root:
        missing.append("this process is not root")
        steps.append("run the node's broker as root")
    return _verdict("cgroup", missing, steps, f"driver {seen.driver}, cgroup v2 and root")


def _mps(seen: Probes) -> Finding:
    return _tool(
        "mps",
        seen,
        seen.mps_control,
        "there is no nvidia-cuda-mps-control on the path",
        "install the driver's compute utilities (nvidia-compute-utils)",
    )


def _hami(seen: Probes) -> Finding:
    return _tool(
        "hami",
        seen,
        seen.libvgpu,
        "there is no libvgpu.so in its usual places",
        "install HAMi-core's libvgpu.so",
    )


def _tool(level: str, seen: Probes, found: str | None, missing: str, step: str) -> Finding:
    """A level that needs the driver and one file beside it."""
    if seen.driver is None:
        return _no_driver(level, seen)
    if found is None:
        return _verdict(level, [missing], [step], "")
    return _verdict(level, [], [], found)


def _framework(seen: Probes, real: list[Device]) -> Finding:
    if not real:
        return _nothing("framework", seen)
    return Finding(
        "framework", True, "Allocators are limited through the environment and in the kernel."
    )


def _watch(seen: Probes, real: list[Device]) -> Finding:
    if not real:
        return _nothing("watch", seen)
    return Finding("watch", True, f"The driver ({seen.driver or 'of unknown version'}) is asked.")


def _verdict(name: str, missing: list[str], steps: list[str], there: str) -> Finding:
    if missing:
        return Finding(name, False, _sentence("; ".join(missing)), _sentence("; ".join(steps)))
    if name not in APPLIED:
        return Finding(
            name, False, f"The node has what it needs ({there}), but this release does not use it."
        )
    return Finding(name, True, f"The node has what it needs ({there}).")


def _no_driver(name: str, seen: Probes) -> Finding:
    return Finding(
        name,
        False,
        seen.note or "No NVIDIA driver answers on this node.",
        "Install the NVIDIA driver (on a node with an NVIDIA GPU).",
    )


def _nothing(name: str, seen: Probes) -> Finding:
    return Finding(name, False, seen.note or "There is no real GPU in the pool.")


def _count(things: list[Device], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _branch(driver: str) -> int:
    """``580.82.07`` is of branch 580; 0 when it can't be told."""
    found = re.match(r"\d+", driver)
    return int(found[0]) if found else 0


def _libvgpu() -> str | None:
    """Where HAMi-core lies: preloaded already, or in a place where its installers put it."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    try:
        preloaded += " " + Path("/etc/ld.so.preload").read_text()
    except OSError:
        pass
    named = [word for word in re.split(r"[\s:]+", preloaded) if word.endswith("libvgpu.so")]
    usual = ["/usr/local/vgpu/libvgpu.so", "/usr/local/lib/libvgpu.so", "/usr/lib/libvgpu.so"]
    return next((path for path in [*named, *usual] if Path(path).is_file()), None)
