"""HAMi: memory and compute of a GPU, limited by a library in the container.

Sources: github.com/Project-HAMi/HAMi, docs (resource names ``nvidia.com/gpumem``,
``gpumem-percentage``, ``gpucores``; annotations ``nvidia.com/use-gputype``,
``hami.io/gpu-scheduler-policy``). Its webhook sets the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....request import GpuRequest
from ..patch import PodPatch
from .dialect import Dialect, PodContext, like, no_mig, percent_of


@dataclass(frozen=True)
class Hami(Dialect):
    """``scheduler``: only where HAMi's webhook is not in use."""

    name: ClassVar[str] = "hami"

    scheduler: str = ""

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        no_mig(
            request,
            "HAMi, which chooses the MIG instance by an amount of memory,",
            [like(request, f"{_gigabytes(request)}GB")],
        )
        limits = {"nvidia.com/gpu": str(request.count)}
        if request.fraction is not None:
            percent = str(percent_of(request))
            limits |= {"nvidia.com/gpumem-percentage": percent, "nvidia.com/gpucores": percent}
        else:
            limits["nvidia.com/gpumem"] = str(request.memory_mib)
            if request.compute_percent is not None:
                limits["nvidia.com/gpucores"] = str(request.compute_percent)
        annotations = {}
        if request.model is not None:
            annotations["nvidia.com/use-gputype"] = _type(request.model, pod)
        if request.whole and request.count > 1:
            annotations["hami.io/gpu-scheduler-policy"] = "topology-aware"
        return PodPatch(
            limits=limits,
            annotations=annotations,
            scheduler=self.scheduler,
            isolation="watch" if request.whole else "hami",
        )


def _type(model: str, pod: PodContext) -> str:
    """The GPU types with which HAMi compares: part of the card's name, commas between several."""
    if not pod.cluster.products:
        return model.upper()
    (rule,) = pod.cluster.nodes_with(model)
    return ",".join(value.replace("-", " ") for value in rule.values)


def _gigabytes(request: GpuRequest) -> str:
    """The memory in a MIG profile's name: an instance holds a little less than that many GiB."""
    return str(request.profile).partition(".")[2].partition("gb")[0]
