"""Which dialect a cluster speaks, from what its API shows. An admin's own word comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .cluster import Cluster
from .dialects import DIALECTS, Dialect

_HAMI = "hami.io/node-nvidia-register"
"""HAMi's own resources are seen by its scheduler alone; its device plugin annotates the nodes."""
_MARKS: tuple[tuple[str, str], ...] = (
    ("volcano", "volcano.sh/vgpu-number"),
    ("koordinator", "koordinator.sh/gpu-core"),
    ("gpushare", "aliyun.com/gpu-mem"),
)
_GROUPS: tuple[tuple[str, str], ...] = (("runai", "run.ai"), ("kai", "kai.scheduler"))


def detect(cluster: Cluster) -> Dialect | None:
    """The dialect that the cluster's nodes, device classes and API groups tell of.

    ``None`` where nothing speaks of GPUs. Settings that cannot be seen have their defaults.
    """
    # The more particular ones first: nodes of most stacks show nvidia.com/gpu as well.
    if _HAMI in cluster.annotations:
        return DIALECTS["hami"].of({})
    for name, resource in _MARKS:
        if resource in cluster.resources:
            return DIALECTS[name].of({})
    for name, group in _GROUPS:
        if group in cluster.api_groups:
            return DIALECTS[name].of({})
    if "nvidia.com/gpu" not in cluster.resources and "gpu.nvidia.com" in cluster.device_classes:
        return DIALECTS["dra"].of({})
    mig = any(name.startswith("nvidia.com/mig-") for name in cluster.resources)
    single = any("-MIG-" in product.name for product in cluster.products)
    if mig or single or cluster.resources & {"nvidia.com/gpu", "nvidia.com/gpu.shared"}:
        return DIALECTS["nvidia"].of({"mig": "mixed" if mig else "single" if single else "none"})
    return None


def speak(dialect: str, settings: Mapping[str, Any], cluster: Cluster) -> Dialect | None:
    """The dialect that an admin chose, or with ``auto`` the one that the cluster tells of.

    ``SettingError`` or ``TypeError`` for settings that it does not have.
    """
    if dialect != "auto":
        return DIALECTS[dialect].of(settings)
    found = detect(cluster)
    return type(found).of(settings) if found is not None and settings else found
