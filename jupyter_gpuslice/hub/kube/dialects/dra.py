"""NVIDIA's driver for Dynamic Resource Allocation: claims instead of extended resources.

Sources: github.com/NVIDIA/k8s-dra-driver-gpu (demo specs; ``resource.nvidia.com/v1beta1``
GpuConfig), kubernetes.io "Dynamic Resource Allocation", KEP-5075 (consumable capacity, beta in
Kubernetes 1.36: memory of one device for several claims).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from ....request import GpuRequest
from ..patch import CannotExpressError, PodPatch
from .dialect import Dialect, PodContext, choice, like, no_compute

DRIVER = "gpu.nvidia.com"
CLAIM = "gpu"


@dataclass(frozen=True)
class Dra(Dialect):
    """``shares``: the driver publishes devices whose memory several claims may share
    (``--consumable-shares memory``). ``strategy``: how the containers of one claim share a whole
    GPU, ``TimeSlicing`` or ``MPS`` (the driver refuses MPS together with shares).
    """

    name: ClassVar[str] = "dra"

    shares: bool = False
    strategy: str = ""
    gpu_class: str = "gpu.nvidia.com"
    mig_class: str = "mig.nvidia.com"

    def __post_init__(self) -> None:
        choice("strategy", self.strategy, ("", "TimeSlicing", "MPS"))
        if self.shares:
            choice("strategy (with shares)", self.strategy, ("", "TimeSlicing"))

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        no_compute(request, "The DRA driver")
        exactly: dict[str, Any] = {"deviceClassName": self.gpu_class}
        selectors = _model(request.model)
        constraints: list[dict[str, Any]] = []
        isolation = "watch"
        if request.kind == "mig":
            if request.count > 1:
                raise CannotExpressError(
                    "A process sees one MIG device only, so one server cannot use several.",
                    [like(request, str(request.profile), 1)],
                )
            exactly["deviceClassName"] = self.mig_class
            selectors.append(f"device.attributes['{DRIVER}'].profile == '{request.profile}'")
            isolation = "mig"
        elif not request.whole:
            if not self.shares:
                raise CannotExpressError(
                    "The DRA driver of this cluster gives out whole GPUs and MIG devices only.",
                    [like(request, "1")],
                )
            memory = request.memory_mib or pod.cluster.memory_of(request)
            selectors.append("device.allowMultipleAllocations == true")
            exactly["capacity"] = {"requests": {"memory": f"{memory}Mi"}}
        if request.count > 1:
            exactly["count"] = request.count
            if not request.whole:
                constraints.append({"requests": [CLAIM], "distinctAttribute": f"{DRIVER}/uuid"})
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        devices: dict[str, Any] = {"requests": [{"name": CLAIM, "exactly": exactly}]}
        if constraints:
            devices["constraints"] = constraints
        if self.strategy and request.whole:
            devices["config"] = [{"requests": [CLAIM], "opaque": _sharing(self.strategy)}]
        version, kind, name = template_of(pod.name)
        template = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": pod.namespace},
            "spec": {"spec": {"devices": devices}},
        }
        claim = {"name": CLAIM, "resourceClaimTemplateName": name}
        return PodPatch(claims=(claim,), objects=(template,), isolation=isolation)


def template_of(pod: str) -> tuple[str, str, str]:
    """API version, kind and name of the template beside a pod."""
    return "resource.k8s.io/v1", "ResourceClaimTemplate", f"{pod}-gpu"


def _model(model: str | None) -> list[str]:
    """Every word of the model stands in the product's name as a word: L4 is no L40S."""
    name = f"device.attributes['{DRIVER}'].productName.lowerAscii()"
    found = []
    for word in re.findall("[a-z0-9]+", model or ""):
        # "RTX 4090" is an rtx4090.
        pattern = re.sub("(?<=[a-z])(?=[0-9])", "[ -]?", word)
        found.append(f"{name}.matches('(^|[^a-z0-9]){pattern}([^a-z0-9]|$)')")
    return found


def _sharing(strategy: str) -> dict[str, Any]:
    return {
        "driver": DRIVER,
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": strategy},
        },
    }
