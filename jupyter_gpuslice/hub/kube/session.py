"""Users' servers as leases: what the cluster granted each of their pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...broker.lease import HOLDING, LIVE, Holder
from ...request import GpuRequest, RequestError
from ..link import session_id
from .fit import named
from .granted import Part, labels_of, notes_of
from .inventory import Facts
from .room import wanted
from .words import Wanted, explain

REQUEST = "gpuslice.jupyter.org/request"
ISOLATION = "gpuslice.jupyter.org/isolation"
HUB = "gpuslice.jupyter.org/hub"
"""What our spawner writes on a pod: the request, how it is enforced, the namespace of its hub."""
_USER = "hub.jupyter.org/username"
_SERVER = "hub.jupyter.org/servername"
"""Annotations of KubeSpawner: names as the hub has them, unescaped."""
QUEUE = "kueue.x-k8s.io/queue-name"
ADMISSION = "kueue.x-k8s.io/admission"


@dataclass(frozen=True)
class Session:
    """A user's server on the cluster; its ``id`` is the pod's uid.

    Times are seconds since the epoch; ``node`` of ``""`` is none yet.
    """

    id: str
    request: str
    state: str
    holder: Holder
    parts: tuple[Part, ...]
    isolation: str
    created: float
    granted_at: float | None
    node: str
    priority: int
    detail: str
    resources: tuple[tuple[str, int], ...] = ()
    """What the pod counts against its node: extended resources, and how many."""
    expires: float | None = None

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def holds(self) -> bool:
        return self.state in HOLDING

    def to_dict(self, position: int | None = None) -> dict[str, Any]:
        """The lease of the REST interface."""
        return {
            "id": self.id,
            "request": self.request,
            "workers": 1,
            "state": self.state,
            "holder": self.holder.to_dict(),
            "slices": [part.to_dict() for part in self.parts],
            "isolation": self.isolation,
            "created": self.created,
            "granted": self.granted_at,
            "expires": self.expires,
            "priority": self.priority,
            "detail": self.detail,
            "position": position,
            "estimate_s": None,
            "used": {"memory_mib": None, "utilization_percent": None},
            "notebook": None,
            "needs_restart": False,
            "node": self.node or None,
            "resources": dict(self.resources),
        }


def session_of(pod: Mapping[str, Any], facts: Facts) -> Session | None:
    """The session of a pod that our spawner made with a GPU; ``None`` for all other pods."""
    notes = notes_of(pod)
    if REQUEST not in notes or _USER not in notes:
        return None
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    state, detail = _state(pod, notes[REQUEST], facts)
    user, server = notes[_USER], notes.get(_SERVER, "")
    live = state in LIVE
    return Session(
        str(meta["uid"]),
        notes[REQUEST],
        state,
        Holder("session", session_id(user, server), user, server),
        facts.parts(pod) if live else (),
        notes.get(ISOLATION, "watch"),
        _time(meta.get("creationTimestamp")) or 0.0,
        _placed(status) if spec.get("nodeName") else None,
        str(spec.get("nodeName") or ""),
        int(spec.get("priority") or 0),
        detail,
        counted(pod),
        _expires(spec, status),
    )


def belongs(pod: Mapping[str, Any], hub: str, namespace: str) -> bool:
    """Whether a pod is one of this hub: ``hub`` is the hub's own namespace, ``namespace`` that of
    its pods, ``""`` where each user has one."""
    there = pod["metadata"].get("namespace", "")
    return notes_of(pod).get(HUB) == hub and namespace in ("", there)


def _state(pod: Mapping[str, Any], request: str, facts: Facts) -> tuple[str, str]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase")
    if phase == "Succeeded":
        return "released", "The server has ended."
    if phase == "Failed":
        return _failed(status)
    if pod["metadata"].get("deletionTimestamp"):
        return "active" if spec.get("nodeName") else "queued", "It is being stopped."
    if phase == "Running":
        return "active", ""
    if spec.get("nodeName"):
        return "granted", "The server is starting."
    return "queued", _waits(pod, request, facts)


def _failed(status: Mapping[str, Any]) -> tuple[str, str]:
    reason = str(status.get("reason") or "")
    if re.search("Node(Lost|Shutdown)|Terminated", reason):
        return "lost", "Its node is gone."
    if reason == "DeadlineExceeded":
        return "expired", "Its time is over."
    if re.search("Evicted|Preempt", reason):
        return "revoked", "The cluster took its place back."
    return "released", "The server has failed."


def _waits(pod: Mapping[str, Any], request: str, facts: Facts) -> str:
    """Why a pod waits, from its own conditions and what is free."""
    gates = [gate.get("name") for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if ADMISSION in gates:
        queue = labels_of(pod).get(QUEUE, "")
        return f"Waiting in the queue {queue}." if queue else "Waiting for its turn."
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or "")
            wait = explain("FailedScheduling", message, _wanted(pod, request, facts))
            return wait.sentence if wait else ""
    return "The cluster has not said yet where it goes."


def _wanted(pod: Mapping[str, Any], request: str, facts: Facts) -> Wanted:
    try:
        text = named(GpuRequest.parse(request))
    except RequestError:
        return Wanted(request)
    resources = counted(pod)
    if len(resources) != 1 or (pod.get("spec") or {}).get("affinity"):
        return Wanted(text)  # on some nodes only, or not by a number alone
    ((resource, amount),) = resources
    return Wanted(text, amount, facts.room(resource))


def counted(pod: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The extended resources that a pod asks for, and how much."""
    names = {
        resource
        for container in (pod.get("spec") or {}).get("containers") or ()
        for resource in (container.get("resources") or {}).get("limits") or ()
        if "/" in resource
    }
    return tuple((name, wanted(pod, name)) for name in sorted(names))


def _placed(status: Mapping[str, Any]) -> float | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            when = _time(condition.get("lastTransitionTime"))
            if when is not None:
                return when
    return _time(status.get("startTime"))


def _expires(spec: Mapping[str, Any], status: Mapping[str, Any]) -> float | None:
    """When the kubelet ends a pod that has a lifetime."""
    began, seconds = _time(status.get("startTime")), spec.get("activeDeadlineSeconds")
    return began + float(seconds) if began is not None and seconds is not None else None


def _time(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
