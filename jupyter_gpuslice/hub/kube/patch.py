"""What a request adds to a pod. Values only: no Kubernetes client, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ...request import GpuRequest

SHARE_VARIABLE = "JUPYTER_GPUSLICE_SHARE"
"""For the server in the pod: what part of the devices that it sees is its own."""

_ELSEWHERE = ("mig", "hami", "cgroup")
"""Levels under which the devices that a pod sees are no larger than its slice."""

Manifest = Mapping[str, Any]
"""A Kubernetes object as its JSON."""


class CannotExpressError(Exception):
    """A request that a stack has no words for. ``nearest`` are requests that it has words for."""

    def __init__(self, message: str, nearest: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.nearest = tuple(nearest)

    @property
    def hint(self) -> str:
        return f"Ask for {' or '.join(self.nearest)}." if self.nearest else ""


class ConflictError(Exception):
    """Two patches that want different things of one pod."""


@dataclass(frozen=True)
class NodeRule:
    """A requirement on a node's label: ``operator`` is ``In`` or ``NotIn``."""

    key: str
    operator: str
    values: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "operator": self.operator, "values": list(self.values)}


@dataclass(frozen=True)
class PodPatch:
    """Additions to a pod, and objects to create beside it.

    ``limits`` are extended resources of the notebook's container (integers as text; requests are
    equal to them). ``claims`` are entries of ``spec.resourceClaims``, each used by the container.
    ``objects`` exist before the pod and go with it. ``isolation`` is how the stack enforces the
    slice, a level of the design.
    """

    limits: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    claims: tuple[Manifest, ...] = ()
    objects: tuple[Manifest, ...] = ()
    nodes: tuple[NodeRule, ...] = ()
    isolation: str = ""

    def plus(self, other: PodPatch) -> PodPatch:
        """Both together; :class:`ConflictError` where they differ on one thing."""
        return PodPatch(**{f.name: self._joined(other, f.name) for f in fields(self)})

    def _joined(self, other: PodPatch, name: str) -> Any:
        mine, theirs = getattr(self, name), getattr(other, name)
        if isinstance(mine, tuple):
            return (*mine, *(item for item in theirs if item not in mine))
        if isinstance(mine, str):
            if mine and theirs and mine != theirs:
                raise ConflictError(f"The pod's {name} cannot be both {mine} and {theirs}.")
            return mine or theirs
        for key in mine.keys() & theirs.keys():
            if mine[key] != theirs[key]:
                raise ConflictError(
                    f"{key} in the pod's {name} cannot be both {mine[key]} and {theirs[key]}."
                )
        return {**mine, **theirs}


def share_of(request: GpuRequest, patch: PodPatch) -> dict[str, str]:
    """The environment that tells a server its share, where the pod sees more than that."""
    part = request.fraction is not None or request.memory_mib is not None
    if part and not request.whole and patch.isolation not in _ELSEWHERE:
        return {SHARE_VARIABLE: str(request)}
    return {}
