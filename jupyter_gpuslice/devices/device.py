"""What a pool is made of: devices, and how they are used at one instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol

DeviceKind = Literal["gpu", "mig", "simulated"]
Health = Literal["ok", "lost", "unknown"]


@dataclass(frozen=True)
class Device:
    """A physical GPU, one MIG instance or a simulated device.

    ``memory_mib`` is what the device has in all (MiB); ``reserve_mib`` of it is never granted
    (driver and context overhead). ``parent`` is the UUID of a MIG instance's GPU, ``profile`` its
    MIG profile such as ``1g.10gb``. ``index``, ``numa`` and ``pci`` are for people to recognise a
    device; nothing addresses one by them. ``nodes`` are the device nodes that a process opens to
    use this device and no other one, such as ``/dev/nvidia0``; none when they are not known.
    """

    uuid: str
    name: str
    kind: DeviceKind
    memory_mib: int
    reserve_mib: int = 0
    profile: str | None = None
    parent: str | None = None
    index: int | None = None
    numa: int | None = None
    pci: str | None = None
    nodes: tuple[str, ...] = ()

    @property
    def grantable_mib(self) -> int:
        """Memory that leases may share out (MiB)."""
        return max(0, self.memory_mib - self.reserve_mib)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Device:
        """Raises ``KeyError`` or ``TypeError`` when a required field is missing or unusable."""
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        # JSON has no tuples.
        return cls(**{**values, "nodes": tuple(values.get("nodes", ()))})


@dataclass(frozen=True)
class ProcessUse:
    """What one process uses of one device; ``None`` is unknown."""

    pid: int
    used_mib: int | None
    utilization_percent: int | None = None


@dataclass(frozen=True)
class DeviceUse:
    """One measurement of a device; ``None`` is unknown, never zero."""

    uuid: str
    used_mib: int | None
    utilization_percent: int | None
    health: Health = "ok"
    processes: tuple[ProcessUse, ...] = field(default=())


class DeviceSource(Protocol):
    """Where devices come from. Every method may block: call none on an event loop."""

    kind: str
    """``nvml``, ``simulated`` or ``none``."""
    note: str
    """One sentence for people: why there are no devices, or ``""``."""

    def devices(self) -> list[Device]:
        """The devices that can be used now, in a stable order."""

    def nearness(self, a: str, b: str) -> int:
        """How far two devices are apart: 0 (NVLink) … 5 (across sockets, or unknown)."""

    def sample(self, holders: Mapping[str, Sequence[int]]) -> list[DeviceUse]:
        """Measure every device once.

        ``holders`` maps a device's UUID to the pids of the processes that hold slices of it:
        a simulated device has nothing else to be measured by.
        """

    def close(self) -> None:
        """Give back what the source holds; it is not used again."""
