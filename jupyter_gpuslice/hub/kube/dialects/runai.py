"""Run:ai: fractions under its own scheduler (2), on the driver's memory limits since 3.

Sources: docs.run.ai (GPU fractions, dynamic fractions), run-ai-docs.nvidia.com.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....request import GpuRequest
from ..patch import PodPatch
from .dialect import Dialect, PodContext, SettingError, choice, no_compute
from .kai import fraction_annotations, nv_fraction, undivided


@dataclass(frozen=True)
class RunAi(Dialect):
    """``project``: the Run:ai project of the pods. ``version``: 2 or 3."""

    name: ClassVar[str] = "runai"

    project: str = ""
    version: int = 3
    compute: str = "time-slicing"

    def __post_init__(self) -> None:
        if self.version not in (2, 3):
            raise SettingError(f"version is Run:ai's own, 2 or 3, not {self.version!r}.")
        choice("compute", self.compute, ("time-slicing", "sm-sharing"))

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        base = PodPatch(
            labels={"project": self.project} if self.project else {},
            scheduler="runai-scheduler",
            nodes=pod.cluster.nodes_with(request.model),
        )
        if request.kind == "mig" or request.whole:
            return base.plus(undivided(request))
        no_compute(request, "Run:ai")
        if self.version == 2:
            # Its own engine enforces memory; it is none of the levels that a node has by itself.
            return base.plus(fraction_annotations(request, pod, "runai"))
        return base.plus(nv_fraction(request, pod, self.compute))
