"""A server as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from .support import DEADLINE


class Served:
    """`jupyter server` in a process, with simulated devices unless ``options`` say otherwise.

    ``prefix`` is a command that runs others, such as setpriv(1).
    """

    def __init__(self, folder: Path, *options: str, prefix: Sequence[str] = ()) -> None:
        self.env = {
            **os.environ,
            "HOME": str(folder),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_TOKEN": "secret",
        }
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    "jupyter_server",
                    "--ServerApp.jpserver_extensions=jupyter_gpuslice=True",
                    "--allow-root",
                    "--no-browser",
                    "--port=0",
                    f"--ServerApp.root_dir={folder}",
                    *(options or ["--GpuSlice.simulate=a100-80gb:2"]),
                ],
                env=self.env,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        self.url = self._wait()

    def _wait(self) -> str:
        def look():
            for file in Path(self.env["JUPYTER_RUNTIME_DIR"]).glob("jpserver-*.json"):
                info = json.loads(file.read_text())
                if info["pid"] == self.process.pid:
                    return info["url"]
            return None

        return self.until(look)

    def opened(self) -> Served:
        """Wait until it has devices."""
        self.until(lambda: self.call("GET", "gpuslice/api/v1/pool")["devices"])
        return self

    def until(self, true):
        end = time.monotonic() + 2 * DEADLINE
        while True:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                if value := true():
                    return value
            except (urllib.error.URLError, OSError, ValueError):
                pass
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.1)

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": "token secret"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read() or b"null")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
