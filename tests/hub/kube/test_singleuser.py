"""JupyterHub's own single-user server in a pod, with the extension enabled."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually

from .settings import Setting

pytestmark = pytest.mark.slow
__all__ = ["make_hub"]


def test_jupyterhub_4859_the_single_user_server_starts_with_the_extension_enabled(
    make_hub: Callable[..., Hub], tmp_path: Path
) -> None:
    """An extension's configuration broke jupyterhub-singleuser. Also jupyterlab#16596."""
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    command = [sys.executable, "-m", "jupyterhub.singleuser", "--allow-root"]
    environment = {
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_DATA_DIR": str(home / "data"),
    }
    more = f"c.KubeSpawner.cmd = {command!r}\nc.KubeSpawner.environment = {environment!r}\n"
    setting = Setting(make_hub, tmp_path, more=more)
    hub = setting.hub
    try:
        hub.run("ana", {"profile": "whole", "request": "1"})
        token = hub.user_token("ana")
        base = f"{hub.url}/user/ana"
        headers = {"Authorization": f"token {token}"}

        def pool() -> dict[str, object] | None:
            answer = requests.get(f"{base}/gpuslice/api/v1/pool", headers=headers, timeout=30)
            found: dict[str, object] | None = answer.json() if answer.ok else None
            return found

        found = eventually(pool, "the extension's own interface")
        assert found["devices"] == [], "this machine has none, and says so"
        assert found["note"]
        assert requests.get(f"{base}/lab", headers=headers, timeout=30).ok
        enabled = requests.get(f"{base}/lab/api/extensions", headers=headers, timeout=30)
        assert "jupyter-gpuslice" in json.dumps(enabled.json())
        hub.end("ana")
        eventually(lambda: not setting.objects(), "nothing left of it")
    finally:
        setting.cluster.stop()
