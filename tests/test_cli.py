"""The command line, as a person calls it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpuslice import __version__, _servers, cli
from jupyter_gpuslice.broker.explain import clock_text


@pytest.fixture
def no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory in which no server stands, on a machine without hubs."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    # Other people's tests may run hubs beside this one.
    monkeypatch.setattr(_servers, "servers_of_hubs", list)
    return tmp_path


def announce(runtime: Path, url: str, token: str = "", name: str = "1") -> None:
    """Leave the file that a running Jupyter server leaves."""
    info = {"url": url, "token": token, "pid": os.getpid(), "base_url": "/"}
    (runtime / f"jpserver-{name}.json").write_text(json.dumps(info))


class _Answers(BaseHTTPRequestHandler):
    """Says what a test told it to; remembers how it was asked."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        status, body = server.answers.get(self.path.partition("?")[0], (404, None))
        self.send_response(status)
        self.end_headers()
        if body is not None:
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), _Answers)
    server.asked, server.answers = [], {}
    server.url = f"http://127.0.0.1:{server.server_port}/user/ana/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


POOL = {
    "devices": [
        {
            "uuid": "GPU-a",
            "name": "NVIDIA A100",
            "kind": "gpu",
            "memory_mib": 81920,
            "free_mib": 40960,
            "compute_percent": 100,
            "free_percent": 50,
            "used_mib": None,
            "utilization_percent": 7,
            "health": "ok",
            "leases": ["l1"],
        }
    ],
    "isolation": "watch",
    "queue": [],
}
LEASES = [
    {
        "id": "l1",
        "state": "active",
        "request": "0.5",
        "holder": {"kind": "kernel", "id": "k1", "user": "ana", "name": "train.ipynb"},
        "slices": [{"device": "GPU-a", "memory_mib": 40960}],
    },
    {
        "id": "l2",
        "state": "granted",
        "request": "1",
        "workers": 2,
        "holder": {"kind": "group", "id": "g1", "user": "ana", "name": "train"},
        "slices": [{"device": "GPU-a", "memory_mib": 20480}] * 2,
    },
    {
        "id": None,
        "state": "queued",
        "request": "1",
        "holder": {"kind": "session", "id": None, "user": None, "name": None},
        "slices": [],
        "position": 1,
    },
]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("args", [[], ["frobnicate"], ["profiles"], ["usage", "--by", "moon"]])
def test_bad_command_line_ends_with_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(args)
    assert end.value.code == 2
    assert "usage: jupyter gpuslice" in capsys.readouterr().err


def test_is_a_jupyter_command() -> None:
    """`jupyter gpuslice` finds it, and its help names each command that there is."""
    out = subprocess.run(
        [sys.executable, "-m", "jupyter", "gpuslice", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    ).stdout
    for command in ("status", "doctor", "demo", "profiles", "usage"):
        assert f"\n    {command} " in out


def test_status_without_a_server_lists_the_machine(
    no_servers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 0
    assert "No Jupyter server of yours runs on this machine" in capsys.readouterr().out
    assert cli.main(["status", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["devices"] or report["note"]


def test_status_of_a_running_server(
    no_servers: Path, web: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(no_servers, web.url, token="s3cret")
    web.answers = {
        "/user/ana/gpuslice/api/v1/pool": (200, POOL),
        "/user/ana/gpuslice/api/v1/leases": (200, {"leases": LEASES}),
    }
    assert cli.main(["status"]) == 0
    out = capsys.readouterr().out
    device = next(line for line in out.splitlines() if line.startswith("NVIDIA A100"))
    assert device.split("  ")[0] == "NVIDIA A100"
    assert "40.0 GiB" in device
    assert "unknown" in device, "memory that was not measured is no number"
    assert "7 %" in device
    assert "kernel train.ipynb" in out
    assert "session (not yours)" in out
    assert "position 1" in out
    group = next(line for line in out.splitlines() if "group train" in line)
    assert "  2 × 1  " in group
    assert "s3cret" not in out
    assert {asked for _, asked in web.asked} == {"token s3cret"}


def test_status_in_a_session_asks_the_session(
    no_servers: Path,
    web: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce(no_servers, "http://127.0.0.1:9/")
    monkeypatch.setenv("JUPYTER_GPUSLICE_URL", f"{web.url}gpuslice/api/v1")
    monkeypatch.setenv("JUPYTER_GPUSLICE_TOKEN", "capability")
    web.answers = {
        "/user/ana/gpuslice/api/v1/pool": (200, POOL),
        "/user/ana/gpuslice/api/v1/leases": (200, {"leases": LEASES}),
    }
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["pool"] == POOL
    assert {asked for _, asked in web.asked} == {"gpuslice capability"}


def test_a_server_under_a_hub_takes_the_sessions_token(
    no_servers: Path, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(no_servers, web.url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-the-hub")
    assert cli.main(["status"]) == 1
    assert web.asked == [("/user/ana/gpuslice/api/v1/pool", "token of-the-hub")]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, None), "does not run the jupyter_gpuslice extension"),
        (
            (403, {"message": "Not yours.", "reason": "not_owner", "hint": "Ask."}),
            "Not yours. Ask.",
        ),
        ((403, b"<html>"), "403: Forbidden"),
        ((500, ["odd"]), "500: Internal Server Error"),
        ((200, b"not json"), "cannot be asked"),
        ((200, {}), "not answered by the jupyter_gpuslice extension"),
        ((200, ["odd"]), "not answered by the jupyter_gpuslice extension"),
    ],
)
def test_a_server_that_refuses_is_quoted(
    answer: Any, words: str, no_servers: Path, web: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(no_servers, web.url)
    web.answers = {"/user/ana/gpuslice/api/v1/pool": answer}
    assert cli.main(["status"]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_one_dead_server_does_not_hide_the_others(
    no_servers: Path, web: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        announce(no_servers, dead, name="1")
        announce(no_servers, web.url, name="2")
        web.answers = {
            "/user/ana/gpuslice/api/v1/pool": (200, POOL),
            "/user/ana/gpuslice/api/v1/leases": (200, {"leases": []}),
        }
        assert cli.main(["status"]) == 0
    printed = capsys.readouterr()
    assert "No leases." in printed.out
    assert dead in printed.err


@pytest.mark.slow
def test_status_and_usage_of_a_real_server(
    no_servers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server really answers is what the command line reads."""
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--port=0"]
    command += ["--GpuSlice.simulate=a100-80gb:2", f"--ServerApp.root_dir={tmp_path}"]
    if os.geteuid() == 0:
        command.append("--allow-root")
    log = tmp_path / "log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            command,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", "HOME": str(tmp_path)},
        )
    try:
        deadline = time.monotonic() + 60
        while not list(no_servers.glob("jpserver-*.json")):
            assert time.monotonic() < deadline, log.read_text()
            assert server.poll() is None, log.read_text()
            time.sleep(0.2)
        # The server answers before it has found its devices.
        while cli.main(["status"]) != 0 or "looked for" in (out := capsys.readouterr().out):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        assert out.count("simulated  79.5 GiB  79.5 GiB  100 %") == 2
        assert "No leases." in out
        assert cli.main(["usage", "--by", "day"]) == 0
        assert "Nothing has been held yet." in capsys.readouterr().out
    finally:
        server.terminate()
        server.wait(30)


def test_usage_needs_a_server(no_servers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["usage"]) == 1
    err = capsys.readouterr().err
    assert "No Jupyter server" in err
    assert "terminal of its JupyterLab" in err, "it says what to do"


@pytest.mark.parametrize("by", ["user", "group", "day"])
def test_usage_names_its_unit(
    by: str, no_servers: Path, web: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(no_servers, web.url)
    row = {by: "a", "held_s": 5400.0, "busy_s": 1.8, "idle_s": 0.0, "waited_s": None}
    web.answers = {"/user/ana/gpuslice/api/v1/usage": (200, {"usage": [row]})}
    assert cli.main(["usage", "--by", by]) == 0
    out = capsys.readouterr().out
    assert "GPU-hours of the last week" in out
    lines = [line.split() for line in out.splitlines()]
    assert [by.upper(), "HELD", "BUSY", "IDLE", "WAITED"] in lines
    assert ["a", "1.500", "0.001", "0.000", "unknown"] in lines
    assert cli.main(["usage", "--by", by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["usage"] == [row]


def test_servers_that_a_hub_started_are_found_wherever_their_home_is(
    web: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hub's user server, its kernel, and a service of the hub, which is none."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    session = {
        "JUPYTERHUB_USER": "ana",
        "JUPYTERHUB_SERVICE_URL": web.url,
        "JUPYTERHUB_API_TOKEN": "of-ana",
    }
    service = {**session, "JUPYTERHUB_USER": "", "JUPYTERHUB_API_TOKEN": "of-a-service"}
    announce(tmp_path, web.url)
    web.answers = {"/user/ana/gpuslice/api/v1/usage": (200, {"usage": []})}
    with contextlib.ExitStack() as stack:
        for environ in (session, session, service):
            sleeper = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ
                )
            )
            stack.callback(sleeper.terminate)
        deadline = time.monotonic() + 30
        while sum(server.token == "of-ana" for server in _servers.servers_of_hubs()) != 1:
            assert time.monotonic() < deadline
        assert "of-a-service" not in {server.token for server in _servers.servers_of_hubs()}
        cli.main(["usage"])
    assert "Nothing has been held yet." in capsys.readouterr().out
    assert [token for _, token in web.asked] == ["token of-ana"]


def test_a_reader_that_leaves_is_no_error(no_servers: Path) -> None:
    """`jupyter gpuslice … | head -0`: no traceback, no failure."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "jupyter_gpuslice.cli", "doctor", "--json"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
            env={name: v for name, v in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_profiles_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("profiles: [{slug: half, request: 0.5}]\n")
    bad.write_text("profiles: [{slug: half, requests: 0.5}]\n")
    assert cli.main(["profiles", "check", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: valid\n"
    assert cli.main(["profiles", "check", str(good), str(bad)]) == 1
    printed = capsys.readouterr()
    assert f"{good}: valid" in printed.out
    assert f"{bad}:1: profiles[0]: " in printed.err
    assert "Did you mean request?" in printed.err
    bad.write_text("profiles:\n- slug: half\n  request: 1.5\n- slug: B\n  request: 1\n")
    assert cli.main(["profiles", "check", str(bad)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"{bad}:3:", f"{bad}:4:"]
    assert cli.main(["profiles", "check", str(tmp_path / "none.yaml")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_what_a_workstation_runs_needs_no_jupyterhub(tmp_path: Path) -> None:
    """The broker and the commands on profiles, installed without any extra."""
    code = """
import sys
from importlib import abc

class Absent(abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import jupyter_gpuslice.workstation.service
from jupyter_gpuslice.cli import main
sys.exit(main(sys.argv[1:]))
"""
    extras = {
        "batchspawner", "dockerspawner", "jupyterhub", "kubernetes_asyncio", "kubespawner",
        "oauthlib", "requests", "sqlalchemy", "systemdspawner", "torch", "websocket",
    }  # fmt: skip
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text("profiles: [{slug: half, request: 0.5}]")
    for command in (
        ["profiles", "check", str(profiles)],
        ["profiles", "convert", str(profiles), "--dialect", "hami"],
        ["broker", "--help"],
        ["status", "--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(extras=extras), *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ((2026, 12, 5, 16, 40, 0), "16:40"),
        ((2026, 12, 6, 0, 5, 0), "2026-12-06 00:05"),
        ((2027, 12, 5, 16, 40, 0), "2027-12-05 16:40"),
    ],
)
def test_a_time_has_its_date_where_that_is_not_today(when: tuple[int, ...], words: str) -> None:
    def seconds(*parts: int) -> float:
        return time.mktime((*parts, 0, 0, -1))  # type: ignore[arg-type]

    assert clock_text(seconds(*when), seconds(2026, 12, 5, 9, 0, 0)) == words


def test_the_profiles_that_we_ship_are_valid() -> None:
    root = Path(__file__).parents[1]
    shipped = [
        *root.glob("hub_config/**/profiles*.yaml"),
        *root.glob("jupyter_gpuslice/demo/*.yaml"),
    ]
    assert len(shipped) >= 2
    assert cli.main(["profiles", "check", *map(str, shipped)]) == 0


def test_doctor_says_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert [finding["level"] for finding in findings][:3] == ["mig", "cgroup", "mps"]
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "Devices of this machine: " in out
    for finding in findings:
        answer = "yes" if finding["available"] else "no "
        assert f"\n{answer}  {finding['level']}: " in out
        assert out.count(finding["why"]) == 1
        assert finding["remedy"] in out


def test_doctor_in_a_session_is_about_the_session_s_devices(
    no_servers: Path,
    web: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSLICE_URL", f"{web.url}gpuslice/api/v1")
    monkeypatch.setenv("JUPYTER_GPUSLICE_TOKEN", "capability")
    device = {**POOL["devices"][0], "kind": "simulated", "name": "Simulated A100"}  # type: ignore[index]
    web.answers = {"/user/ana/gpuslice/api/v1/pool": (200, {**POOL, "devices": [device]})}
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "Devices of this session: Simulated A100." in out
    assert "\nyes  simulated: " in out
    assert out.count("1 simulated device in the pool.") == 1

    web.answers = {}
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("note: ")
    assert "Devices of this machine: " in printed.out
