"""What is there: real devices (NVML, MIG), simulated ones, and how they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .device import Device, DeviceSource, DeviceUse, ProcessUse
from .granted import GrantedSource
from .models import matches
from .nvml import FAR, NvmlSource
from .process import Process
from .simulated import SimulatedSource
from .visible import visible

__all__ = [
    "FAR",
    "Device",
    "DeviceSource",
    "DeviceUse",
    "GrantedSource",
    "NoSource",
    "NvmlSource",
    "Process",
    "ProcessUse",
    "SimulatedSource",
    "matches",
    "open_devices",
    "visible",
]


class NoSource:
    """No devices at all."""

    kind = "none"

    def __init__(self, note: str) -> None:
        self.note = note

    def devices(self) -> list[Device]:
        return []

    def nearness(self, a: str, b: str) -> int:
        return 0 if a == b else FAR

    def sample(self, holders: Mapping[str, Sequence[int]]) -> list[DeviceUse]:
        return []

    def close(self) -> None:
        pass


def open_devices(
    simulate: str = "", reserve_mib: int | None = None, environ: Mapping[str, str] | None = None
) -> DeviceSource:
    """The devices that this process may use: NVML's, else simulated ones if asked for, else none.

    ``simulate`` is such as ``a100-80gb:2,h100-80gb``; a bad text raises ValueError, also where
    there are real devices. ``reserve_mib`` of each device is never granted (default: what the
    driver keeps, and some for CUDA contexts). ``environ`` (this process's) may hide devices, see
    `visible`. Where there are GPUs but no driver answers, the source is none and its note says why.
    """
    simulated = SimulatedSource(simulate, reserve_mib) if simulate.strip() else None
    own = os.environ if environ is None else environ
    source = NvmlSource(reserve_mib, allow=lambda devices: visible(devices, own))
    if source.devices():
        return source
    note = source.note
    source.close()
    return simulated or NoSource(note)
