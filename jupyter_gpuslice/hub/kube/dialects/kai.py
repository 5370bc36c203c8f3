"""KAI: NVIDIA's scheduler with fractions of GPUs, named by annotations.

Sources: github.com/kai-scheduler/KAI-Scheduler, docs/gpu-sharing and docs/priority;
github.com/kai-scheduler/gpu-fractioning (NvFractions, enforced by the driver).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ....request import GpuRequest
from ..patch import CannotExpressError, PodPatch
from .dialect import Dialect, PodContext, choice, like, no_compute

LEVELS = {"NonMemoryEnforced": "watch", "HamiCore": "hami", "NvFractions": "cgroup"}


@dataclass(frozen=True)
class Kai(Dialect):
    """``queue``: the KAI queue of the pods. ``sharing`` is the cluster's ``gpuSharingMode``.

    ``priority``: a bare pod would be ``train``, which is preempted; notebooks are ``build``.
    ``compute``: how slices share a GPU's compute under NvFractions.
    """

    name: ClassVar[str] = "kai"

    queue: str = "default"
    sharing: str = "NonMemoryEnforced"
    priority: str = "build"
    compute: str = "time-slicing"

    def __post_init__(self) -> None:
        choice("sharing", self.sharing, ("Disabled", *LEVELS))
        choice("compute", self.compute, ("time-slicing", "sm-sharing"))

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        base = PodPatch(
            labels={"kai.scheduler/queue": self.queue, "priorityClassName": self.priority},
            scheduler="kai-scheduler",
            nodes=pod.cluster.nodes_with(request.model),
        )
        if request.kind == "mig" or request.whole:
            return base.plus(undivided(request))
        if self.sharing == "Disabled":
            raise CannotExpressError("GPUs are not shared in this cluster.", [like(request, "1")])
        no_compute(request, "KAI")
        level = LEVELS[self.sharing]
        if self.sharing == "NvFractions":
            return base.plus(nv_fraction(request, pod, self.compute))
        return base.plus(fraction_annotations(request, pod, level))


def undivided(request: GpuRequest) -> PodPatch:
    """Whole GPUs and MIG devices are extended resources here, too."""
    if request.kind != "mig":
        return PodPatch(limits={"nvidia.com/gpu": str(request.count)}, isolation="watch")
    if request.count > 1:
        raise CannotExpressError(
            "A process sees one MIG device only, so one server cannot use several.",
            [like(request, str(request.profile), 1)],
        )
    name = str(request.profile).replace("+", ".").replace("-", ".")
    return PodPatch(limits={f"nvidia.com/mig-{name}": "1"}, isolation="mig")


def fraction_annotations(request: GpuRequest, pod: PodContext, isolation: str) -> PodPatch:
    """``gpu-fraction`` or ``gpu-memory`` (MiB), of one GPU or of several."""
    annotations = {"gpu-fraction-container-name": pod.container}
    if request.fraction is not None:
        hundredths = Fraction(int(request.fraction * 100), 100)
        annotations["gpu-fraction"] = f"{float(hundredths):.2f}"
    else:
        annotations["gpu-memory"] = str(request.memory_mib)
    if request.count > 1:
        annotations["gpu-fraction-num-devices"] = str(request.count)
    return PodPatch(annotations=annotations, isolation=isolation)


def nv_fraction(request: GpuRequest, pod: PodContext, compute: str) -> PodPatch:
    """Memory that the driver enforces (r615 or newer), of one GPU."""
    if request.count > 1:
        raise CannotExpressError(
            "NvFractions gives a container a part of one GPU.",
            [like(request, _unit(request), 1), like(request, "1")],
        )
    memory = request.memory_mib or pod.cluster.memory_of(request)
    key = f"nvidia.com/container.{pod.container}"
    return PodPatch(
        annotations={
            f"{key}.gpu-memory.request": f"{memory}Mi",
            f"{key}.gpu-memory.limit": f"{memory}Mi",
            f"{key}.gpu-compute.mode": compute,
        },
        isolation="cgroup",
    )


def _unit(request: GpuRequest) -> str:
    one = GpuRequest(request.kind, 1, request.fraction, request.memory_mib)
    return str(one)
