"""DockerSpawner with slices: containers that have the leased devices and no others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from dockerspawner import DockerSpawner
from traitlets import default

from ..devices.device import Device
from ..devices.process import Process
from .leased import LeasedSpawner
from .spawner import GpuSpawnError

MPS_VARIABLES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


class GpuSliceDockerSpawner(LeasedSpawner, DockerSpawner):  # type: ignore[misc]
    """Servers are containers of the machine on which the GPU service runs.

    The service watches a container by its first process, so it has to see the machine's processes:
    run the hub on the machine itself, or in a container with the host's pid namespace.
    """

    @default("remove")
    def _default_remove(self) -> bool:
        return True

    async def start(self) -> Any:
        if not self.remove:
            # It would be started again with the devices and the grant of an earlier lease.
            raise GpuSpawnError(
                500,
                "configuration",
                "A container that is kept cannot get another slice.",
                "An administrator sets c.DockerSpawner.remove = True.",
            )
        return await super().start()

    async def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "create_container":
            devices = [Device.from_dict(each) for each in self._grant.get("devices", ())]
            kwargs = with_devices(kwargs, devices)
        return await super().docker(method, *args, **kwargs)

    async def server_process(self) -> Process | None:
        """The first process of the container, as the machine sees it."""
        found = await self.docker("inspect_container", self.container_id)
        pid = int(found["State"].get("Pid") or 0)
        try:
            return Process.of(pid) if pid else None
        except ProcessLookupError as error:
            raise GpuSpawnError(
                500,
                "exited",
                "The server's process cannot be seen from the hub: the container has ended at "
                "once, or the hub does not share the machine's process ids.",
                "An administrator finds the container's log with `docker logs`.",
            ) from error


def with_devices(create: Mapping[str, Any], devices: Sequence[Device]) -> dict[str, Any]:
    """The arguments of ``create_container`` with a request for these devices, by UUID.

    Where the slice is enforced by MPS (the environment names its directories), these are mounted
    and the container shares the host's IPC, without which no MPS client can connect.
    """
    made = copy.deepcopy(dict(create))
    host: dict[str, Any] = made.setdefault("host_config", {})
    real = [device.uuid for device in devices if device.kind != "simulated"]
    if real:
        host["DeviceRequests"] = [
            *(host.get("DeviceRequests") or ()),
            {"Driver": "", "Count": 0, "DeviceIDs": real, "Capabilities": [["gpu"]], "Options": {}},
        ]
    environment = made.get("environment") or {}
    folders = [environment[name] for name in MPS_VARIABLES if environment.get(name)]
    if folders:
        binds = list(host.get("Binds") or ())
        host["Binds"] = [*binds, *(f"{folder}:{folder}:rw" for folder in folders)]
        host["IpcMode"] = "host"
    return made
