"""Gangs: pods that start together or not at all, in the words of who schedules them.

Sources: kueue.sigs.k8s.io "Run A Group of Plain Pods"; volcano.sh "PodGroup";
github.com/kai-scheduler/KAI-Scheduler docs/batch ("External PodGroups") and docs/topology;
github.com/kubernetes-sigs/scheduler-plugins pkg/coscheduling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .patch import PodPatch

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Gang:
    """``size`` pods of one ``namespace`` under one ``name`` (a DNS label).

    ``queue`` is the scheduler's queue where it has one; ``topology`` a node label within whose
    value the pods should be near each other (``topology.kubernetes.io/rack``, say), ``tree`` the
    scheduler's name for the cluster's topology where it wants one.
    """

    name: str
    size: int
    namespace: str = "default"
    queue: str = ""
    topology: str = ""
    tree: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name for a gang: small letters, digits and '-'.")
        if not 1 <= self.size <= 1024:
            raise ValueError(f"A gang has 1 to 1024 pods, not {self.size}.")


def kueue(gang: Gang) -> PodPatch:
    """A pod group of plain pods; the queue is Kueue's LocalQueue."""
    annotations = {"kueue.x-k8s.io/pod-group-total-count": str(gang.size)}
    if gang.topology:
        annotations["kueue.x-k8s.io/podset-preferred-topology"] = gang.topology
    labels = {"kueue.x-k8s.io/pod-group-name": gang.name}
    if gang.queue:
        labels["kueue.x-k8s.io/queue-name"] = gang.queue
    return PodPatch(labels=labels, annotations=annotations)


def volcano(gang: Gang) -> PodPatch:
    """A PodGroup whose members name it in an annotation."""
    spec: dict[str, Any] = {"minMember": gang.size}
    if gang.queue:
        spec["queue"] = gang.queue
    if gang.topology:
        spec["networkTopology"] = {"mode": "soft", "highestTierAllowed": 1}
    group = _object("scheduling.volcano.sh/v1beta1", "PodGroup", gang, spec)
    return PodPatch(
        annotations={"scheduling.k8s.io/group-name": gang.name},
        scheduler="volcano",
        objects=(group,),
    )


def kai(gang: Gang) -> PodPatch:
    """A PodGroup of the hub's own: pods without an owner would each be a group by themselves."""
    spec: dict[str, Any] = {"minMember": gang.size, "queue": gang.queue or "default"}
    # The group's priority counts, not the pods': notebooks are not preempted.
    spec["priorityClassName"] = "build"
    if gang.topology and gang.tree:
        spec["topologyConstraint"] = {
            "topology": gang.tree,
            "preferredTopologyLevel": gang.topology,
        }
    group = _object("scheduling.run.ai/v2alpha2", "PodGroup", gang, spec)
    return PodPatch(
        annotations={"pod-group-name": gang.name, "kai.scheduler/skip-podgrouper": "true"},
        scheduler="kai-scheduler",
        objects=(group,),
    )


def scheduler_plugins(gang: Gang) -> PodPatch:
    """Coscheduling of scheduler-plugins; which scheduler runs it is the dialect's to say."""
    group = _object("scheduling.x-k8s.io/v1alpha1", "PodGroup", gang, {"minMember": gang.size})
    return PodPatch(labels={"scheduling.x-k8s.io/pod-group": gang.name}, objects=(group,))


def _object(version: str, kind: str, gang: Gang, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": gang.name, "namespace": gang.namespace},
        "spec": dict(spec),
    }


GANGS: dict[str, Callable[[Gang], PodPatch]] = {
    "kueue": kueue,
    "volcano": volcano,
    "kai": kai,
    "scheduler-plugins": scheduler_plugins,
}
"""Who starts gangs, by name."""
