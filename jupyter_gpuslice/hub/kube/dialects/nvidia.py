"""NVIDIA's device plugin: whole GPUs, MIG devices, and GPUs shared in equal parts.

Source: github.com/NVIDIA/k8s-device-plugin, README ("Shared Access to GPUs", "MIG strategies").
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ....request import GpuRequest
from ..cluster import PRODUCT
from ..patch import CannotExpressError, NodeRule, PodPatch
from .dialect import Dialect, PodContext, SettingError, choice, like

RESOURCE = "nvidia.com/gpu"
STRATEGY = "nvidia.com/mig.strategy"


@dataclass(frozen=True)
class Nvidia(Dialect):
    """``sharing`` and ``replicas`` are those of the plugin's configuration.

    ``renamed``: shared GPUs are ``nvidia.com/gpu.shared`` (``renameByDefault``), so whole ones can
    be asked for beside them. ``mig`` is the plugin's MIG strategy.
    """

    name: ClassVar[str] = "nvidia"

    sharing: str = "none"
    replicas: int = 0
    renamed: bool = True
    mig: str = "none"

    def __post_init__(self) -> None:
        choice("sharing", self.sharing, ("none", "time-slicing", "mps"))
        choice("mig", self.mig, ("none", "single", "mixed"))
        if self.sharing != "none" and not 2 <= self.replicas <= 100:
            raise SettingError("replicas says in how many parts a GPU is shared: 2 to 100.")
        if self.sharing == "mps" and self.mig != "none":
            raise SettingError("The device plugin's MPS sharing and MIG exclude each other.")

    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        if request.kind == "mig":
            return self._mig(request, pod)
        nodes = pod.cluster.nodes_with(request.model)
        if request.whole:
            if self.sharing != "none" and not self.renamed:
                raise CannotExpressError(
                    f"Every GPU of this cluster is shared in {self.replicas} parts, so no whole "
                    "one can be had.",
                    self._part(request),
                )
            if self.mig == "single":
                # There nvidia.com/gpu is a MIG device.
                nodes = (*nodes, NodeRule(STRATEGY, "NotIn", ("single",)))
            limits = {RESOURCE: str(request.count)}
            return PodPatch(limits=limits, nodes=nodes, isolation="watch")
        return self._shared(request, nodes)

    def _part(self, request: GpuRequest) -> list[str]:
        exact = Fraction(1, self.replicas) if self.sharing != "none" else None
        known = exact is not None and (100 % self.replicas == 0 or 1000 % self.replicas == 0)
        return [like(request, f"{float(exact):g}", 1)] if known and exact is not None else []

    def _shared(self, request: GpuRequest, nodes: tuple[NodeRule, ...]) -> PodPatch:
        if self.sharing == "none":
            raise CannotExpressError(
                "This cluster's device plugin gives out whole GPUs only.", [like(request, "1")]
            )
        whole = [like(request, "1")] if self.renamed else []
        if request.memory_mib is not None:
            raise CannotExpressError(
                f"This cluster shares a GPU in {self.replicas} equal parts, not by memory.",
                [*self._part(request), *whole],
            )
        if request.count > 1:
            raise CannotExpressError(
                "The device plugin cannot promise that two parts lie on two GPUs.",
                [*self._part(request), *whole],
            )
        if request.fraction is None or not self._is_part(request.fraction):
            raise CannotExpressError(
                f"This cluster shares a GPU in {self.replicas} equal parts: {request} is none of "
                "them, and several parts are no larger share.",
                [*self._part(request), *whole],
            )
        resource = f"{RESOURCE}.shared" if self.renamed else RESOURCE
        isolation = "mps" if self.sharing == "mps" else "watch"
        return PodPatch(limits={resource: "1"}, nodes=nodes, isolation=isolation)

    def _is_part(self, fraction: Fraction) -> bool:
        """Whether a fraction means one part; a third has no exact decimal form."""
        part = Fraction(1, self.replicas)
        return fraction == part or (
            part.denominator == self.replicas and int(part * 100) == fraction * 100
        )

    def _mig(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        if self.mig == "none":
            raise CannotExpressError(
                "This cluster's GPUs are not partitioned by MIG.",
                [like(request, "1"), *self._part(request)],
            )
        profile = str(request.profile)
        if request.count > 1:
            raise CannotExpressError(
                "A process sees one MIG device only, so one server cannot use several.",
                [like(request, profile, 1)],
            )
        nodes = pod.cluster.nodes_with(request.model)
        if self.mig == "mixed":
            name = profile.replace("+", ".").replace("-", ".")
            limits = {f"nvidia.com/mig-{name}": "1"}
            return PodPatch(limits=limits, nodes=nodes, isolation="mig")
        # With one profile a node its product's name ends in it.
        ending = f"-MIG-{profile.replace('+', '.')}"
        products = tuple(p.name for p in pod.cluster.products if p.name.endswith(ending))
        if not products:
            raise CannotExpressError(
                f"No node is partitioned in {profile}.",
                sorted(
                    {
                        like(request, product.name.partition("-MIG-")[2].replace(".me", "+me"))
                        for product in pod.cluster.products
                        if "-MIG-" in product.name
                    }
                ),
            )
        rule = NodeRule(PRODUCT, "In", products)
        return PodPatch(limits={RESOURCE: "1"}, nodes=(*nodes, rule), isolation="mig")
