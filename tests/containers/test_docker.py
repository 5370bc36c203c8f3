"""Servers in containers, end to end: a real hub, DockerSpawner, and podman's Docker API."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpuslice.devices.device import Device
from jupyter_gpuslice.hub.docker import with_devices
from tests.fakes.nvml import FakeNvml, build
from tests.hub.hubs import Hub, eventually, free_ports

from .podman import IMAGE, Podman, python_mounts

GPU = Device("GPU-1", "A100", "gpu", 81920)


def test_a_container_gets_the_leased_devices_by_uuid() -> None:
    given = {"environment": {"A": "1"}, "host_config": {"Binds": ["/a:/a"]}}
    made = with_devices(given, [GPU, Device("GPU-sim-1", "Simulated", "simulated", 1024)])
    (request,) = made["host_config"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["GPU-1"] and request["Capabilities"] == [["gpu"]]
    assert given == {"environment": {"A": "1"}, "host_config": {"Binds": ["/a:/a"]}}
    assert with_devices(given, []) == given


def test_an_mps_slice_brings_its_sockets() -> None:
    given = {"environment": {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps/1"}}
    made = with_devices(given, [GPU])["host_config"]
    assert made["Binds"] == ["/run/mps/1:/run/mps/1:rw"]
    assert made["IpcMode"] == "host"


CONFIG = """
os.environ["DOCKER_HOST"] = "unix://{socket}"
c.JupyterHub.spawner_class = "gpuslice-docker"
c.JupyterHub.hub_bind_url = "http://{bridge}:{port}"
c.DockerSpawner.image = {image!r}
c.DockerSpawner.network_name = "podman"
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.pull_policy = "never"
c.DockerSpawner.notebook_dir = "/tmp"
c.DockerSpawner.prefix = {prefix!r}
c.DockerSpawner.read_only_volumes = {read_only!r}
c.DockerSpawner.volumes = {volumes!r}
c.Spawner.http_timeout = 60
c.Spawner.environment.update({environment!r})


def start_on_the_machine(self):
    self.environment.update({service!r})
    return start_watched(self)


_ServiceSpawner.start = start_on_the_machine
"""

LOOK = """
import json, os, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps({
    "uuids": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
    "cuda": os.environ["CUDA_VISIBLE_DEVICES"],
    "grant": json.loads(os.environ["JUPYTER_GPUSLICE_GRANT"]),
}))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    folder = tmp_path_factory.mktemp("nvml")
    made = FakeNvml(folder / "state", build(folder))
    made.add("NVIDIA A100-SXM4-80GB", 81920)
    made.add("NVIDIA A100-SXM4-80GB", 81920)
    return made


@pytest.fixture(scope="module")
def hub(podman: Podman, machine: FakeNvml, make_hub: Callable[..., Hub]) -> Iterator[Hub]:
    (port,) = free_ports(1)
    folder = str(machine.path.parent)
    bridge = podman.bridge()
    extra = CONFIG.format(
        socket=podman.socket,
        bridge=bridge,
        port=port,
        image=f"localhost/{IMAGE}:latest",
        prefix=f"gpuslice-{port}",
        read_only=python_mounts(),
        volumes={folder: folder},
        environment={**machine.env, "GPUSLICE_FAKE_RUNTIME": "1"},
        service=machine.env,
    )
    made = make_hub(simulate="", extra=extra)
    made.hub_api = f"http://{bridge}:{port}/hub/api"
    yield made
    for user in ("ana", "ben", "eve"):
        if made.model(user):
            made.end(user)


def look(podman: Podman, hub: Hub, user: str) -> dict[str, Any]:
    names = podman.run("ps", "--format", "{{.Names}}").split()
    (name,) = [each for each in names if each.endswith(f"-{user}")]
    found: dict[str, Any] = json.loads(podman.run("exec", name, sys.executable, "-c", LOOK))
    return found


def test_odh_manifests_254_two_users_share_a_device_and_each_sees_its_slice(
    podman: Podman, hub: Hub
) -> None:
    """Also jupyter/help#235, determined#1721, netapp-dataops#19."""
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    hub.run("ben", {"profile": "slice", "request": "0.5"})
    ana, ben = hub.lease_of("ana"), hub.lease_of("ben")
    device = ana["slices"][0]["device"]
    assert ben["slices"][0]["device"] == device, "they share one"
    for user, lease in (("ana", ana), ("ben", ben)):
        seen = look(podman, hub, user)
        assert seen["uuids"] == [device], "and see no other one"
        assert seen["cuda"] == device
        assert seen["grant"]["lease"] == lease["id"]
        assert [s["memory_mib"] for s in seen["grant"]["slices"]] == [
            s["memory_mib"] for s in lease["slices"]
        ]
        assert lease["state"] == "active"
    hub.end("ben")
    eventually(lambda: len(hub.leases()) == 1, "the end of ben's lease")
    assert look(podman, hub, "ana")["uuids"] == [device]
    hub.end("ana")
    eventually(lambda: not hub.leases(), "an empty pool")


def test_z2jh_3000_a_container_without_a_gpu_sees_none(podman: Podman, hub: Hub) -> None:
    """Also gpu-operator#1502, HAMi-core#119."""
    hub.run("eve", {"profile": "cpu"})
    seen = look(podman, hub, "eve")
    assert seen["uuids"] == [] and seen["cuda"] == ""
    assert not hub.leases()
    # The next start of the same server is computed anew (kubespawner#546, dockerspawner#331).
    hub.end("eve")
    hub.run("eve", {"profile": "whole", "request": "2"})
    assert len(look(podman, hub, "eve")["uuids"]) == 2
    hub.end("eve")
    hub.run("eve", {"profile": "cpu"})
    assert look(podman, hub, "eve")["uuids"] == []
    hub.end("eve")


def test_a_container_that_is_killed_gives_its_slice_back(podman: Podman, hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.25"})
    hub.run("ben", {"profile": "slice", "request": "0.25"})
    names = podman.run("ps", "--format", "{{.Names}}").split()
    (name,) = [each for each in names if each.endswith("-ana")]
    podman.run("kill", "--signal", "KILL", name)
    eventually(lambda: [x["holder"]["user"] for x in hub.leases()] == ["ben"], "ana's slice", 20)
    hub.end("ben")


def test_a_kept_container_is_refused_in_words(tmp_path: Path) -> None:
    import asyncio

    from jupyter_gpuslice.hub.docker import GpuSliceDockerSpawner
    from jupyter_gpuslice.hub.spawner import GpuSpawnError

    spawner = GpuSliceDockerSpawner(remove=False)
    with pytest.raises(GpuSpawnError, match="A container that is kept"):
        asyncio.run(spawner.start())
