"""Which devices the cluster gave a pod, as far as its stack writes that down. Pure.

Sources: resource.k8s.io/v1 (``status.allocation`` of claims, ResourceSlices);
github.com/Project-HAMi/HAMi pkg/device/devices.go (``hami.io/vgpu-devices-allocated``);
github.com/volcano-sh/volcano pkg/scheduler/api/devices/nvidia/vgpu (``volcano.sh/vgpu-ids-new``);
github.com/kai-scheduler/KAI-Scheduler pkg/resourcereservation (a shared GPU is held by a
reservation pod, whose annotation names its UUID) and pkg/common/constants; koordinator.sh, "GPU
Share" (``scheduling.koordinator.sh/device-allocated``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .quantity import mib

Manifest = Mapping[str, Any]
Key = tuple[str, str, str]
"""A device of Dynamic Resource Allocation: driver, pool, name."""

HAMI = "hami.io/vgpu-devices-allocated"
VOLCANO = "volcano.sh/vgpu-ids-new"
KOORDINATOR = "scheduling.koordinator.sh/device-allocated"
RESERVED = "run.ai/reserve_for_gpu_index"
"""On KAI's reservation pods: the UUID of the GPU that they hold for those that share it."""
GROUP = "runai-gpu-group"
"""KAI's label of pods that share one GPU; of several GPUs each has a label ``…/<group>``."""
_NV_DEVICES = re.compile(r"nvidia\.com/container\.(?P<container>.+)\.gpus\.devices")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/.-]+")


@dataclass(frozen=True)
class Part:
    """What a pod has of one device; ``None`` is unknown.

    ``device`` is a UUID where the stack tells it, otherwise a name that the cluster has once.
    """

    device: str
    memory_mib: int | None = None
    compute_percent: int | None = None
    compute_cap_percent: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "memory_mib": self.memory_mib,
            "compute_percent": self.compute_percent,
            "compute_cap_percent": self.compute_cap_percent,
        }


@dataclass(frozen=True)
class Claimed:
    """A device of a ResourceSlice as claims see it."""

    uuid: str
    memory_mib: int | None
    shared: bool


def parts(
    pod: Manifest,
    claims: Iterable[Manifest],
    devices: Mapping[Key, Claimed],
    reserved: Mapping[str, str],
    memory_mib: int | None,
) -> tuple[Part, ...]:
    """The parts of devices that a pod was given; empty where nobody says.

    :param claims: the pod's own claims.
    :param devices: what ResourceSlices tell of devices, as far as they may be read.
    :param reserved: KAI's groups, and the UUID of the GPU that each shares.
    :param memory_mib: of one GPU of the pod's node, if all are alike.
    """
    found = [part for claim in claims for part in of_claim(claim, devices)]
    notes = notes_of(pod)
    if found:
        return tuple(found)
    if HAMI in notes:
        return vgpus(notes[HAMI])
    if VOLCANO in notes:
        return vgpus(notes[VOLCANO])
    if KOORDINATOR in notes:
        return _koordinator(pod, notes[KOORDINATOR])
    return _nv_fractions(notes) or _kai(pod, reserved, memory_mib)


def of_claim(claim: Manifest, devices: Mapping[Key, Claimed]) -> list[Part]:
    """What a claim was allocated; nothing while it waits."""
    found = []
    for result in results(claim):
        key = key_of(result, "device")
        known = devices.get(key)
        name = known.uuid if known else "/".join(key)
        capacity = result.get("consumedCapacity") or {}
        if "memory" in capacity:
            # A share of the memory: of compute nothing is reserved, and nothing held back.
            found.append(Part(name, mib(capacity["memory"]), 0, 100))
        else:
            found.append(Part(name, known.memory_mib if known else None, 100, 100))
    return found


def results(claim: Manifest) -> list[Manifest]:
    """The devices of a claim's allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def key_of(item: Manifest, name: str) -> Key:
    return str(item.get("driver", "")), str(item.get("pool", "")), str(item.get(name, ""))


def notes_of(item: Manifest) -> Mapping[str, str]:
    return (item.get("metadata") or {}).get("annotations") or {}


def name_of(item: Manifest) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def labels_of(item: Manifest) -> Mapping[str, str]:
    return (item.get("metadata") or {}).get("labels") or {}


def vgpus(text: str) -> tuple[Part, ...]:
    """HAMi's and Volcano's ``UUID,type,MiB,cores:`` for each device, ``;`` after each container."""
    found = []
    for entry in re.split("[:;]", text):
        fields = entry.split(",")
        if len(fields) < 4 or not (fields[2].isdecimal() and fields[3].isdecimal()):
            continue
        cores = min(int(fields[3]), 100)
        # A MIG instance that HAMi made stands in brackets behind its GPU.
        uuid = fields[0].partition("[")[0]
        found.append(Part(uuid, int(fields[2]), cores, cores or 100))
    return tuple(found)


def _koordinator(pod: Manifest, text: str) -> tuple[Part, ...]:
    node = (pod.get("spec") or {}).get("nodeName", "")
    try:
        given = json.loads(text)["gpu"]
        return tuple(
            Part(
                # The GPU's minor number on its node: its UUID is told elsewhere.
                f"{node}/nvidia{int(each['minor'])}",
                mib(each["resources"].get("koordinator.sh/gpu-memory")),
                *_percents(each["resources"].get("koordinator.sh/gpu-core")),
            )
            for each in given
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _percents(cores: Any) -> tuple[int | None, int | None]:
    if not str(cores or "").isdecimal():
        return 0, 100
    return min(int(cores), 100), min(int(cores), 100)


def _nv_fractions(notes: Mapping[str, str]) -> tuple[Part, ...]:
    """NvFractions write the devices back beside what was asked for."""
    for key, text in notes.items():
        match = _NV_DEVICES.fullmatch(key)
        uuids = _UUID.findall(text) if match else []
        if match and uuids:
            limit = notes.get(f"nvidia.com/container.{match['container']}.gpu-memory.limit")
            return tuple(Part(uuid, mib(limit), 0, 100) for uuid in uuids)
    return ()


def _kai(pod: Manifest, reserved: Mapping[str, str], memory_mib: int | None) -> tuple[Part, ...]:
    share = fraction(notes_of(pod), memory_mib)
    return tuple(Part(reserved[group], share, 0, 100) for group in groups(pod) if group in reserved)


def groups(pod: Manifest) -> list[str]:
    """The groups of shared GPUs that a pod of KAI is in."""
    found = []
    for key, value in labels_of(pod).items():
        if key == GROUP:
            found.append(value)
        elif key.startswith(f"{GROUP}/"):
            found.append(value or key.partition("/")[2])
    return found


def fraction(notes: Mapping[str, str], memory_mib: int | None) -> int | None:
    """The memory that KAI's ``gpu-memory`` or ``gpu-fraction`` means, in MiB of each GPU."""
    if notes.get("gpu-memory", "").isdecimal():
        return int(notes["gpu-memory"])
    match = re.fullmatch(r"(0?\.\d{1,4}|1(?:\.0*)?|0)", notes.get("gpu-fraction", ""))
    if match is None or memory_mib is None:
        return None
    digits = f"{match[1].partition('.')[2]:0<4}"
    whole = match[1].startswith("1")
    return memory_mib if whole else memory_mib * int(digits) // 10000
