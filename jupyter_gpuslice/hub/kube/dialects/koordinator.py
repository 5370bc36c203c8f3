"""Koordinator: compute and memory of GPUs, by percent or bytes.

Source: koordinator.sh/docs/user-manuals/device-scheduling-gpu-share (amounts are those of all
``gpu.shared`` devices together).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....request import GpuRequest
from ..patch import PodPatch
from .dialect import Dialect, PodContext, choice, like, no_mig, percent_of

PREFIX = "koordinator.sh"


@dataclass(frozen=True)
class Koordinator(Dialect):
    """``provider``: what enforces the slices, ``HAMi-core`` or nothing."""

    name: ClassVar[str] = "koordinator"

    provider: str = "HAMi-core"

    def __post_init__(self) -> None:
        choice("provider", self.provider, ("", "HAMi-core"))

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        no_mig(request, "Koordinator", [like(request, "1", 1)])
        count = request.count
        limits = {f"{PREFIX}/gpu.shared": str(count)}
        if request.fraction is not None:
            percent = percent_of(request)
            limits |= {
                f"{PREFIX}/gpu-core": str(count * percent),
                f"{PREFIX}/gpu-memory-ratio": str(count * percent),
            }
        else:
            # Without a share of compute only memory counts (since Koordinator 1.3).
            limits[f"{PREFIX}/gpu-memory"] = f"{count * (request.memory_mib or 0)}Mi"
            if request.compute_percent is not None:
                limits[f"{PREFIX}/gpu-core"] = str(count * request.compute_percent)
        shared = not request.whole
        label = {f"{PREFIX}/gpu-isolation-provider": self.provider}
        return PodPatch(
            limits=limits,
            labels=label if shared and self.provider else {},
            scheduler="koord-scheduler",
            nodes=pod.cluster.nodes_with(request.model),
            isolation="hami" if shared and self.provider else "watch",
        )
