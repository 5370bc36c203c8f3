"""A podman of the tests' own: its storage, its image and its Docker API in one folder.

Root and Debian's packages are needed (podman, runc, debootstrap); without them tests are skipped.
The image is a minimal Debian that runs the virtual environment of these tests, mounted read-only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

IMAGE = "gpuslice-test"
LIBRARIES = "libsqlite3-0,libssl3,libffi8,libreadline8,libbz2-1.0,liblzma5,zlib1g"
NEEDED = ("podman", "runc", "debootstrap")

_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
pids_limit = 0
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def missing() -> str:
    """Why there is no podman here, or an empty text."""
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if lacking:
        return f"needs {', '.join(lacking)}: apt-get install {' '.join(lacking)}"
    return "" if os.geteuid() == 0 else "needs root"


class Podman:
    """Containers for tests; everything of it is gone after :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "podman.sock"
        conf = folder / "containers.conf"
        conf.write_text(_CONF)
        self.env = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self._service: subprocess.Popen[bytes] | None = None

    def run(self, *arguments: str) -> str:
        command = ["podman", *self._where(), *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def _where(self) -> list[str]:
        return [
            *("--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")),
            *("--cgroup-manager", "cgroupfs", "--runtime", "runc"),
        ]

    def start(self) -> None:
        """Make the image, and serve the Docker API on ``socket``."""
        root = self.folder / "root"
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm", str(root)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        packed = self.folder / "image.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
        self.run("import", str(packed), f"{IMAGE}:latest")
        packed.unlink()
        shutil.rmtree(root)
        # The bridge, on which the hub listens, is there once a container has run.
        self.run("run", "--rm", IMAGE, "true")
        self._service = subprocess.Popen(
            ["podman", *self._where(), "system", "service", "--time=0", f"unix://{self.socket}"],
            env=self.env,
        )
        deadline = time.monotonic() + 30
        while not self.socket.exists():
            if time.monotonic() > deadline:
                raise RuntimeError("podman's service does not come up")
            time.sleep(0.05)

    def bridge(self) -> str:
        """The machine's address on the containers' network."""
        return self.run(
            "network", "inspect", "podman", "--format", "{{(index .Subnets 0).Gateway}}"
        ).strip()

    def close(self) -> None:
        try:
            self.run("rm", "--all", "--force", "--time", "0")
        finally:
            if self._service is not None:
                self._service.terminate()
                self._service.wait(30)


def python_mounts() -> dict[str, str]:
    """What a container mounts to have the Python of these tests: folder to folder, read-only."""
    repository = Path(__file__).resolve().parents[2]
    folders = {Path(sys.prefix), Path(sys.base_prefix), repository}
    return {str(folder): str(folder) for folder in folders}
