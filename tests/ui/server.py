"""JupyterLab on this machine, without a hub, on two simulated devices of one name."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from jupyter_gpuslice.demo.hub import free_ports

START_SECONDS = 60
STOP_SECONDS = 20


class LabServer:
    """A running JupyterLab with a folder, a ledger and settings of its own."""

    def __init__(self, folder: Path, simulate: str = "a100-80gb:2") -> None:
        self.folder = folder
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
        command += [f"--ServerApp.root_dir={self.notebooks}", f"--GpuSlice.simulate={simulate}"]
        settings = folder / "config" / "labconfig"
        settings.mkdir(parents=True)
        # Lab's question whether to look for news would lie over what is looked at.
        (settings / "default_setting_overrides.json").write_text(
            json.dumps({"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}})
        )
        with (folder / "lab.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(folder, self.token),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it serves, and its devices are there."""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.call("GET", "gpuslice/api/v1/pool")["devices"]:
                    return
            except (URLError, ConnectionError):
                pass
            assert time.monotonic() < end, f"JupyterLab did not start:\n{self.log_tail()}"
            time.sleep(0.2)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 40) -> str:
        text = (self.folder / "lab.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = Request(self.url + path, data, headers, method=method)
        with urlopen(request, timeout=START_SECONDS) as answer:
            return json.loads(answer.read() or b"null")

    def notebook(self, name: str, request: str, *cells: str) -> None:
        """Write a notebook whose kernels ask for that slice."""
        code = [
            {
                "cell_type": "code",
                "id": f"cell-{number}",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": source,
            }
            for number, source in enumerate(cells)
        ]
        spec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
        content = {
            "cells": code,
            "metadata": {"gpuslice": {"request": request}, "kernelspec": spec},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.notebooks / name).write_text(json.dumps(content))

    def start_kernel(self, notebook: str) -> str:
        """Start a notebook's kernel without opening it; the kernel's id."""
        kernel = {"name": "python3"}
        body = {"path": notebook, "name": notebook, "type": "notebook", "kernel": kernel}
        return str(self.call("POST", "api/sessions", body)["kernel"]["id"])

    def address(self, path: str) -> str:
        return f"{self.url}lab/{path}?token={self.token}"


def environment(folder: Path, token: str) -> dict[str, str]:
    """Nothing of this machine's Jupyter but what is installed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "IPYTHON", "PYTEST"))
    }
    own = {
        "HOME": folder,
        "IPYTHONDIR": folder / "ipython",
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_DATA_DIR": folder / "data",
        "JUPYTER_RUNTIME_DIR": folder / "runtime",
        "JUPYTER_TOKEN": token,
    }
    return kept | {name: str(value) for name, value in own.items()}
