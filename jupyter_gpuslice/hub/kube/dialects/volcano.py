"""Volcano's vGPU: HAMi's library under Volcano's scheduler.

Source: github.com/Project-HAMi/volcano-vgpu-device-plugin, README.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....request import GpuRequest
from ..patch import PodPatch
from .dialect import Dialect, PodContext, like, no_mig, percent_of
from .hami import _gigabytes, _type


@dataclass(frozen=True)
class Volcano(Dialect):
    """``queue``: the Volcano queue of the pods."""

    name: ClassVar[str] = "volcano"

    queue: str = ""

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        no_mig(request, "Volcano's vGPU", [like(request, f"{_gigabytes(request)}GB")])
        limits = {"volcano.sh/vgpu-number": str(request.count)}
        if request.fraction is not None:
            percent = str(percent_of(request))
            limits |= {
                "volcano.sh/vgpu-memory-percentage": percent,
                "volcano.sh/vgpu-cores": percent,
            }
        else:
            limits["volcano.sh/vgpu-memory"] = str(request.memory_mib)
            if request.compute_percent is not None:
                limits["volcano.sh/vgpu-cores"] = str(request.compute_percent)
        annotations = {"scheduling.volcano.sh/queue-name": self.queue} if self.queue else {}
        if request.model is not None:
            annotations["nvidia.com/use-gputype"] = _type(request.model, pod)
        return PodPatch(
            limits=limits,
            annotations=annotations,
            scheduler="volcano",
            isolation="watch" if request.whole else "hami",
        )
