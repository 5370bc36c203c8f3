"""Folders of running processes, also where pids say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from jupyter_gpuslice.isolation.folder import UNLOCKED_SECONDS, OwnFolder

HOLD = """
import sys
from pathlib import Path
from jupyter_gpuslice.isolation.folder import OwnFolder
folder = OwnFolder(Path(sys.argv[1]), "gpuslice-")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_living_process_keeps_its_folder_whatever_its_pid(tmp_path: Path) -> None:
    """As seen from another container or machine: no pid in /proc tells of it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        ours = OwnFolder(tmp_path, "gpuslice-")
        assert theirs.is_dir() and ours.path.is_dir()
        assert str(os.getpid()) not in theirs.name
        other.kill()
        other.wait()
        third = OwnFolder(tmp_path, "gpuslice-")
        assert not theirs.exists(), "its process is gone"
        assert ours.path.is_dir()
        for folder in (ours, third):
            folder.close()
        assert not list(tmp_path.iterdir())


def test_a_folder_in_the_making_is_left_alone(tmp_path: Path) -> None:
    young, old = tmp_path / "gpuslice-1", tmp_path / "gpuslice-2"
    for folder in (young, old):
        folder.mkdir()
    past = time.time() - UNLOCKED_SECONDS - 1
    os.utime(old, (past, past))
    OwnFolder(tmp_path, "gpuslice-").close()
    assert young.is_dir() and not old.exists()
