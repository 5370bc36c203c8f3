"""Simulated devices, for machines without a GPU. What they show of use is measured all the same."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence

from .device import Device, DeviceUse
from .measure import ProcessMeter
from .models import MODELS
from .nvml import CONTEXT_MIB

_NAMESPACE = uuid.UUID("6f0e3a52-54f6-4dd5-9a3e-6c0f6f1b8c11")
_EXAMPLES = '"a100-80gb", "a100-80gb:2", "a100-80gb:2,h100-80gb"'
_MOST = 64


class SimulatedSource:
    """Devices made up from a text such as ``a100-80gb:2,h100-80gb``; ValueError if it makes none.

    Each is a known model (`models.MODELS`, ``h100`` for its first size) or any name that ends in
    its memory (``mygpu-12gb``), and how many of them. A device has the same UUID in every process
    and after every restart, made from its model, its number among those of that model, and
    ``seed``. The devices' use is what their holders' processes really use, see `ProcessMeter`.
    """

    kind = "simulated"
    note = ""

    def __init__(self, text: str, reserve_mib: int | None = None, seed: str = "") -> None:
        reserve = CONTEXT_MIB if reserve_mib is None else reserve_mib
        self._devices = _parse(text, reserve, seed)
        self._meter = SimulatedMeter(self._devices)

    def devices(self) -> list[Device]:
        return list(self._devices)

    def nearness(self, a: str, b: str) -> int:
        """Simulated devices hang on one PCIe switch."""
        return 0 if a == b else 2

    def sample(self, holders: Mapping[str, Sequence[int]]) -> list[DeviceUse]:
        return self._meter.sample(holders)

    def close(self) -> None:
        pass


class SimulatedMeter:
    """Turns the use of holders' processes into the use of devices."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = list(devices)
        self._meter = ProcessMeter()

    def sample(self, holders: Mapping[str, Sequence[int]]) -> list[DeviceUse]:
        """A device without holders is idle: nothing else can use a simulated one."""
        known = {device.uuid for device in self._devices}
        uses = self._meter.measure({d: pids for d, pids in holders.items() if d in known})
        result = []
        for device in self._devices:
            processes = uses.get(device.uuid, [])
            used = sum(process.used_mib or 0 for process in processes)
            busy = [process.utilization_percent for process in processes]
            result.append(
                DeviceUse(
                    device.uuid,
                    min(used, device.memory_mib),
                    None
                    if busy and all(percent is None for percent in busy)
                    else min(100, sum(percent or 0 for percent in busy)),
                    "ok",
                    tuple(processes),
                )
            )
        return result


def _parse(text: str, reserve_mib: int, seed: str) -> list[Device]:
    devices: list[Device] = []
    numbers: Counter[str] = Counter()
    for part in text.split(","):
        model, colon, count = (piece.strip() for piece in part.lower().partition(":"))
        if colon and not re.fullmatch("[0-9]{1,3}", count):
            raise _bad(text, f"{count!r} is no number of devices")
        many = int(count) if colon else 1
        if not 1 <= many <= _MOST:
            raise _bad(text, f"there can be 1 to {_MOST} devices")
        name, memory_mib = _model(text, model)
        for _ in range(many):
            number = numbers[name]
            numbers[name] += 1
            devices.append(
                Device(
                    uuid=f"GPU-sim-{uuid.uuid5(_NAMESPACE, f'{seed}/{name}/{number}')}",
                    name=f"Simulated {name}",
                    kind="simulated",
                    memory_mib=memory_mib,
                    reserve_mib=min(reserve_mib, memory_mib),
                    index=len(devices),
                )
            )
    if len(devices) > _MOST:
        raise _bad(text, f"there can be 1 to {_MOST} devices")
    return devices


def _model(text: str, model: str) -> tuple[str, int]:
    if not model:
        raise _bad(text, "a model's name is missing")
    if model in MODELS:
        return MODELS[model]
    sizes = [known for known in MODELS if known.rpartition("-")[0] == model]
    if sizes:
        return MODELS[sizes[0]]
    own = re.fullmatch(r"([a-z][a-z0-9-]*)-([1-9][0-9]{0,3})gb", model)
    if own is None:
        known_models = ", ".join(MODELS)
        raise _bad(
            text, f"{model!r} is neither a known model ({known_models}) nor a name with its memory"
        )
    return model.upper(), int(own[2]) * 1024


def _bad(text: str, why: str) -> ValueError:
    return ValueError(f"GpuSlice.simulate cannot be {text!r}: {why}; write {_EXAMPLES}, say.")
