from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from jupyter_gpuslice.devices import Device, Process
from jupyter_gpuslice.devices.process import parent

SLEEP = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child():
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_more_than_its_pid(child):
    process = Process.of(child.pid)
    assert process.alive()
    assert process == Process.of(child.pid)
    assert Process.from_dict(process.to_dict()) == process
    assert not Process(child.pid, "another").alive()
    with pytest.raises(ProcessLookupError):
        Process(child.pid, "another").open_pidfd()


def test_the_end_is_seen_by_the_pidfd(child):
    process = Process.of(child.pid)
    fd = process.open_pidfd()
    try:
        assert select.select([fd], [], [], 0)[0] == []
        child.kill()
        assert select.select([fd], [], [], 60)[0] == [fd]
    finally:
        os.close(fd)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.alive()  # a zombie still
    child.wait()
    assert not process.alive()
    with pytest.raises(ProcessLookupError):
        process.open_pidfd()


def test_there_is_no_such_process():
    with pytest.raises(ProcessLookupError):
        Process.of(2**22 + 1)


def test_a_device_round_trips_and_keeps_a_reserve():
    device = Device("GPU-1", "gpu", "gpu", 1000, reserve_mib=300, numa=1)
    assert Device.from_dict({**device.to_dict(), "newer": 1}) == device
    assert device.grantable_mib == 700
    assert Device("GPU-1", "gpu", "gpu", 100, reserve_mib=300).grantable_mib == 0
    with pytest.raises(TypeError):
        Device.from_dict({"uuid": "GPU-1"})


def test_a_pid_knows_its_parent_until_its_process_ends() -> None:
    child = subprocess.Popen(["sleep", "600"])
    assert parent(child.pid) == os.getpid()
    child.kill()
    child.wait()
    assert parent(child.pid) == 0
