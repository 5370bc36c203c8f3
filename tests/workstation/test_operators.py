"""The commands of a machine's administrator, as they are typed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpuslice.broker import Ledger
from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually

from .accounts import two, why_not
from .test_workstation import Broker

__all__ = ["make_hub"]

pytestmark = pytest.mark.slow


def gpuslice(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpuslice.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    if broker.process.poll() is None:
        broker.stop()


def test_a_device_is_named_by_number_by_uuid_or_by_its_beginning(broker: Broker) -> None:
    (device,) = broker.ask("pool")["devices"]
    for name in ("0", device["uuid"], device["uuid"][:8]):
        done = gpuslice("cordon", name, "--why", "loud fan", "--socket", broker.socket)
        assert (done.returncode, "out of service: loud fan" in done.stdout) == (0, True)
        done = gpuslice("uncordon", name, "--socket", broker.socket)
        assert (done.returncode, "out of service" in done.stdout) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cordon"], "say --all"),
        (["cordon", "7"], "No device is called '7'"),
        (["drain", ""], "No device is called ''"),
        (["cordon", "\u00b2"], "No device is called"),
        (["drain", "0", "--all"], "not both"),
        (["cordon", "GPU-none"], "There are: 0 (GPU-"),
        (["drain", "0", "--within", "soon"], "a time such as 90s"),
        (["cordon", "0", "--why", "two\nlines"], "one line"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_changes(
    broker: Broker, arguments: list[str], words: str
) -> None:
    done = gpuslice(*arguments, "--socket", broker.socket)
    assert done.returncode == 1
    assert words in done.stderr and "Traceback" not in done.stderr
    assert broker.ask("pool")["devices"][0]["cordoned"] is None


def test_a_cordon_outlives_the_broker_that_is_killed(broker: Broker) -> None:
    assert gpuslice("cordon", "--all", "--socket", broker.socket).returncode == 0
    broker.process.kill()
    broker.process.wait()
    missing = gpuslice("uncordon", "--all", "--socket", broker.socket)
    assert missing.returncode == 1
    assert missing.stderr.startswith(f"No GPU broker answers at {broker.socket}.")
    broker.start()
    assert broker.ask("pool")["devices"][0]["cordoned"] == ""
    assert gpuslice("uncordon", "--all", "--socket", broker.socket).returncode == 0


def test_a_second_broker_on_the_same_ledger_ends_and_takes_nothing(broker: Broker) -> None:
    where = (f"--socket={broker.socket}", f"--ledger={broker.ledger}")
    done = gpuslice("broker", *where, "--simulate=a100-80gb:1")
    assert done.returncode == 1
    assert f"in use by another broker (process {broker.process.pid})" in done.stderr
    assert broker.ask("pool")["devices"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profiles=/nowhere.yaml"], "/nowhere.yaml: No such file or directory."),
        (["--simulate=foo"], "'foo' is neither a known model"),
        (["--reserve-mib=-5"], "--reserve-mib is a number of MiB"),
        (["--simulate=t4:1", "--reserve-mib=900000"], "none could be granted"),
        (["--socket=/proc/none/s"], "/proc/none/s"),
        (["--ledger=/proc/none/ledger"], "cannot be written"),
    ],
)
def test_a_broker_that_cannot_serve_says_why(
    tmp_path: Path, options: list[str], words: str
) -> None:
    where = [f"--socket={tmp_path / 's'}", f"--ledger={tmp_path / 'l'}"]
    done = gpuslice("broker", *where, *options)
    assert done.returncode == 1
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_rule_that_a_broker_cannot_keep_is_named(tmp_path: Path) -> None:
    (tmp_path / "profiles.yaml").write_text(
        "profiles: [{slug: a, display_name: A, request: '0.25', idle: 30m}]"
    )
    # It ends by itself once the file was read: its folder cannot be.
    where = ["--socket=/proc/none/s", f"--ledger={tmp_path / 'l'}", "--simulate=t4:1"]
    done = gpuslice("broker", f"--profiles={tmp_path / 'profiles.yaml'}", *where)
    assert done.returncode == 1
    assert "so `idle` is not kept here" in done.stderr


@pytest.mark.parametrize("damage", ["empty", "garbage", "lease"])
def test_a_broker_whose_ledger_is_damaged_says_what_to_do(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "ledger.sqlite"
    if damage == "lease":
        Ledger.open(file).close()
        with closing(sqlite3.connect(file)) as db, db:
            db.execute(
                "INSERT INTO lease (id, state, user, created, body) VALUES ('a', 'active', 'ana',"
                " 1, '{}')"
            )
    else:
        file.write_bytes(b"" if damage == "empty" else b"no ledger" * 1000)
    done = gpuslice("broker", f"--socket={tmp_path / 's'}", f"--ledger={file}", "--simulate=t4:1")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "move the file away and start again" in done.stderr


def test_a_copy_of_a_ledger_in_use_can_be_put_in_its_place(broker: Broker, tmp_path: Path) -> None:
    done = gpuslice("backup", "--ledger", broker.ledger, tmp_path / "copy.sqlite")
    assert done.returncode == 0, done.stderr
    again = gpuslice("backup", "--ledger", broker.ledger, tmp_path / "copy.sqlite")
    assert again.returncode == 1 and "not there yet" in again.stderr
    Ledger.open(tmp_path / "copy.sqlite").close()


@pytest.mark.skipif(bool(why_not()), reason=f"Two accounts: {why_not()}")
def test_who_may_not_read_the_ledger_is_told_so(broker: Broker, tmp_path: Path) -> None:
    ana, _ = two(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    # All is loaded before it is another account, which may not read where Python lies.
    code = (
        "import os, sys; from jupyter_gpuslice import cli; import jupyter_gpuslice.broker.ledger; "
        f"os.setgroups([]); os.setgid({ana.gid}); os.setuid({ana.uid}); "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    for ledger in (broker.ledger, closed / "ledger.sqlite"):
        target = ana.home / "copy.sqlite"
        done = subprocess.run(
            [sys.executable, "-c", code, "backup", "--ledger", str(ledger), str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
        assert not target.exists()


def test_a_second_broker_with_another_ledger_does_not_take_the_socket(
    broker: Broker, tmp_path: Path
) -> None:
    done = gpuslice(
        "broker", f"--socket={broker.socket}", f"--ledger={tmp_path / 'l'}", "--simulate=t4:1"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Another broker serves"), done.stderr
    assert "A100" in broker.ask("pool")["devices"][0]["name"]


def test_status_and_usage_tell_of_the_broker(broker: Broker) -> None:
    code = (
        "import sys; from jupyter_gpuslice import cli, _servers; "
        "from jupyter_gpuslice.server import address; "
        "_servers.servers_of_hubs = list; address.SOCKET = sys.argv.pop(1); "
        "sys.exit(cli.main(sys.argv[1:]))"
    )

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code, str(broker.socket), *arguments],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert f"The GPU broker of this machine ({broker.socket})" in run("status")
    (told, *_) = json.loads(run("status", "--json"))
    assert told["pool"]["devices"] == broker.ask("pool")["devices"]
    assert run("status", f"--socket={broker.socket}") == run("status").split("\n\nThe Jupyter")[0]
    assert "GPU-hours" in run("usage") or "Nothing has been held yet" in run("usage")


def test_a_hubs_own_service_is_operated_in_the_same_way(make_hub: Callable[..., Hub]) -> None:
    hub = make_hub()
    socket = hub.root / "jupyter_gpuslice.sock"
    assert socket.stat().st_mode & 0o777 == 0o600
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    done = gpuslice("drain", "--all", "--within=12s", "--why=new driver", "--socket", socket)
    assert done.returncode == 0, done.stderr
    assert "new driver" in hub.lease_of("ana")["detail"]
    eventually(lambda: not hub.leases(), "the end of ana's lease")
    eventually(lambda: hub.model("ana") is None, "the hub's own look at it")
    assert hub.spawn("ben", {"profile": "slice", "request": "0.5"}).status_code == 202
    hub.progress("ben", lambda event: "position 1" in event["message"])
    assert gpuslice("uncordon", "--all", "--socket", socket).returncode == 0
    hub.ready("ben")
