"""The demo as a person starts it, and the walk through the main job."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

from jupyter_gpuslice.demo import hub
from jupyter_gpuslice.demo.visitor import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def demo(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpuslice.cli", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # its temporary directory is then in a place that this test can look into
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def test_the_check_walks_the_main_job(tmp_path: Path) -> None:
    process = demo(tmp_path, "--check")
    try:
        out, _ = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, out
    for step in ("logged in", "allocation", "per-rank output", "loss", "equal weights", "release"):
        assert re.search(rf"^✓ .*{step}", out, re.MULTILINE), out
    assert not list(tmp_path.glob("gpuslice-demo-*"))


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP]],
    ids=["Ctrl-C twice", "kill", "terminal closed"],
)
def test_it_greets_serves_and_leaves_nothing(signals: list[int], tmp_path: Path) -> None:
    process = demo(tmp_path)
    try:
        assert process.stdout is not None
        text = ""
        deadline = time.monotonic() + 120
        while "Ctrl-C stops" not in text:
            assert time.monotonic() < deadline, text
            line = process.stdout.readline()
            assert line, f"it ended: {text}"
            text += line
        url = re.search(r"http://127\.0\.0\.1:\d+/", text)
        assert url is not None
        assert re.search(r"ana +\w{10}\n +ben +\w{10}\n +admin +\w{10}", text)
        assert "example.ipynb opens by itself" in text
        assert "simulated" in text or "of this machine" in text
        assert requests.get(f"{url[0]}hub/login", timeout=30).status_code == 200
        for signum in signals:
            process.send_signal(signum)
            time.sleep(0.3)
        out, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "Everything is stopped and removed." in out
    assert not list(tmp_path.glob("gpuslice-demo-*"))


def test_a_demo_that_is_killed_leaves_nothing_either(tmp_path: Path) -> None:
    process = demo(tmp_path)
    try:
        assert process.stdout is not None
        while "Ctrl-C stops" not in (line := process.stdout.readline()):
            assert line, "it ended"
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("jupyter_gpuslice.hub.service" in " ".join(each.cmdline()) for each in family)
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, alive
    assert not list(tmp_path.glob("gpuslice-demo-*"))


def test_it_runs_the_ready_made_configuration_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is changed there is changed on the demo's spawn page."""
    ready_made = Path(__file__).parents[2] / "hub_config" / "one_machine"
    assert hub.one_machine() == ready_made
    copy = tmp_path / "one_machine"
    shutil.copytree(ready_made, copy)
    profiles = copy / "profiles.yaml"
    profiles.write_text(profiles.read_text().replace("Half a GPU", "One of two halves"))
    monkeypatch.setattr(hub, "_CHECKOUT", copy)
    with hub.DemoHub() as running:
        ana = running.users[0]
        visitor = Visitor(running.url, ana.name)
        visitor.log_in(ana.password)
        page = visitor.get("hub/spawn").text
        visitor.close()
    assert "One of two halves" in page and "Half a GPU" not in page
