"""Aliyun's gpushare: an amount of memory on one GPU, enforced by nobody.

Source: github.com/AliyunContainerService/gpushare-scheduler-extender, docs/userguide.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....request import GpuRequest
from ..patch import CannotExpressError, PodPatch
from .dialect import Dialect, PodContext, choice, like, no_compute, no_mig


@dataclass(frozen=True)
class GpuShare(Dialect):
    """``unit``: in what the device plugin counts memory (``--memory-unit``)."""

    name: ClassVar[str] = "gpushare"

    unit: str = "GiB"

    def __post_init__(self) -> None:
        choice("unit", self.unit, ("GiB", "MiB"))

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        no_mig(request, "gpushare", [like(request, "10GiB", 1)])
        no_compute(request, "gpushare")
        if request.count > 1:
            one = GpuRequest(request.kind, 1, request.fraction, request.memory_mib)
            raise CannotExpressError(
                "gpushare gives a pod memory of one GPU.", [like(request, str(one), 1)]
            )
        memory = request.memory_mib or pod.cluster.memory_of(request)
        amount = memory if self.unit == "MiB" else memory // 1024
        if amount < 1:
            raise CannotExpressError(
                "gpushare counts memory in whole GiB here.", [like(request, "1GiB")]
            )
        return PodPatch(
            limits={"aliyun.com/gpu-mem": str(amount)},
            nodes=pod.cluster.nodes_with(request.model),
            isolation="watch",
        )
