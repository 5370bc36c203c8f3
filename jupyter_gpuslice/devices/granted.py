"""The devices of a session that got them by a grant of its node's broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .device import Device, DeviceUse
from .nvml import FAR, NvmlSource
from .simulated import SimulatedMeter


class GrantedSource:
    """The devices that a grant (``JUPYTER_GPUSLICE_GRANT``, see docs/architecture.md) names.

    Real ones are measured by NVML, which may be missing here: then their use and health are
    unknown. Simulated ones are measured by their holders' processes. A grant that can't be used
    raises ValueError.
    """

    note = ""

    def __init__(self, grant: Mapping[str, Any]) -> None:
        try:
            self._devices = [Device.from_dict(device) for device in grant["devices"]]
            self._near = {
                frozenset((str(a), str(b))): int(level) for a, b, level in grant.get("nearness", ())
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"The grant of this session can't be read: {error!r}.") from error
        simulated = [device for device in self._devices if device.kind == "simulated"]
        self._real = {device.uuid for device in self._devices if device.kind != "simulated"}
        self._meter = SimulatedMeter(simulated)
        self._nvml = NvmlSource(allow=self._mine) if self._real else None
        self.kind = "nvml" if self._real else "simulated" if simulated else "none"

    def _mine(self, devices: list[Device]) -> list[Device]:
        return [device for device in devices if device.uuid in self._real]

    def devices(self) -> list[Device]:
        return list(self._devices)

    def nearness(self, a: str, b: str) -> int:
        """As the grant says; what it does not say is far."""
        return 0 if a == b else self._near.get(frozenset((a, b)), FAR)

    def sample(self, holders: Mapping[str, Sequence[int]]) -> list[DeviceUse]:
        found = {use.uuid: use for use in self._meter.sample(holders)}
        if self._nvml is not None:
            found |= {use.uuid: use for use in self._nvml.sample(holders)}
        return [
            found.get(device.uuid, DeviceUse(device.uuid, None, None, "unknown"))
            for device in self._devices
        ]

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()
