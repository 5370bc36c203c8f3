"""The unit, the configuration and the profiles that are given out for a shared workstation."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from traitlets.config import Config

from jupyter_gpuslice._administration import LEDGER
from jupyter_gpuslice.cli import parser
from jupyter_gpuslice.server.address import SOCKET
from jupyter_gpuslice.server.app import GpuSlice
from jupyter_gpuslice.workstation.service import Settings

from .accounts import two, why_not
from .test_workstation import Broker, Lab, eventually

GIVEN = Path(__file__).parents[2] / "hub_config" / "workstation"
UNIT = GIVEN / "jupyter-gpuslice.service"


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=True, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(UNIT.read_text())
    return read


def test_the_unit_starts_the_broker_where_servers_look_for_it(unit: Any) -> None:
    service = unit["Service"]
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "jupyter-gpuslice"
    args = parser().parse_args(arguments)
    if os.geteuid() == 0:
        settings = Settings.of(args.socket, args.ledger, args.profiles, "", None)
        assert (str(settings.socket), str(settings.ledger)) == (SOCKET, LEDGER)
    assert Path(SOCKET).parent == Path("/run", service["RuntimeDirectory"])
    assert Path(LEDGER).parent == Path("/var/lib", service["StateDirectory"])
    # Every account has to reach the socket, nobody but root the ledger.
    assert (service["RuntimeDirectoryMode"], service["StateDirectoryMode"]) == ("0755", "0700")
    # Servers see that there is a broker while it is stopped.
    assert service["RuntimeDirectoryPreserve"] == "yes"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze(1)")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/jupyter-gpuslice/bin/jupyter-gpuslice", "/bin/true")
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_servers_configuration_names_the_brokers_socket() -> None:
    path = GIVEN / "jupyter_server_config.py"
    config = Config()
    exec(compile(path.read_text(), str(path), "exec"), {"c": config})
    assert GpuSlice(config=config).broker == SOCKET


@pytest.fixture
def machine(tmp_path: Path, unit: Any) -> Iterator[tuple[Broker, Lab]]:
    """A broker with no more of root's rights than its unit leaves it, and a user's server."""
    ana, _ = two(tmp_path)
    allowed = unit["Service"]["CapabilityBoundingSet"].split()
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in allowed)])
    broker = Broker(tmp_path, prefix=["setpriv", f"--bounding-set={bounds}", "--no-new-privs"])
    lab = Lab(ana, broker, "--GpuSlice.session_request=1")
    yield broker, lab.opened()
    for each in (lab, broker):
        if each.process.poll() is None:
            each.stop()


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=f"Two accounts: {why_not()}")
def test_what_the_unit_leaves_the_broker_is_enough(machine: tuple[Broker, Lab]) -> None:
    """It ends what a killed server left behind, whose it may be, before the slice is free."""
    broker, lab = machine
    kernel = lab.kernel()
    client = BlockingKernelClient()
    client.load_connection_file(str(lab.account.home / "runtime" / f"kernel-{kernel}.json"))
    client.start_channels()
    client.wait_for_ready(timeout=60)
    code = "import subprocess; print(subprocess.Popen(['setsid', 'sleep', '600']).pid)"
    told: list[str] = []
    client.execute_interactive(
        code, timeout=60, output_hook=lambda m: told.append(m["content"].get("text", ""))
    )
    client.stop_channels()
    left = psutil.Process(int("".join(told)))
    assert left.uids().real == lab.account.uid
    os.kill(lab.process.pid, signal.SIGKILL)
    lab.process.wait()
    eventually(lambda: broker.free() == 1, "the slice of a server that was killed")
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE
