"""Which of a node's devices a process may use, by its own environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .device import Device


def visible(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """Those of ``devices`` that the environment leaves to this process, in their order.

    ``CUDA_VISIBLE_DEVICES`` holds UUIDs, unique beginnings of them or indices, and is read as CUDA
    reads it: what follows the first entry that names no device does not count, and an empty value
    is no device. An index is a place in PCI order (``CUDA_DEVICE_ORDER=PCI_BUS_ID``, as NVML and
    nvidia-smi count). A whole GPU that is in MIG mode stands for its first MIG device.

    ``NVIDIA_VISIBLE_DEVICES`` is the container runtime's. Its UUIDs restrict and ``none`` is no
    device. Its indices are the host's and say nothing inside a container; ``void``, empty and
    ``all`` don't restrict either, since ``void`` is what containers are given whose devices came by
    CDI: what was not put into a container NVML does not show in it.
    """
    left = list(devices)
    runtime = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if runtime == "none":
        return []
    uuids = [entry.strip() for entry in runtime.split(",")]
    if any(entry.startswith(("GPU-", "MIG-")) for entry in uuids):
        left = [device for device in left if device.uuid in uuids or device.parent in uuids]
    wish = environ.get("CUDA_VISIBLE_DEVICES")
    if wish is None:
        return left
    chosen: list[Device] = []
    for entry in wish.split(","):
        device = _named(entry.strip(), left)
        if device is None or device in chosen:
            break
        chosen.append(device)
    return [device for device in left if device in chosen]


def _named(entry: str, devices: Sequence[Device]) -> Device | None:
    if re.fullmatch(r"\d+", entry):
        for device in devices:
            if device.kind == "gpu" and device.index == int(entry):
                return device
        gpus = list(dict.fromkeys(device.parent or device.uuid for device in devices))
        gpu = gpus[int(entry)] if int(entry) < len(gpus) else None
        return next((device for device in devices if gpu and device.parent == gpu), None)
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [d for d in devices if d.uuid.startswith(entry)]
    if len(found) == 1:
        return found[0]
    parents = {d.parent for d in devices if d.parent is not None and d.parent.startswith(entry)}
    if not found and len(parents) == 1:
        return next(d for d in devices if d.parent in parents)
    return None
