"""How much of an extended resource the nodes have, and have left. Pure, from the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Room:
    """One resource on the nodes that take pods: of each node how much is free, of how much."""

    nodes: tuple[tuple[int, int], ...] = ()

    @property
    def node_free(self) -> int:
        """The most that one node has free."""
        return max((free for free, _ in self.nodes), default=0)

    @property
    def node_whole(self) -> int:
        """The most that one node has at all."""
        return max((whole for _, whole in self.nodes), default=0)

    @property
    def whole(self) -> int:
        return sum(whole for _, whole in self.nodes)

    def pods(self, amount: int) -> tuple[int, int]:
        """How many pods of that amount fit now, and in the empty cluster."""
        return (
            sum(free // amount for free, _ in self.nodes),
            sum(whole // amount for _, whole in self.nodes),
        )


def room(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], resource: str
) -> Room:
    """Count a resource over the nodes that take pods; pods that have ended hold nothing."""
    held: dict[str, int] = {}
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        node = spec.get("nodeName")
        if node and status.get("phase") not in ENDED:
            held[node] = held.get(node, 0) + wanted(pod, resource)
    found: list[tuple[int, int]] = []
    for each in nodes:
        if (each.get("spec") or {}).get("unschedulable"):
            continue
        allocatable = (each.get("status") or {}).get("allocatable") or {}
        amount = _count(allocatable.get(resource))
        if amount:
            name = (each.get("metadata") or {}).get("name", "")
            found.append((max(0, amount - held.get(name, 0)), amount))
    return Room(tuple(found))


def wanted(pod: Mapping[str, Any], resource: str) -> int:
    """How much of a resource a pod asks for: its containers together, or one that runs before."""

    def limit(container: Mapping[str, Any]) -> int:
        return _count(((container.get("resources") or {}).get("limits") or {}).get(resource))

    spec = pod.get("spec") or {}
    together = sum(limit(container) for container in spec.get("containers") or ())
    return max([together, *(limit(container) for container in spec.get("initContainers") or ())])


def _count(quantity: Any) -> int:
    """An extended resource's quantity: a whole number, written as ``2`` or ``2k``."""
    text = str(quantity or 0)
    scale = {"k": 1000, "M": 1000**2}.get(text[-1:], 1)
    digits = text[:-1] if scale > 1 else text
    return int(digits) * scale if digits.isdecimal() else 0
