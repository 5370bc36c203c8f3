"""Why a pod waits, in one sentence and one action, from what schedulers say.

Words of: kube-scheduler (FailedScheduling), Dynamic Resource Allocation, HAMi and Volcano (reason
codes), KAI and Run:ai, Kueue (conditions of a Workload), cluster-autoscaler, ResourceQuota, and the
kubelet's words about images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .room import Room


@dataclass(frozen=True)
class Wait:
    """``reason`` is a stable word; ``never``: waiting does not help."""

    reason: str
    sentence: str
    action: str = ""
    never: bool = False

    def __str__(self) -> str:
        return f"{self.sentence} {self.action}".strip()


@dataclass(frozen=True)
class Wanted:
    """What the pod is for: the request in words, how many GPUs (or what else is counted) it wants,
    and the room for them if known; ``part`` is a request of less than whole GPUs."""

    text: str
    gpus: int = 1
    room: Room | None = None
    part: bool = False


def explain(reason: str, message: str, wanted: Wanted) -> Wait | None:
    """One event (or condition) as words; ``None`` for what says nothing of a wait."""
    for pattern, words in _WHOLE:
        match = pattern.search(message)
        if match:
            return words(match, wanted)
    if reason in _REASONS:
        return _REASONS[reason](message)
    if reason in ("FailedScheduling", "Unschedulable", "FilteringFailed", "PodScheduled"):
        return _nodes(message, wanted)
    return None


def latest(events: Sequence[tuple[str, str]], wanted: Wanted) -> Wait | None:
    """The last of several (reason, message) that says something."""
    found = (explain(reason, message, wanted) for reason, message in reversed(events))
    return next((wait for wait in found if wait is not None), None)


def _several(count: int, unit: str = "GPU") -> str:
    if count == 1:
        return f"1 {unit}"
    noun, of, rest = unit.partition(" of a ")
    return f"{count} {noun}s of {rest}s" if of else f"{count} {unit}s"


def too_few(wanted: Wanted) -> Wait:
    """GPUs are taken, or never were so many on one node."""
    room = wanted.room
    if room is None:
        return Wait(
            "insufficient_devices",
            f"No node has room for {wanted.text} now.",
            "It starts by itself when somebody gives a GPU back.",
        )
    verb = "is" if wanted.gpus == 1 else "are"
    asked = _several(wanted.gpus, room.unit)
    if room.node_whole < wanted.gpus:
        none = "Choose a profile without a GPU, or ask the cluster's administrators."
        if wanted.part and not room.node_whole:
            sentence = f"No GPU of this cluster could ever hold {wanted.text}."
            return Wait("insufficient_devices", sentence, "Choose less of a GPU.", never=True)
        most = _several(room.node_whole, room.unit) if room.node_whole else "none"
        return Wait(
            "insufficient_devices",
            f"{asked} {verb} wanted, and no node has more than {most}.",
            f"Choose a profile with at most {most}." if room.node_whole else none,
            never=True,
        )
    if not room.node_free:
        return Wait(
            "insufficient_devices",
            f"No GPU of the cluster has room for {wanted.text} now."
            if wanted.part
            else f"All {_several(room.whole, room.unit)} of the cluster are in use.",
            "It starts by itself when somebody gives one back.",
        )
    return Wait(
        "insufficient_devices",
        f"{asked} {verb} wanted, and the node with the most free ones has {room.node_free}.",
        f"A profile with {_several(room.node_free, room.unit)} would start now; this one waits "
        "for more.",
    )


_NODES = re.compile(r"(?P<count>\d+) (?P<what>(?:[^,.{]|\{[^}]*\}|\.(?=\S))+)")

_KINDS: tuple[tuple[str, str], ...] = (
    ("gpu", r"Insufficient \S*(gpu|mig-|vgpu)|cannot allocate all claims|resources: GPUs"),
    ("gpu", r"Card(TimeSlicingExhausted|InsufficientMemory|InsufficientCore|ComputeUnits)"),
    ("gpu", r"NodeInsufficientDevice|ExclusiveDeviceAllocateConflict|CardMigTopologyInfeasible"),
    ("model", r"Card(Type|Uuid)Mismatch|ModeNotFit|node affinity|node selector|affinity/selector"),
    ("health", r"CardNotHealth|CardCordoned"),
    ("quota", r"ResourceQuotaNotFit"),
    ("cpu", r"Insufficient cpu|resources: CPU"),
    ("memory", r"Insufficient memory|resources: [Mm]emory"),
    ("taint", r"untolerated taint"),
    ("cordoned", r"were unschedulable"),
    ("volume", r"volume node affinity|volume zone|persistent volume|PersistentVolumeClaim"),
)


def _nodes(message: str, wanted: Wanted) -> Wait:
    """``0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had …``"""
    said = message.partition("preemption:")[0]
    _, colon, reasons = said.partition(":")
    counts: dict[str, int] = {}
    for match in _NODES.finditer(reasons if colon else said):
        for kind, pattern in _KINDS:
            if re.search(pattern, match["what"]):
                counts[kind] = counts.get(kind, 0) + int(match["count"])
                break
    if not counts:
        # HAMi writes a reason code without a number as well.
        for kind, pattern in _KINDS:
            if re.search(pattern, said):
                counts[kind] = 0
                break
    if "gpu" in counts:
        wait = too_few(wanted)
        full = counts["gpu"]
        if wanted.room is None and full:
            nodes = "node has" if full == 1 else "nodes have"
            sentence = f"{full} {nodes} no room for {wanted.text} now."
            return Wait(wait.reason, sentence, wait.action)
        return wait
    for kind, words in _OTHER.items():
        if kind in counts:
            return Wait(kind, words[0], words[1])
    shown = " ".join(message.split())
    return Wait("waiting", f"The scheduler says: {shown[:300].rstrip('.')}.")


_OTHER: dict[str, tuple[str, str]] = {
    "quota": (
        "The quota of this namespace is used up.",
        "Stop a server of yours that you do not need, or ask the administrators for more.",
    ),
    "health": (
        "The GPUs that could serve this are out of order or set aside.",
        "Choose another profile, or tell the cluster's administrators.",
    ),
    "model": (
        "No node that is free has the kind of GPU that was chosen.",
        "Choose another kind, or wait for a node that has it.",
    ),
    "cpu": (
        "The GPUs are there, but the nodes have too little CPU free.",
        "It starts when others stop; a profile with less CPU may start now.",
    ),
    "memory": (
        "The GPUs are there, but the nodes have too little main memory free.",
        "It starts when others stop; a profile with less memory may start now.",
    ),
    "volume": (
        "Your storage is on nodes that are full.",
        "Wait, or tell the cluster's administrators: GPUs elsewhere cannot reach it.",
    ),
    "taint": (
        "The nodes with room are reserved for others.",
        "Tell the cluster's administrators: the profile does not tolerate the nodes' taints.",
    ),
    "cordoned": (
        "The nodes with room take no new servers, for maintenance.",
        "Wait until the maintenance is over.",
    ),
}


def _quota(match: re.Match[str], wanted: Wanted) -> Wait:
    resource = match["resource"]
    if not re.search("gpu|vgpu|mig-", resource):
        what = resource.removeprefix("requests.").removeprefix("limits.")
        return Wait(
            "over_quota",
            f"The quota of {what} of this namespace is used up.",
            "Stop a server of yours that you do not need, or ask the administrators for more.",
        )
    return Wait(
        "over_quota",
        f"The namespace may hold {match['limited']} and holds {match['used']} of "
        f"{resource.removeprefix('requests.').removeprefix('limits.')}.",
        "Stop a server that you do not need, or choose less.",
    )


def _kueue_more(match: re.Match[str], wanted: Wanted) -> Wait:
    return Wait(
        "over_quota",
        f"The queue's quota of {match['resource']} is in use: {match['more']} more would have to "
        "be given back.",
        "It starts by itself in its turn.",
    )


def _kueue_never(match: re.Match[str], wanted: Wanted) -> Wait:
    return Wait(
        "over_quota",
        f"{match['asked']} of {match['resource']} are wanted, and the whole queue has "
        f"{match['most']}.",
        "Choose less, or ask the administrators for another queue.",
        never=True,
    )


def _kai_limit(match: re.Match[str], wanted: Wanted) -> Wait:
    return Wait(
        "over_quota",
        f"The queue may hold {match['limit']} GPUs and holds {match['used']}.",
        "It starts when others of the queue stop.",
    )


def _gang(match: re.Match[str], wanted: Wanted) -> Wait:
    return Wait(
        "gang",
        f"There is room for {match['found']} of the group's {match['needed']} servers, and they "
        "start together or not at all.",
        f"A group of {match['found']} would start now; this one waits for more.",
    )


_WHOLE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Wanted], Wait]], ...] = (
    (
        re.compile(r"found for (?P<found>\d+) pods while (?P<needed>\d+) are required for gang"),
        _gang,
    ),
    (
        re.compile(
            r"exceeded quota: .*requested: (?P<resource>[^=]+)=[^,]*, "
            r"used: [^=]+=(?P<used>[^,]+), limited: [^=]+=(?P<limited>[^,\s]+)"
        ),
        _quota,
    ),
    (
        re.compile(
            r"insufficient quota for (?P<resource>\S+) in flavor \S+, request > maximum capacity "
            r"\((?P<asked>\d+) > (?P<most>\d+)\)(?!.*insufficient unused quota)"
        ),
        _kueue_never,
    ),
    (
        re.compile(
            r"insufficient unused quota for (?P<resource>\S*(?:gpu|mig-)\S*) in flavor \S+, "
            r"(?P<more>\d+) more needed"
        ),
        _kueue_more,
    ),
    (
        re.compile(
            r"allowable limit of GPUs\. Limit is (?P<limit>[\d.]+) GPUs, "
            r"currently (?P<used>[\d.]+) GPUs"
        ),
        _kai_limit,
    ),
)


def _said(reason: str, sentence: str, action: str = "") -> Callable[[str], Wait]:
    return lambda message: Wait(reason, sentence, action)


_REASONS: dict[str, Callable[[str], Wait]] = {
    "TriggeredScaleUp": _said(
        "scale_up", "A new node is being started for this server.", "That takes a few minutes."
    ),
    "NotTriggerScaleUp": _said(
        "no_scale_up",
        "No node has room now, and the cluster does not grow for this choice.",
        "It starts when others stop; choose less to start sooner.",
    ),
    "Preempted": _said(
        "preempted",
        "Somebody with a higher priority took this server's place.",
        "Start it again: it waits for its turn.",
    ),
    "Pulling": _said("image", "The node is fetching the server's image."),
    "Failed": lambda message: _image(message),
    "BackOff": lambda message: _image(message),
    "ErrImagePull": lambda message: _image(message),
    "ImagePullBackOff": lambda message: _image(message),
    "UnexpectedAdmissionError": _said(
        "admission",
        "The node that was chosen could not give the GPU after all.",
        "Start the server again; if it happens again, tell the cluster's administrators.",
    ),
    "FailedResourceClaimCreation": _said(
        "claim", "The cluster could not make the claim for the GPU.", "Tell its administrators."
    ),
}


def _image(message: str) -> Wait:
    if "image" not in message.lower():
        return Wait("failed", f"The node says: {' '.join(message.split())[:300].rstrip('.')}.")
    return Wait(
        "image",
        "The server's image cannot be fetched.",
        "Tell the hub's administrators which profile this is.",
    )
