"""Parts of the spawners of this machine, without a hub."""

from __future__ import annotations

import pytest

from jupyter_gpuslice.hub.leased import with_commands

PYTHON = "/opt/hub/bin/python3"


@pytest.mark.parametrize(
    ("path", "cmd", "expected"),
    [
        # A hub that runs as a system service.
        ("/usr/bin:/bin", ["jupyterhub-singleuser"], "/opt/hub/bin:/usr/bin:/bin"),
        ("/usr/bin", None, "/opt/hub/bin:/usr/bin"),
        # The servers' own environment is another one than the hub's.
        ("/usr/bin", ["/opt/user/bin/jupyterhub-singleuser"], "/opt/user/bin:/usr/bin"),
        # What is there already keeps its place.
        ("/usr/bin:/opt/hub/bin", ["jupyterhub-singleuser"], "/usr/bin:/opt/hub/bin"),
        ("", ["jupyterhub-singleuser"], "/opt/hub/bin:/bin:/usr/bin"),
    ],
)
def test_a_server_has_its_own_commands_on_its_path(
    path: str, cmd: list[str] | None, expected: str
) -> None:
    env = {"PATH": path, "A": "1"}
    assert with_commands(env, cmd, PYTHON) == {"PATH": expected, "A": "1"}
