"""How much of what a request counts the nodes have, and have left. Pure, from the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .patch import NodeRule
from .quantity import count

ENDED = ("Succeeded", "Failed")

_UNITS = (
    ("nvidia.com/mig-", "MIG device"),
    ("nvidia.com/gpu.shared", "share of a GPU"),
    ("nvidia.com/", "GPU"),
)


@dataclass(frozen=True)
class Room:
    """Something that is counted (``unit``, in the singular) on the nodes that take pods: of each
    node how much is free, of how much."""

    nodes: tuple[tuple[int, int], ...] = ()
    unit: str = "GPU"

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
    nodes: Iterable[Mapping[str, Any]],
    pods: Iterable[Mapping[str, Any]],
    resource: str,
    rules: Iterable[NodeRule] = (),
) -> Room:
    """Count a resource over the nodes that take pods and obey all ``rules``; pods that have ended
    hold nothing."""
    held: dict[str, int] = {}
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        node = spec.get("nodeName")
        if node and status.get("phase") not in ENDED:
            held[node] = held.get(node, 0) + wanted(pod, resource)
    rules = tuple(rules)
    found: list[tuple[int, int]] = []
    for each in nodes:
        if (each.get("spec") or {}).get("unschedulable") or not obeys(each, rules):
            continue
        allocatable = (each.get("status") or {}).get("allocatable") or {}
        amount = count(allocatable.get(resource))
        if amount:
            name = (each.get("metadata") or {}).get("name", "")
            found.append((max(0, amount - held.get(name, 0)), amount))
    unit = next((unit for start, unit in _UNITS if resource.startswith(start)), "unit of GPUs")
    return Room(tuple(found), unit)


def obeys(node: Mapping[str, Any], rules: Iterable[NodeRule]) -> bool:
    """Whether a node's labels are as all rules want them."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return all((labels.get(rule.key) in rule.values) == (rule.operator == "In") for rule in rules)


def wanted(pod: Mapping[str, Any], resource: str) -> int:
    """How much of a resource a pod asks for: its containers together, or one that runs before."""

    def limit(container: Mapping[str, Any]) -> int:
        return count(((container.get("resources") or {}).get("limits") or {}).get(resource))

    spec = pod.get("spec") or {}
    together = sum(limit(container) for container in spec.get("containers") or ())
    return max([together, *(limit(container) for container in spec.get("initContainers") or ())])
