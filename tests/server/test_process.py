"""A server as a process of its own, and what is left when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpuslice.devices import Process

from .served import Served


@pytest.mark.slow
def test_after_kill_9_the_ledger_agrees_with_what_runs(tmp_path):
    server = Served(tmp_path).opened()
    again = None
    try:
        kernels = [server.call("POST", "api/kernels", {"name": "python3"}) for _ in range(2)]
        leases = server.call("GET", "gpuslice/api/v1/leases")["leases"]
        assert {lease["holder"]["id"] for lease in leases} == {k["id"] for k in kernels}
        assert {lease["state"] for lease in leases} == {"active"}
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        again = Served(tmp_path).opened()
        # Its kernels end by themselves when their server is gone, and are seen to.
        again.until(lambda: again.call("GET", "gpuslice/api/v1/leases")["leases"] == [])
        pool = again.call("GET", "gpuslice/api/v1/pool")
        assert all(d["free_mib"] == d["memory_mib"] for d in pool["devices"])
        kernel = again.call("POST", "api/kernels", {"name": "python3"})
        (lease,) = again.call("GET", "gpuslice/api/v1/leases")["leases"]
        assert lease["holder"]["id"] == kernel["id"]
        assert "Traceback" not in again.log.read_text()
        children = [Process.of(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()]
        mine = f"JUPYTER_GPUSLICE_KERNEL_ID={kernel['id']}".encode()
        found = []
        for process in children:
            try:
                if mine in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(process)
            except OSError:
                continue
        assert found
        again.stop()
        assert not any(process.alive() for process in found)
        folder = Path(again.env["JUPYTER_RUNTIME_DIR"])
        assert not list(folder.glob("gpuslice-*"))
    finally:
        for one in (server, again):
            if one is not None and one.process.poll() is None:
                one.stop()


@pytest.mark.slow
def test_a_second_server_of_the_same_user_says_so_and_runs(tmp_path):
    first = Served(tmp_path).opened()
    try:
        folder = tmp_path / "second"
        folder.mkdir()
        second = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--port=0",
             "--ServerApp.jpserver_extensions=jupyter_gpuslice=True",
             "--GpuSlice.simulate=a100-80gb:2", f"--ServerApp.root_dir={folder}"],
            env=first.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        try:
            lines = []
            for line in second.stdout:
                lines.append(line)
                if "in use by another broker" in line:
                    break
            else:
                raise AssertionError("".join(lines))
            assert f"process {first.process.pid}" in line
            assert second.poll() is None
        finally:
            second.terminate()
            second.wait(30)
            second.stdout.close()
        assert first.call("GET", "gpuslice/api/v1/pool")["devices"]
    finally:
        first.stop()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("simulate=foo", "GpuSlice.simulate cannot be 'foo': 'foo' is neither a known model"),
        ("simulate=a100:many", "'many' is no number of devices"),
        ("default_request=lots", "GpuSlice.default_request cannot be 'lots'"),
        ("default_request=1.5", "Write 2x0.75"),
        ("reserve_mib=abc", "reserve_mib"),
        ("reserve_mib=-5", "reserve_mib"),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_start(
    setting: str, words: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0"]
    done = subprocess.run(
        [
            *command,
            "--ServerApp.jpserver_extensions=jupyter_gpuslice=True",
            f"--GpuSlice.{setting}",
            f"--ServerApp.root_dir={tmp_path}",
        ],
        env={**os.environ, "HOME": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "jupyter_gpuslice cannot start" in line]
    assert words in line
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").glob("*.json")), "nothing is announced"
