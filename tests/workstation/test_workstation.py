"""Two accounts of one machine, a JupyterLab each, no hub, and one broker between them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_gpuslice.hub.node import HUB
from jupyter_gpuslice.kernel.client import Client
from jupyter_gpuslice.server.link import Link
from jupyter_gpuslice.server.upstream import URL
from jupyter_gpuslice.workstation.peer import FOR, MOST_CONNECTIONS, told_for
from tests.server.served import Served

from .accounts import Account, two, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"Two accounts: {why_not()}"),
]

DEADLINE = 60.0

ASK = """
import json, sys
from jupyter_gpuslice.kernel.client import Client
from jupyter_gpuslice.kernel.errors import GpuSliceError

class Speaking(Client):
    # It says for whom it asks.
    def _take(self):
        connection = super()._take()
        request = connection.request
        told = {"Gpuslice-For": sys.argv[5]}
        connection.request = lambda *a, headers, **m: request(*a, headers={**headers, **told}, **m)
        return connection


try:
    kind = Speaking if sys.argv[5] else Client
    answer = kind(sys.argv[1], "").call(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
except GpuSliceError as error:
    answer = {"refused": error.reason}
print(json.dumps(answer))
"""


class Broker:
    """``jupyter gpuslice broker``, as root."""

    def __init__(self, folder: Path, *options: str, prefix: Sequence[str] = ()) -> None:
        self.prefix = prefix
        self.folder = folder
        self.socket = folder / "run" / "broker.sock"
        self.ledger = folder / "ledger.sqlite"
        self.options = options
        self.url = f"http+unix://{str(self.socket).replace('/', '%2F')}/api/v1"
        self.start()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "jupyter_gpuslice.cli", *arguments]

    def start(self) -> None:
        where = (f"--socket={self.socket}", f"--ledger={self.ledger}", "--simulate=a100-80gb:1")
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.prefix,
                    *self.command("broker", *where, *self.options),
                ],
                stdout=log,
                stderr=log,
            )
        eventually(lambda: self.ask("pool"), "the broker")

    def log(self) -> str:
        return (self.folder / "broker.log").read_text()

    def ask(self, path: str) -> Any:
        assert self.process.poll() is None, self.log()
        try:
            return Client(self.url, "").get(path)
        except Exception:
            return None

    def leases(self) -> list[dict[str, Any]]:
        """All of them, as root sees them."""
        return self.ask("leases")["leases"]

    def free(self) -> float:
        """The part of the device that nobody holds."""
        (device,) = self.ask("pool")["devices"]
        return device["free_percent"] / 100

    def as_account(
        self, account: Account, method: str, path: str, body: Any = None, told: str = ""
    ) -> Any:
        """What the broker answers to a program of an account's, which may say for whom it asks."""
        done = subprocess.run(
            [
                *(*account.prefix, sys.executable, "-c", ASK),
                *(self.url, method, path, json.dumps(body), told),
            ],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            cwd=account.home,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


class Lab(Served):
    """A user's own server."""

    def __init__(self, account: Account, broker: Broker, *options: str) -> None:
        self.account = account
        super().__init__(
            account.home, f"--GpuSlice.broker={broker.socket}", *options, prefix=account.prefix
        )

    def pool(self) -> dict[str, Any]:
        return self.call("GET", "gpuslice/api/v1/pool")

    def kernel(self) -> str:
        return self.call("POST", "api/kernels", {"name": "python3"})["id"]

    def leases(self) -> list[dict[str, Any]]:
        return self.call("GET", "gpuslice/api/v1/leases")["leases"]


def eventually(look: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE
    while not (value := look()):
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.1)
    return value


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    """Makes brokers and servers, and ends them."""
    made: list[Any] = []

    class Make:
        ana, ben = two(tmp_path)

        @staticmethod
        def broker(*options: str) -> Broker:
            made.append(Broker(tmp_path, *options))
            return made[-1]

        @staticmethod
        def lab(*arguments: Any) -> Lab:
            made.append(Lab(*arguments))
            return made[-1]

    yield Make
    for one in reversed(made):
        if one.process.poll() is None:
            one.stop()


def test_two_users_share_a_device_and_neither_touches_the_others_lease(make: Any) -> None:
    broker = make.broker()
    ana = make.lab(make.ana, broker, "--GpuSlice.session_request=0.5").opened()
    ben = make.lab(make.ben, broker, "--GpuSlice.session_request=0.25").opened()

    # One device, two slices of it, each the pool of its own server.
    (hers,), (his,) = ana.pool()["devices"], ben.pool()["devices"]
    assert hers["uuid"] == his["uuid"]
    assert (hers["compute_percent"], his["compute_percent"]) == (50, 25)
    assert broker.free() == 0.25
    kernel = ana.kernel()
    (lease,) = ana.leases()
    assert (lease["holder"]["id"], lease["state"]) == (kernel, "active")
    assert lease["slices"][0]["compute_percent"] == 50

    # Who holds what, as the broker's kernel-checked callers see it.
    sessions = {lease["holder"]["user"]: lease for lease in broker.leases()}
    assert sessions.keys() == {make.ana.name, make.ben.name}
    for mine, other in ((make.ana, make.ben), (make.ben, make.ana)):
        seen = broker.as_account(mine, "GET", "leases")["leases"]
        assert [lease["holder"]["user"] for lease in seen] == [mine.name]
        theirs = f"leases/{sessions[other.name]['id']}"
        for method, path, body in (
            ("DELETE", theirs, None),
            ("PATCH", theirs, {"ttl": "9h"}),
            ("GET", theirs, None),
            ("GET", f"{theirs}/grant", None),
            ("PUT", f"{theirs}/processes", {"processes": []}),
        ):
            answer = broker.as_account(mine, method, path, body)
            assert answer == {"refused": "not_owner"} or answer == {"refused": "forbidden"}, (
                method,
                path,
                answer,
            )
        refused = broker.as_account(mine, "PATCH", "pool", {"cordoned": True})
        assert refused == {"refused": "forbidden"}
        for whom in ("hub", "admin"):
            told = json.dumps({"user": other.name, "admin": whom == "admin", "hub": whom == "hub"})
            answer = broker.as_account(mine, "GET", "leases", None, told)
            assert answer == {"refused": "forbidden"}
        nobody = {"request": "1", "holder": {"kind": "session", "id": f"{other.name}/"}}
        assert broker.as_account(mine, "POST", "leases", nobody) == {"refused": "bad_request"}
        # Not even of their own: it ends with the server that holds it.
        own = broker.as_account(mine, "DELETE", f"leases/{sessions[mine.name]['id']}")
        assert own == {"refused": "in_use"}
    assert {lease["id"] for lease in broker.leases()} == {s["id"] for s in sessions.values()}

    # The end of a server frees its slice, and the other one does not notice.
    os.kill(ana.process.pid, signal.SIGKILL)
    ana.process.wait()
    eventually(lambda: broker.free() == 0.75, "the slice of a server that was killed")
    assert ben.pool()["devices"] == [his]


def test_a_server_that_waits_says_so_and_its_kernels_get_their_gpu_when_it_comes(
    make: Any,
) -> None:
    broker = make.broker()
    ana = make.lab(make.ana, broker, "--GpuSlice.session_request=1").opened()
    ben = make.lab(make.ben, broker, "--GpuSlice.session_request=0.5")
    ben.until(lambda: "at position 1 in the queue" in ben.pool()["note"])
    kernel = ben.kernel()
    assert ben.pool()["devices"] == []
    ana.stop()
    ben.opened()
    lease = ben.until(lambda: next((x for x in ben.leases() if x["slices"]), None))
    assert (lease["holder"]["id"], lease["state"]) == (kernel, "active")


def test_a_broker_that_stops_and_comes_back_takes_nothing_from_anybody(make: Any) -> None:
    broker = make.broker()
    ana = make.lab(make.ana, broker, "--GpuSlice.session_request=0.5").opened()
    before = [(lease["id"], lease["slices"]) for lease in broker.leases()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        broker.stop(number)
        # No broker, no GPU: never all of them.
        ben = make.lab(make.ben, broker, "--GpuSlice.session_request=0.5")
        ben.until(lambda ben=ben: "does not answer" in ben.pool()["note"])
        assert ben.pool()["devices"] == []
        assert ana.pool()["devices"][0]["compute_percent"] == 50
        broker.start()
        ben.opened()
        assert [(x["id"], x["slices"]) for x in broker.leases()][:1] == before
        assert broker.free() == 0
        ben.stop()
        eventually(lambda: broker.free() == 0.5, "the slice of a server that was stopped")


def test_an_administrator_drains_and_the_user_is_told_and_the_server_ends(make: Any) -> None:
    broker = make.broker()
    ana = make.lab(make.ana, broker, "--GpuSlice.session_request=0.5").opened()

    def operate(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            broker.command(*arguments, f"--socket={broker.socket}"),
            capture_output=True,
            text=True,
            check=False,
        )

    done = operate("drain", "0", "--within=25s", "--why=new fans")
    assert done.returncode == 0, done.stderr
    assert "out of service: new fans" in done.stdout
    ana.until(lambda: "Its GPU goes out of service: new fans. Save" in ana.log.read_text())
    (mine,) = (row for row in operate("status").stdout.splitlines() if " active " in row)
    assert f"session of {make.ana.name} (process " in mine
    assert re.search(r"ends (\d{4}-\d\d-\d\d )?\d\d:\d\d: Its GPU goes out of service", mine)
    told = (broker.folder / "broker.log").read_text()
    assert "Out of service by root, drained within 25 s: " in told
    assert re.search(rf"Lease \S+ of 0.5 \({make.ana.name}, process \d+\) is active", told)
    assert eventually(lambda: ana.process.poll() is not None, "the end of the server")
    eventually(lambda: not broker.leases(), "the end of its lease")
    ben = make.lab(make.ben, broker, "--GpuSlice.session_request=0.5")
    ben.until(lambda: "at position 1" in ben.pool()["note"])
    assert operate("uncordon", "--all").returncode == 0
    ben.opened()


def test_profiles_bind_who_asks_at_the_socket(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(
        "profiles:\n"
        "  - {slug: all, display_name: For all, request: 0.25}\n"
        f"  - {{slug: one, display_name: For one, request: 1, users: [{make.ana.name}]}}\n"
        "policies:\n"
        f"  - {{users: [{make.ben.name}], concurrent: 0.25}}\n"
    )
    broker = make.broker(f"--profiles={file}")
    ben = make.lab(make.ben, broker).opened()
    assert ben.pool()["devices"][0]["compute_percent"] == 25
    assert broker.as_account(make.ben, "POST", "leases", {"request": "1"}) == {
        "refused": "not_offered"
    }
    second = broker.as_account(make.ben, "POST", "leases", {})
    assert second["state"] == "queued"
    assert "You hold 0.25 GPUs already" in second["detail"]
    told = broker.as_account(make.ben, "GET", "pool")["session"]["limits"]
    assert (told["concurrent"], told["held"]) == (0.25, 0.25)
    ben.stop()
    ana = make.lab(make.ana, broker, "--GpuSlice.session_request=1").opened()
    assert ana.pool()["devices"][0]["compute_percent"] == 100


FLOOD = """
import socket, sys, time
open_ = []
for _ in range(400):
    try:
        one = socket.socket(socket.AF_UNIX)
        one.connect(sys.argv[1])
        open_.append(one)
    except OSError:
        time.sleep(0.01)
print(len(open_), flush=True)
time.sleep(60)
"""


def test_an_account_that_opens_connections_without_end_keeps_nobody_else_out(make: Any) -> None:
    broker = make.broker()
    flood = subprocess.Popen(
        [*make.ana.prefix, sys.executable, "-c", FLOOD, str(broker.socket)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=make.ana.home,
    )
    try:
        assert flood.stdout is not None and int(flood.stdout.readline()) > MOST_CONNECTIONS
        held = eventually(
            lambda: (n := len(psutil.Process(broker.process.pid).net_connections("unix"))) and n,
            "the broker's connections",
        )
        assert held < MOST_CONNECTIONS + 30
        assert broker.as_account(make.ben, "GET", "pool")["devices"]
        assert broker.ask("pool")["devices"]
    finally:
        flood.kill()
        flood.wait()
    # Those that are closed do not count any more.
    eventually(lambda: "devices" in _answer(broker, make.ana), "ana's own turn")


def _answer(broker: Broker, account: Account) -> Any:
    try:
        return broker.as_account(account, "GET", "pool")
    except AssertionError:
        return {}


def test_a_server_in_anothers_terminal_has_a_slice_of_its_own(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make.broker()
    outer = make.lab(make.ana, broker, "--GpuSlice.session_request=0.5").opened()
    (lease,) = broker.leases()
    grant = broker.ask(f"leases/{lease['id']}/grant")
    monkeypatch.setenv("JUPYTER_GPUSLICE_GRANT", json.dumps(grant))
    inner = make.lab(make.ana, broker, "--GpuSlice.session_request=0.25").opened()
    assert inner.pool()["devices"][0]["compute_percent"] == 25
    assert outer.pool()["devices"][0]["compute_percent"] == 50
    assert broker.free() == 0.25


def test_a_hubs_server_that_is_called_as_a_process_does_not_end_that_process(make: Any) -> None:
    """JupyterHub 5 lets users call their servers by a number; a new start ends the last one's."""
    broker = make.broker()
    code = "import sys, time; exec(sys.argv.pop(1)); time.sleep(600)"
    process = subprocess.Popen(
        [
            *(*make.ana.prefix, sys.executable, "-u", "-c", code, ASK),
            *(broker.url, "POST", "leases", '{"request": "0.25"}', ""),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=make.ana.home,
    )
    try:
        assert process.stdout is not None
        lease = json.loads(process.stdout.readline())
        holder = {"kind": "session", "id": f"{make.ana.name}/{process.pid}"}
        asked = {"request": "0.25", "holder": holder}
        link = Link(URL, {FOR: told_for(HUB, True)}, str(broker.socket))
        started = asyncio.run(link.call("POST", "leases", asked))
        assert started["id"] != lease["id"] and process.poll() is None
        assert broker.free() == 0.5
    finally:
        process.kill()
        process.wait()
