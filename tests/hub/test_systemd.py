"""Servers as systemd units: a real hub and SystemdSpawner.

Where systemd did not boot the machine its two commands are doubles that start real processes; on a
machine of its own, ``GPUSLICE_TEST_SYSTEMD=1`` runs the same tests, as root, with the real ones.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpuslice.devices import nodes
from jupyter_gpuslice.devices.device import Device
from jupyter_gpuslice.hub.systemd import escaped, with_devices
from tests.fakes import systemd
from tests.fakes.nvml import FakeNvml, build
from tests.workstation.test_workstation import Broker

from .hubs import Hub, eventually

ONE = Device("GPU-1", "A100", "gpu", 81920, nodes=("/dev/nvidia0",))
OTHER = Device("GPU-2", "A100", "gpu", 81920, nodes=("/dev/nvidia1",))
SHARED = ["/dev/nvidiactl rw", "/dev/nvidia-uvm rw", "/dev/nvidia-uvm-tools rw"]


@pytest.mark.parametrize(
    ("configured", "devices", "made"),
    [
        ({}, [], {"DevicePolicy": "closed"}),
        ({}, [ONE], {"DevicePolicy": "closed", "DeviceAllow": ["/dev/nvidia0 rw", *SHARED]}),
        (
            {"DeviceAllow": "/dev/fuse rw", "Nice": "5"},
            [ONE, OTHER],
            {
                "DevicePolicy": "closed",
                "DeviceAllow": ["/dev/fuse rw", "/dev/nvidia0 rw", "/dev/nvidia1 rw", *SHARED],
                "Nice": "5",
            },
        ),
        ({"DevicePolicy": "auto"}, [], {"DevicePolicy": "closed"}),
        ({"DevicePolicy": "strict"}, [], {"DevicePolicy": "strict"}),
        ({}, [Device("GPU-sim-1", "Simulated", "simulated", 1024)], {"DevicePolicy": "closed"}),
    ],
)
def test_a_unit_may_open_what_it_leased(
    configured: dict[str, Any], devices: list[Device], made: dict[str, Any]
) -> None:
    before = repr(configured)
    assert with_devices(configured, devices) == made
    assert repr(configured) == before, "nothing stays from one start to the next"


def test_a_mig_device_is_opened_by_its_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "CAPABILITIES", tmp_path)
    assert nodes.mig_nodes(0, 7, 0) == (), "not known: not half of them"
    for folder, minor in (("gi7", 66), ("gi7/ci0", 67)):
        access = tmp_path / "gpu0" / "mig" / folder / "access"
        access.parent.mkdir(parents=True)
        access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    caps = ("/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
    assert nodes.mig_nodes(0, 7, 0) == ("/dev/nvidia0", *caps)
    assert nodes.mig_nodes(None, 7, 0) == nodes.mig_nodes(0, None, 0) == ()


def test_no_two_servers_have_one_unit() -> None:
    names = ["a", "A", "a-b", "a_b", "a b", "é", "_c3a9", "x/..", "_5f", "5f", ""]
    made = [escaped(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(each.replace("_", "").isalnum() and each.isascii() for each in made if each)


CONFIG = """
c.JupyterHub.spawner_class = "gpuslice-systemd"
c.SystemdSpawner.username_template = {account!r}
c.SystemdSpawner.user_workingdir = {folder!r}
c.SystemdSpawner.unit_name_template = "{prefix}-{{USERNAME}}-singleuser"
c.SystemdSpawner.unit_extra_properties = {{
    "DeviceAllow": ["/dev/fuse rw"], "Description": "Server of {{USERNAME}}"
}}


def start_on_the_machine(self):
    self.environment.update({machine!r})
    return start_watched(self)


_ServiceSpawner.start = start_on_the_machine
"""


FROM_BROKER = """
port = int(c.LeasedSpawner.service_url.split(":")[2].split("/")[0])
configure(c, profiles="profiles.yaml", port=port, broker={socket!r})
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if os.environ.get("GPUSLICE_TEST_SYSTEMD"):
        return {}
    return systemd.install(tmp_path_factory.mktemp("systemd"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    folder = tmp_path_factory.mktemp("nvml")
    made = FakeNvml(folder / "state", build(folder))
    made.add("NVIDIA A100-SXM4-80GB", 81920)
    made.add("NVIDIA A100-SXM4-80GB", 81920)
    return made


@pytest.fixture(scope="module", params=["the hub's own service", "the machine's broker"])
def hub(
    request: pytest.FixtureRequest,
    environ: dict[str, str],
    machine: FakeNvml,
    make_hub: Callable[..., Hub],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("work")
    broker = None
    extra = CONFIG.format(
        account=getpass.getuser(),
        folder=str(folder),
        prefix=f"gpuslice-{os.getpid()}",
        machine=machine.env,
    )
    if request.param == "the machine's broker":
        here = [f"{name}={value}" for name, value in machine.env.items()]
        broker = Broker(folder, prefix=["env", *here])
        extra += FROM_BROKER.format(socket=str(broker.socket))
    made = make_hub(simulate="", extra=extra, environ=environ)
    yield made
    for user in ("ana", "ben", "cpu"):
        for name in ("", "second-one"):
            if made.model(user, name):
                made.end(user, name)
    if broker is not None:
        broker.stop()


def show(environ: dict[str, str], unit: str, name: str) -> str:
    told = subprocess.run(
        ["systemctl", "show", f"--property={name}", "--value", unit],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout


def unit_of(user: str) -> str:
    return f"gpuslice-{os.getpid()}-{user}-singleuser"


def test_each_unit_may_open_its_own_devices_only(hub: Hub, environ: dict[str, str]) -> None:
    hub.run("ana", {"profile": "whole", "request": "1"})
    hub.run("ben", {"profile": "whole", "request": "1"})
    hub.run("cpu", {"profile": "cpu"})
    seen = {}
    for user in ("ana", "ben"):
        lease = hub.lease_of(user)
        assert lease["state"] == "active"
        assert hub.server(user).pid == int(show(environ, unit_of(user), "MainPID"))
        allowed = show(environ, unit_of(user), "DeviceAllow")
        seen[user] = {node for node in ("/dev/nvidia0 ", "/dev/nvidia1 ") if node in allowed}
        assert "/dev/nvidiactl rw" in allowed and "/dev/fuse rw" in allowed
        assert "closed" in show(environ, unit_of(user), "DevicePolicy")
        assert user in show(environ, unit_of(user), "Description")
    assert len(seen["ana"]) == len(seen["ben"]) == 1 and seen["ana"] != seen["ben"]
    assert "nvidia" not in show(environ, unit_of("cpu"), "DeviceAllow")
    assert "closed" in show(environ, unit_of("cpu"), "DevicePolicy")
    for user in ("ana", "ben", "cpu"):
        hub.end(user)
    assert not hub.leases()


def test_a_second_server_of_a_user_leaves_the_first_one_alone(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    first = hub.server("ana").pid
    hub.run("ana", {"profile": "slice", "request": "0.5"}, "second-one")
    assert hub.server("ana").pid == first != hub.server("ana", "second-one").pid
    assert len(hub.leases()) == 2
    hub.end("ana", "second-one")
    assert hub.server("ana").pid == first
    assert len(hub.leases()) == 1
    hub.end("ana")


def test_a_unit_that_is_killed_gives_its_slice_back(hub: Hub) -> None:
    hub.run("ben", {"profile": "whole", "request": "2"})
    os.kill(hub.server("ben").pid, signal.SIGKILL)
    eventually(lambda: not hub.leases(), "the slices of a server that was killed")


def test_a_unit_that_does_not_start_is_told_at_once(
    environ: dict[str, str], make_hub: Callable[..., Hub], tmp_path: Path
) -> None:
    extra = CONFIG.partition("def start_on")[0].format(
        account=getpass.getuser(), folder=str(tmp_path), prefix=f"gpuslice-bad-{os.getpid()}"
    )
    extra += 'c.Spawner.cmd = ["/bin/false"]\n'
    hub = make_hub(extra=extra, environ=environ)
    assert hub.spawn("ana", {"profile": "slice"}).status_code in (201, 202, 500)
    eventually(lambda: hub.model("ana") is None, "the end of the start", 30)
    assert "did not start" in hub.log()
    assert not hub.leases()
