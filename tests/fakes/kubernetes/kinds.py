"""The kinds that are served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    schema: bool = True
    """Whether kubernetes-validate has a schema of it."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def base(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def qualified(self) -> str:
        """As error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_CORE = {
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "events": "Event",
    "serviceaccounts": "ServiceAccount",
    "resourcequotas": "ResourceQuota",
}
_DRA = "resource.k8s.io"

KINDS = [
    *(Kind("", "v1", plural, name) for plural, name in _CORE.items()),
    Kind("", "v1", "nodes", "Node", namespaced=False),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    Kind(_DRA, "v1", "deviceclasses", "DeviceClass", namespaced=False),
    Kind(_DRA, "v1", "resourceslices", "ResourceSlice", namespaced=False),
    Kind(_DRA, "v1", "resourceclaims", "ResourceClaim"),
    Kind(_DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload", schema=False),
    Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", schema=False),
    Kind("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", schema=False),
    Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", schema=False),
]

BY_ADDRESS = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
PODS = BY_ADDRESS["", "v1", "pods"]
NODES = BY_ADDRESS["", "v1", "nodes"]
EVENTS = BY_ADDRESS["", "v1", "events"]
QUOTAS = BY_ADDRESS["", "v1", "resourcequotas"]
CLAIMS = BY_ADDRESS[_DRA, "v1", "resourceclaims"]
TEMPLATES = BY_ADDRESS[_DRA, "v1", "resourceclaimtemplates"]
CLASSES = BY_ADDRESS[_DRA, "v1", "deviceclasses"]
SLICES = BY_ADDRESS[_DRA, "v1", "resourceslices"]
