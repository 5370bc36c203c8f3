"""SystemdSpawner with slices: units that may open the leased devices and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from systemdspawner import SystemdSpawner

from ..devices.device import Device
from ..devices.nodes import SHARED_NODES
from ..devices.process import Process
from .leased import LeasedSpawner, with_commands
from .spawner import GpuSpawnError


class _UnitSpawner(SystemdSpawner):  # type: ignore[misc]
    """SystemdSpawner with devices, a unit for each server, and an early end of a failed start."""

    unit_name: str
    unit_extra_properties: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._devices: list[Device] = []
        self._starting = False
        if self.name:
            # SystemdSpawner has one unit per user: a second server would end the first one.
            self.unit_name = f"{self.unit_name}-{escaped(self.name)}-server"

    def _expand_user_vars(self, value: str | list[str]) -> Any:
        # SystemdSpawner 1.0 documents lists in unit_extra_properties, and cannot expand them.
        if isinstance(value, list):
            return [self._expand_user_vars(each) for each in value]
        return super()._expand_user_vars(value)

    async def start(self) -> Any:
        # SystemdSpawner writes into this dictionary, so each start gets a copy of what was
        # configured: nothing of an earlier lease is in it.
        self._check_devices()
        configured = self.unit_extra_properties
        self.unit_extra_properties = with_devices(configured, self._devices)
        self._starting = True
        try:
            return await super().start()
        finally:
            self._starting = False
            self.unit_extra_properties = configured

    def _check_devices(self) -> None:
        if self._devices and self.isolate_devices:
            raise GpuSpawnError(
                500,
                "configuration",
                "A server with a /dev of its own has no GPUs in it.",
                "An administrator sets c.SystemdSpawner.isolate_devices = False: a unit may open "
                "the leased devices only, without it too.",
            )
        for device in self._devices:
            if not device.nodes:
                raise GpuSpawnError(
                    500,
                    "device_nodes",
                    f"It is not known through which device nodes {device.name} is used, so the "
                    "server could not open it.",
                    "An administrator sees with `jupyter gpuslice doctor` what the driver tells.",
                )

    async def poll(self) -> int | None:
        status: int | None = await super().poll()
        if status is not None and self._starting:
            # systemd-run returns when the unit has started or failed. SystemdSpawner would look
            # once a second until start_timeout, and then blame the time.
            raise self.not_started()
        return status

    def not_started(self) -> GpuSpawnError:
        return GpuSpawnError(
            500,
            "exited",
            "The server ended at once, or its unit did not start.",
            f"An administrator finds why with `journalctl -u {self.unit_name}`, or in the hub's "
            "log.",
        )


class GpuSliceSystemdSpawner(LeasedSpawner, _UnitSpawner):
    """Servers are transient systemd units of the machine on which the GPU service runs.

    ``DevicePolicy=closed`` is set for every unit, also for those without a GPU: NVIDIA's device
    nodes may be opened by every user of a machine, and only the control group keeps a user to what
    was leased.
    """

    def get_env(self) -> dict[str, str]:
        return with_commands(super().get_env(), self.cmd)

    async def start(self) -> Any:
        devices = [Device.from_dict(each) for each in self._grant.get("devices", ())]
        self._devices = [device for device in devices if device.kind != "simulated"]
        return await super().start()

    async def server_process(self) -> Process | None:
        """The main process of the unit."""
        asking = await asyncio.create_subprocess_exec(
            *("systemctl", "show", "--property=MainPID", "--value", f"{self.unit_name}.service"),
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await asking.communicate()
        try:
            return Process.of(int(told or 0))
        except (ProcessLookupError, ValueError) as error:
            raise self.not_started() from error


def with_devices(properties: Mapping[str, Any], devices: Sequence[Device]) -> dict[str, Any]:
    """A unit's properties with the right to open these devices, and no others.

    What was configured stays, such as a ``DeviceAllow`` for ``/dev/fuse``; a ``DevicePolicy``
    does not, since nothing but ``closed`` or ``strict`` keeps users apart.

    Source: systemd.resource-control(5), ``DeviceAllow=`` and ``DevicePolicy=``.
    """
    made = {
        name: list(value) if isinstance(value, list) else value
        for name, value in properties.items()
    }
    nodes = [node for device in devices for node in device.nodes]
    shared = SHARED_NODES if nodes else ()
    before = made.get("DeviceAllow", [])
    allowed = [
        *(before if isinstance(before, list) else [before]),
        *(f"{node} rw" for node in dict.fromkeys([*nodes, *shared])),
    ]
    if made.get("DevicePolicy") != "strict":
        made["DevicePolicy"] = "closed"
    if allowed:
        made["DeviceAllow"] = allowed
    return made


def escaped(name: str) -> str:
    """A server's name as part of a unit's, which is also a folder's: letters, digits and ``_``.

    No two names become the same. systemd-escape(1) would write backslashes, which systemd-run
    takes for the beginning of something else where the name stands in a property.
    """
    return "".join(
        letter if letter.isascii() and letter.isalnum() else f"_{letter.encode().hex()}"
        for letter in name
    )
