"""How much of an extended resource the nodes have, and have left. Pure, from the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Room:
    """Of one resource: the most that one node has free, the most that one node has at all, and
    how much is free and there in all."""

    node_free: int
    node_whole: int
    free: int
    whole: int


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
    whole: list[int] = []
    free: list[int] = []
    for node_ in nodes:
        if (node_.get("spec") or {}).get("unschedulable"):
            continue
        allocatable = (node_.get("status") or {}).get("allocatable") or {}
        amount = _count(allocatable.get(resource))
        whole.append(amount)
        free.append(max(0, amount - held.get((node_.get("metadata") or {}).get("name", ""), 0)))
    return Room(max(free, default=0), max(whole, default=0), sum(free), sum(whole))


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
