"""The configuration for The Littlest JupyterHub, on a real hub with SystemdSpawner.

Doubles are TLJH's package and, where systemd did not boot the machine, its two commands.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from traitlets.config.loader import PyFileConfigLoader

from tests.fakes import systemd
from tests.fakes.nvml import FakeNvml
from tests.workstation.test_workstation import Broker

from .hubs import LIGHT, Hub
from .test_systemd import environ, machine, show

__all__ = ["environ", "machine"]

GIVEN = Path(__file__).parents[2] / "hub_config" / "tljh"
DOUBLE = Path(systemd.__file__).parent / "tljh"

# What TLJH's own jupyterhub_config.py does before it reads those of its administrators.
TLJH = """
from tljh.user_creating_spawner import UserCreatingSpawner

c.JupyterHub.spawner_class = UserCreatingSpawner
c.SystemdSpawner.unit_name_template = {unit!r}
c.SystemdSpawner.user_workingdir = {folder!r}
c.UserCreatingSpawner.user_groups = {{"video": ["ana"]}}
load_subconfig({file!r})
"""


@pytest.mark.slow
def test_a_user_has_an_account_and_the_leased_devices(
    tmp_path: Path, environ: dict[str, str], machine: FakeNvml
) -> None:
    accounts, root, config = tmp_path / "accounts", tmp_path / "hub", tmp_path / "config"
    accounts.touch()
    root.mkdir()
    config.mkdir()
    shutil.copy(GIVEN / "profiles.yaml", config)
    here = [f"{name}={value}" for name, value in machine.env.items()]
    broker = Broker(tmp_path, prefix=["env", *here])
    unit = f"gpuslice-tljh-{os.getpid()}"
    hub = Hub(
        root,
        simulate="",
        environ={
            **environ,
            "PYTHONPATH": str(DOUBLE),
            "TLJH_DOUBLE_BASE_URL": "/",
            "TLJH_DOUBLE_ACCOUNTS": str(accounts),
        },
        extra=TLJH.format(
            unit=f"{unit}-{{USERNAME}}",
            folder=str(tmp_path),
            file=str(config / "gpuslice.py"),
        ),
    )
    # The configuration that is tried is the only one that knows of us.
    whole = (root / "jupyterhub_config.py").read_text()
    ours, count = re.subn(r"(?m)^configure\(c, .*\)$", "", whole)
    assert count == 1
    (root / "jupyterhub_config.py").write_text(ours)
    port = hub.service_url.rpartition(":")[2]
    text = (GIVEN / "gpuslice.py").read_text()
    for given, here in (
        ("/run/jupyter-gpuslice/broker.sock", str(broker.socket)),
        ('"profiles.yaml",', f'"profiles.yaml", port={port},'),
        ('["/opt/tljh/user/bin/jupyterhub-singleuser"]', repr([sys.executable, *LIGHT])),
    ):
        assert given in text
        text = text.replace(given, here)
    (config / "gpuslice.py").write_text(text)
    try:
        hub.start()
        hub.run("ana", {"profile": "course"})
        assert accounts.read_text() == "jupyter-ana: video\n"
        lease = hub.lease_of("ana")
        assert lease["state"] == "active" and lease["request"] == "0.25"
        assert [x["id"] for x in broker.leases()] == [lease["id"]]
        assert hub.server("ana").pid == int(show(environ, f"{unit}-ana", "MainPID"))
        assert "closed" in show(environ, f"{unit}-ana", "DevicePolicy")
        assert "/dev/nvidiactl rw" in show(environ, f"{unit}-ana", "DeviceAllow")
        hub.end("ana")
        assert not hub.leases()
        assert [x["id"] for x in broker.leases()] == []
    finally:
        hub.stop()
        broker.stop()


def test_it_is_under_the_address_that_tljh_config_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(DOUBLE)
    monkeypatch.setenv("TLJH_DOUBLE_BASE_URL", "/hubs/one/")
    # As the hub reads it: into a configuration of its own, which is then merged.
    found = PyFileConfigLoader("gpuslice.py", str(GIVEN)).load_config()
    assert found.LeasedSpawner.service_url.endswith("/hubs/one/services/gpuslice/api/v1/")
    spawner = found.JupyterHub.spawner_class
    names = [each.__name__ for each in spawner.__mro__]
    assert names.index("GpuSliceSystemdSpawner") < names.index("UserCreatingSpawner")
    assert names.index("UserCreatingSpawner") < names.index("SystemdSpawner")
