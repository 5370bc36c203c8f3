"""A demo user's session: its terminals, and the command line inside and outside of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpuslice.demo.check import spawn_form, start_server
from jupyter_gpuslice.demo.hub import DemoHub
from jupyter_gpuslice.demo.visitor import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DEADLINE = 60.0


@pytest.fixture(scope="module")
def hub() -> Iterator[DemoHub]:
    with DemoHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def visitor(hub: DemoHub) -> Iterator[Visitor]:
    """The first user, with a server that holds half a device."""
    user = hub.users[0]
    visitor = Visitor(hub.url, user.name)
    visitor.log_in(user.password)
    for _ in start_server(visitor, *spawn_form(visitor, "0.5")):
        pass
    yield visitor
    visitor.close()


def in_terminal(visitor: Visitor, command: str) -> str:
    """What a command prints in a new terminal of the session."""
    name = visitor.call("POST", f"user/{visitor.name}/api/terminals")["name"]
    terminal = visitor.connect(f"user/{visitor.name}/terminals/websocket/{name}")
    # Quoted apart, so that the echo of what is typed is not taken for its end.
    terminal.send(json.dumps(["stdin", f"stty cols 200; {command}; echo en''d $?\r"]))
    text, deadline = "", time.monotonic() + DEADLINE
    while not re.search(r"\nend \d+\r", text):
        assert time.monotonic() < deadline, text
        kind, *rest = json.loads(terminal.recv())
        text += rest[0] if kind == "stdout" else ""
    terminal.close()
    return text


def test_a_terminal_knows_this_python_and_its_commands(visitor: Visitor) -> None:
    text = in_terminal(visitor, "command -v python jupyter")
    beside = Path(sys.executable).parent
    assert f"{beside}/python\r" in text
    assert f"{beside}/jupyter\r" in text


def test_the_command_line_in_a_terminal_is_about_the_session(visitor: Visitor) -> None:
    status = in_terminal(visitor, "jupyter gpuslice status")
    assert status.count("Simulated A100-80GB") == 1, "the other device is not this session's"
    doctor = in_terminal(visitor, "jupyter gpuslice doctor")
    assert "Devices of this session: Simulated A100-80GB." in doctor
    assert "yes  simulated:" in doctor

    run_kernel(visitor)
    assert "GPU-hours of the last week" in in_terminal(visitor, "jupyter gpuslice usage")


def run_kernel(visitor: Visitor) -> None:
    kernel = visitor.kernel()
    kernel.run("%gpu", DEADLINE)
    kernel.close()
    visitor.call("DELETE", f"user/{visitor.name}/api/kernels/{kernel.id}")


def test_the_command_line_outside_finds_the_session(hub: DemoHub, visitor: Visitor) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpuslice.cli", "status", "--json"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mine = [
        entry
        for entry in json.loads(done.stdout)
        if f"/user/{visitor.name}/" in entry["server"] and entry["pool"]["devices"]
    ]
    assert mine, done
