"""The demo's hub: it comes up, goes away whole, and says why when it cannot."""

from __future__ import annotations

import asyncio
import compileall
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from jupyter_gpuslice.demo import hub as demo
from jupyter_gpuslice.demo.authenticator import DemoAuthenticator
from jupyter_gpuslice.demo.hub import DemoError, DemoHub, DemoUser

# A stand-in for JupyterHub: it starts a child that hides in a session of its own, as a managed
# service does, and lives on when it is told to end.
STUBBORN = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
open({pids!r}, "w").write(str(child.pid))
time.sleep({seconds})
print("something went wrong")
"""


def instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the demo start a program of the test's in place of the hub."""
    start = subprocess.Popen

    def popen(command: list[str], **how: object) -> subprocess.Popen[bytes]:
        return start([sys.executable, "-c", code], **how)  # type: ignore[call-overload]

    monkeypatch.setattr(demo.subprocess, "Popen", popen)


def test_free_ports_are_free_and_different() -> None:
    ports = demo.free_ports(4)
    assert len(set(ports)) == 4


def test_the_configuration_is_python_and_private(tmp_path: Path) -> None:
    text = demo.render_config(
        root=tmp_path,
        users=[DemoUser("ana", "pa'ss"), DemoUser("root", "x", admin=True)],
        simulate="a100-80gb:2",
        url="http://127.0.0.1:8000",
        hub_port=1,
        proxy_port=2,
        service_port=3,
    )
    config = tmp_path / "config.py"
    config.write_text(text)
    assert compileall.compile_file(str(config), quiet=1)
    assert f"load_subconfig({str(demo.one_machine() / 'jupyterhub_config.py')!r})" in text
    assert repr({"ana": "pa'ss", "root": "x"}) in text
    assert "admin_users = {'root'}" in text


def test_one_user_is_an_admin() -> None:
    assert [user.name for user in DemoHub().users if user.admin] == ["admin"]
    assert [user.name for user in DemoHub().users if not user.admin] == ["ana", "ben"]


def test_a_home_has_the_example_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "homes" / "ana"
    demo.make_home(home)
    example = nbformat.read(home / "example.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(example)
    assert len(example.cells) > 10
    # What Lab writes of the kernel's language stands there already.
    assert example.metadata.language_info.version == sys.version.split()[0]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_login_shell_in_a_home_knows_this_pythons_commands(tmp_path: Path) -> None:
    home = tmp_path / "it's ana"
    demo.make_home(home)
    found = subprocess.run(
        ["bash", "-l", "-c", "command -v python jupyter-gpuslice"],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    beside = Path(sys.executable).parent
    assert found == [str(beside / "python"), str(beside / "jupyter-gpuslice")]


def test_who_may_log_in() -> None:
    authenticator = DemoAuthenticator(passwords={"ana": "right", "empty": ""})

    def log_in(name: str, password: str) -> str | None:
        data = {"username": name, "password": password}
        return asyncio.run(authenticator.authenticate(None, data))

    assert log_in("ana", "right") == "ana"
    assert log_in("ana", "wrong") is None
    assert log_in("ana", "") is None
    assert log_in("ben", "right") is None
    assert log_in("empty", "") is None
    assert log_in("ana", "é") is None


def test_a_hub_that_ends_at_once_is_quoted_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instead(monkeypatch, "print('cannot bind the port'); raise SystemExit(3)")
    hub = DemoHub()
    with pytest.raises(DemoError, match="cannot bind the port"):
        hub.start()
    assert not hub.root.exists()


def test_a_hub_that_never_answers_ends_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(demo, "START_SECONDS", 1)
    hub = DemoHub()
    began = time.monotonic()
    with pytest.raises(DemoError, match="Waited 1 s for the hub to answer"):
        hub.start()
    assert time.monotonic() - began < 20
    assert not hub.root.exists()


@pytest.mark.parametrize("seconds", [600, 1], ids=["stopped by us", "ended by itself"])
def test_nothing_is_left_even_of_a_service_that_ignores_signals(
    seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    instead(monkeypatch, STUBBORN.format(pids=str(pids), seconds=seconds))
    monkeypatch.setattr(DemoHub, "_answers", lambda self: pids.exists() and pids.stat().st_size > 0)
    hub = DemoHub()
    hub.start()
    child = psutil.Process(int(pids.read_text()))
    assert hub.running()
    if seconds == 1:
        with pytest.raises(DemoError, match="something went wrong"):
            hub.wait_until(lambda: False, 30, "nothing")
    hub.stop()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not hub.root.exists()


def test_the_hubs_environment_finds_this_pythons_commands() -> None:
    environment = demo.hub_environment()
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert environment["CONFIGPROXY_AUTH_TOKEN"] != demo.hub_environment()["CONFIGPROXY_AUTH_TOKEN"]
