"""A hub whose servers are pods of the emulated cluster, as a thing that tests start and ask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes import Cluster
from tests.hub.hubs import LIGHT, Hub, eventually

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}

CONFIG = """
c.JupyterHub.spawner_class = "gpuslice-kube"
c.KubeSpawner.namespace = "default"
c.KubeSpawner.image = "none"
c.KubeSpawner.cmd = {cmd!r}
c.KubeSpawner.delete_grace_period = 0
c.KubeSpawner.environment = {{"LIGHT_VERSION": jupyterhub.__version__}}
c.Spawner.environment = {{"LIGHT_VERSION": jupyterhub.__version__}}
c.JupyterHub.cleanup_servers = False
c.GpuSliceKubeSpawner.dialect = {dialect!r}
c.GpuSliceKubeSpawner.dialect_settings = {settings!r}
{more}
"""


class Setting:
    """A hub on a cluster of one node with two GPUs."""

    def __init__(
        self, make: Callable[..., Hub], folder: Path, dialect: str = "auto", more: str = "",
        prepare: Callable[[Cluster], Any] = lambda cluster: None, **settings: Any,
    ) -> None:  # fmt: skip
        self.cluster = Cluster(execute=True)
        self.cluster.node("n1", gpus=2, labels=A100)
        prepare(self.cluster)
        self.hub = make(
            simulate="",
            # Where a client looks is settled when it is imported.
            environ={"KUBECONFIG": str(self.cluster.kubeconfig(folder / "kubeconfig"))},
            extra=CONFIG.format(
                cmd=[sys.executable, *LIGHT],
                dialect=dialect,
                settings=settings,
                more=more,
            ),
        )

    def pods(self) -> list[dict[str, Any]]:
        return self.cluster.all("pods")

    def pod(self, user: str) -> dict[str, Any]:
        (found,) = [p for p in self.pods() if p["metadata"]["name"].startswith(f"jupyter-{user}")]
        return found

    def objects(self) -> set[tuple[str, str]]:
        """What stands for servers in the cluster: pods, claims and their templates."""
        return {
            (plural, body["metadata"]["name"])
            for plural in ("pods", "resourceclaims", "resourceclaimtemplates")
            for body in self.cluster.all(plural)
        }

    def clean(self) -> None:
        self.cluster.fail(0)
        for user in self.hub.hub("GET", "users").json():
            for name, server in user["servers"].items():
                if server["ready"] or server["pending"]:
                    self.hub.end(user["name"], name)
        eventually(lambda: not self.objects(), "a cluster without anything of a server")


def limits(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"].get("limits") or {}
    return found


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
