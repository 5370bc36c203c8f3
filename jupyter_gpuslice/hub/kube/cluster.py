"""What is known of a cluster: which GPUs its nodes have, and which stack shares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...devices.device import Device
from ...devices.models import matches
from ...request import GpuRequest
from .patch import CannotExpressError, NodeRule

PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
"""Labels of GPU Feature Discovery (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery)."""

_SHARED = "-SHARED"
"""What is put behind the product's name on nodes whose GPUs are time-sliced."""


@dataclass(frozen=True, order=True)
class Product:
    """A GPU as nodes are labelled with it. ``memory_mib`` is of one GPU, ``None`` unknown."""

    name: str
    memory_mib: int | None = None

    def is_a(self, model: str) -> bool:
        name = self.name.removesuffix(_SHARED)
        return matches(model, Device("", name, "gpu", self.memory_mib or 0))


@dataclass(frozen=True)
class Cluster:
    """Facts that a hub found out, or that an admin wrote; empty is unknown."""

    resources: frozenset[str] = frozenset()
    """Names in ``status.allocatable`` of some node."""
    products: tuple[Product, ...] = ()
    annotations: frozenset[str] = frozenset()
    """Keys of nodes' annotations: some stacks show themselves there alone."""
    device_classes: frozenset[str] = frozenset()
    """DeviceClasses of resource.k8s.io."""
    api_groups: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        nodes: Iterable[Mapping[str, Any]],
        device_classes: Iterable[str] = (),
        api_groups: Iterable[str] = (),
    ) -> Cluster:
        """From the JSON of nodes, names of DeviceClasses and of API groups."""
        resources: set[str] = set()
        annotations: set[str] = set()
        products: set[Product] = set()
        for node in nodes:
            allocatable = (node.get("status") or {}).get("allocatable") or {}
            resources |= {name for name, amount in allocatable.items() if str(amount) != "0"}
            metadata = node.get("metadata") or {}
            annotations |= (metadata.get("annotations") or {}).keys()
            labels = metadata.get("labels") or {}
            if PRODUCT in labels:
                memory = str(labels.get(MEMORY, ""))
                products.add(Product(labels[PRODUCT], int(memory) if memory.isdecimal() else None))
        return cls(
            frozenset(resources),
            tuple(sorted(products, key=lambda product: (product.name, product.memory_mib or 0))),
            frozenset(annotations),
            frozenset(device_classes),
            frozenset(api_groups),
        )

    def nodes_with(self, model: str | None) -> tuple[NodeRule, ...]:
        """The rule that leaves nodes with a model; none if none is asked for."""
        if model is None:
            return ()
        return (NodeRule(PRODUCT, "In", tuple(sorted({p.name for p in self._of(model)}))),)

    def memory_of(self, request: GpuRequest) -> int:
        """What a request's fraction is in MiB, where all GPUs that could serve it are alike."""
        sizes = {product.memory_mib for product in self._of(request.model)} - {None}
        if not sizes:
            raise CannotExpressError(
                "This cluster shares GPUs by an amount of memory, and how much its GPUs have is "
                "not known to the hub.",
                _several(request, "10GiB"),
            )
        if len(sizes) > 1:
            raise CannotExpressError(
                f"This cluster shares GPUs by an amount of memory, and {request} is not the same "
                "on each of its GPUs.",
                [
                    str(GpuRequest.parse(f"{_model_of(product)}:{request}"))
                    for product in self.products
                    if product.memory_mib and request.model is None
                ]
                or _several(request, "10GiB"),
            )
        (size,) = sizes
        return int(int(size or 0) * (request.fraction or Fraction(1)))

    def _of(self, model: str | None) -> list[Product]:
        found = [product for product in self.products if model is None or product.is_a(model)]
        if model is not None and not found:
            there = ", ".join(product.name for product in self.products) or "unknown to the hub"
            raise CannotExpressError(f"No node has a {model}: the GPUs are {there}.")
        return found


def _several(request: GpuRequest, amount: str) -> list[str]:
    times = f"{request.count}x" if request.count > 1 else ""
    model = f"{request.model}:" if request.model else ""
    return [f"{model}{times}{amount}"]


def _model_of(product: Product) -> str:
    """A model that a person may write for a product: NVIDIA-H100-80GB-HBM3 is h100-80gb-hbm3."""
    name = product.name.removesuffix(_SHARED).lower()
    return name.removeprefix("nvidia-").removeprefix("tesla-")
