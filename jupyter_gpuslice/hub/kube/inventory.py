"""The GPUs of a cluster's nodes and what is free of them, from the API's JSON. Pure.

Where the stack names single devices (claims of Dynamic Resource Allocation, HAMi, Volcano, the GPUs
that KAI shares), each is an item; otherwise a node's GPUs of one resource are one item together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from . import granted
from .cluster import MEMORY, PRODUCT
from .granted import Claimed, Key, Manifest, Part, labels_of, notes_of
from .quantity import count, mib
from .room import ENDED, Room, room, wanted

HAMI_REGISTER = "hami.io/node-nvidia-register"
VOLCANO_REGISTER = "volcano.sh/node-vgpu-register"
REPLICAS = "nvidia.com/gpu.replicas"
MIG = "nvidia.com/mig-"
_KOORDINATOR = ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory")
_GPUSHARE = "aliyun.com/gpu-mem"
_NVIDIA = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
_DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True)
class Units:
    """What a node counts: an extended resource, how many, and how many are free."""

    resource: str
    count: int
    free: int | None

    def to_dict(self) -> dict[str, Any]:
        return {"resource": self.resource, "count": self.count, "free": self.free}


@dataclass(frozen=True)
class Item:
    """A device, or (with ``units``) a node's devices of one resource; ``None`` is unknown.

    ``each_mib`` is the memory of a single one of them. Compute is in percent of one device.
    """

    uuid: str
    name: str
    node: str
    kind: str = "gpu"
    profile: str | None = None
    memory_mib: int | None = None
    free_mib: int | None = None
    compute_percent: int | None = None
    free_percent: int | None = None
    each_mib: int | None = None
    health: str = "unknown"
    cordoned: bool = False
    units: Units | None = None
    shareable: bool = True
    """Whether a part of it can be given."""

    def failed(self) -> Item:
        """The same when it works no more: nothing of it can be had, whatever is held."""
        units = replace(self.units, free=None) if self.units else None
        return replace(self, free_mib=None, free_percent=None, units=units)

    def to_dict(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "kind": self.kind,
            "node": self.node,
            "profile": self.profile,
            "memory_mib": self.memory_mib,
            "free_mib": self.free_mib,
            "compute_percent": self.compute_percent,
            "free_percent": self.free_percent,
            # Only the nodes' own monitoring measures these.
            "used_mib": None,
            "utilization_percent": None,
            "health": self.health,
            "cordoned": "The node takes no new servers." if self.cordoned else None,
            "units": self.units.to_dict() if self.units else None,
        }


@dataclass(frozen=True)
class Facts:
    """What the API showed. ``everywhere``: ``pods`` are those of all namespaces, without which
    nobody knows what is free; ``claims`` of ``None`` could not be read."""

    nodes: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    claims: tuple[Manifest, ...] | None = None
    slices: tuple[Manifest, ...] = ()
    everywhere: bool = True

    @cached_property
    def holding(self) -> list[Manifest]:
        """Pods that are placed and have not ended."""
        return [
            pod
            for pod in self.pods
            if (pod.get("spec") or {}).get("nodeName")
            and (pod.get("status") or {}).get("phase") not in ENDED
        ]

    @cached_property
    def devices(self) -> dict[Key, Claimed]:
        return {
            key: Claimed(
                _text(device, "uuid") or "/".join(key),
                mib((_capacity(device).get("memory") or {}).get("value")),
                bool(device.get("allowMultipleAllocations")),
            )
            for key, _, device in published(self.slices)
        }

    @cached_property
    def reserved(self) -> dict[str, str]:
        """KAI's groups of pods that share a GPU, and that GPU's UUID."""
        return {
            group: notes_of(pod)[granted.RESERVED]
            for pod in self.holding
            if notes_of(pod).get(granted.RESERVED)
            for group in granted.groups(pod)
        }

    @cached_property
    def memory(self) -> dict[str, int]:
        """Of nodes whose label tells it: the memory of one GPU, in MiB."""
        return {
            name_of(node): int(labels_of(node)[MEMORY])
            for node in self.nodes
            if labels_of(node).get(MEMORY, "").isdecimal()
        }

    def room(self, resource: str) -> Room | None:
        """How much of a resource is free, for any pod; ``None`` is unknown."""
        if not self.everywhere:
            return None
        if resource not in self._rooms:
            self._rooms[resource] = room(self.nodes, self.holding, resource)
        return self._rooms[resource]

    @cached_property
    def _rooms(self) -> dict[str, Room]:
        return {}

    def claims_of(self, pod: Manifest) -> list[Manifest]:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        made = {
            each.get("name"): each.get("resourceClaimName")
            for each in status.get("resourceClaimStatuses") or ()
        }
        names = {
            entry.get("resourceClaimName") or made.get(entry.get("name"))
            for entry in spec.get("resourceClaims") or ()
        }
        space = (pod.get("metadata") or {}).get("namespace")
        return [
            claim
            for claim in self.claims or ()
            if claim["metadata"].get("namespace") == space and name_of(claim) in names
        ]

    def parts(self, pod: Manifest) -> tuple[Part, ...]:
        """The parts of devices that a pod was given, as far as its stack tells."""
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        if not node:
            return ()
        return granted.parts(
            pod, self.claims_of(pod), self.devices, self.reserved, self.memory.get(node)
        )

    @cached_property
    def items(self) -> list[Item]:
        """All GPUs, node by node."""
        found = []
        for node in sorted(self.nodes, key=name_of):
            ready = [
                condition.get("status")
                for condition in (node.get("status") or {}).get("conditions") or ()
                if condition.get("type") == "Ready"
            ]
            lost = bool(ready) and ready[0] != "True"
            cordoned = bool((node.get("spec") or {}).get("unschedulable"))
            for item in self._node(node):
                health = item.health if item.health != "unknown" or not ready else "ok"
                item = replace(item, health="lost" if lost else health, cordoned=cordoned)
                found.append(item.failed() if item.health == "lost" else item)
        return found

    def _node(self, node: Manifest) -> list[Item]:
        here = [pod for pod in self.holding if pod["spec"]["nodeName"] == name_of(node)]
        notes = notes_of(node)
        for register in (HAMI_REGISTER, VOLCANO_REGISTER):
            if register in notes:
                return self._registered(node, notes[register], here)
        claimable = self._claimable(node)
        if claimable:
            return claimable
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        if count(allocatable.get(_KOORDINATOR[0])):
            return [self._koordinator(node, allocatable, here)]
        if count(allocatable.get(_GPUSHARE)):
            return [self._gpushare(node, count(allocatable[_GPUSHARE]), here)]
        return [
            item
            for resource in sorted(allocatable)
            if resource in _NVIDIA or resource.startswith(MIG)
            for item in self._counted(node, resource, count(allocatable[resource]), here)
        ]

    def _registered(self, node: Manifest, text: str, here: list[Manifest]) -> list[Item]:
        held: dict[str, list[Part]] = {}
        for pod in here:
            for part in self.parts(pod):
                held.setdefault(part.device, []).append(part)
        found = []
        for uuid, name, memory, cores, healthy in _register(text):
            mine = held.get(uuid, [])
            used = _sum(part.memory_mib for part in mine)
            busy = _sum(part.compute_percent for part in mine)
            found.append(
                Item(
                    uuid,
                    name,
                    name_of(node),
                    memory_mib=memory,
                    free_mib=self._left(memory, used),
                    compute_percent=cores,
                    free_percent=self._left(cores, busy),
                    each_mib=memory,
                    health="ok" if healthy else "lost",
                )
            )
        return found

    def _left(self, whole: int, used: int | None) -> int | None:
        return None if used is None or not self.everywhere else max(0, whole - used)

    def _claimable(self, node: Manifest) -> list[Item]:
        taken: dict[Key, list[Manifest]] = {}
        for claim in self.claims or ():
            for result in granted.results(claim):
                taken.setdefault(granted.key_of(result, "device"), []).append(result)
        there = [each for each in published(self.slices) if each[1] == name_of(node)]
        # Devices that draw on the same counters exclude each other: MIG devices and their GPU.
        spent = {
            (key[1], str(each.get("counterSet")))
            for key, _, device in there
            if key in taken
            for each in device.get("consumesCounters") or ()
        }
        found = []
        for key, _, device in there:
            sets = {
                (key[1], str(each.get("counterSet")))
                for each in device.get("consumesCounters") or ()
            }
            mig = _text(device, "type") == "mig"
            if key[0] != _DRIVER or (mig and sets and key not in taken):
                continue  # a MIG device that could be made is none yet
            uncertain = self.claims is None or (key not in taken and bool(sets & spent))
            found.append(_claimable_item(node, key, device, taken.get(key, []), uncertain))
        return found

    def _koordinator(self, node: Manifest, has: Mapping[str, Any], here: list[Manifest]) -> Item:
        cores, memory = count(has[_KOORDINATOR[0]]), mib(has.get(_KOORDINATOR[1]))
        parts = [part for pod in here for part in self.parts(pod)]
        used = _sum(part.memory_mib for part in parts)
        return Item(
            f"{name_of(node)}/koordinator.sh/gpu",
            labels_of(node).get(PRODUCT, "GPUs"),
            name_of(node),
            memory_mib=memory,
            free_mib=None if memory is None else self._left(memory, used),
            compute_percent=cores,
            free_percent=self._left(cores, _sum(part.compute_percent for part in parts)),
        )

    def _gpushare(self, node: Manifest, has: int, here: list[Manifest]) -> Item:
        free = self._left(has, sum(wanted(pod, _GPUSHARE) for pod in here))
        name = labels_of(node).get(PRODUCT, "GPUs")
        # Whether the plugin counts GiB or MiB is not written on the node.
        units = Units(_GPUSHARE, has, free)
        return Item(f"{name_of(node)}/{_GPUSHARE}", name, name_of(node), units=units)

    def _counted(
        self, node: Manifest, resource: str, has: int, here: list[Manifest]
    ) -> Iterable[Item]:
        if not has:
            return
        where, about = name_of(node), labels_of(node)
        product = about.get(PRODUCT, "GPU")
        each = _decimal(about.get(MEMORY))
        if resource.startswith(MIG):
            profile = resource.removeprefix(MIG)
            each = _decimal(about.get(f"{resource}.memory"))
            name, kind = f"{product} MIG {profile}", "mig"
        else:
            profile = product.partition("-MIG-")[2]
            name, kind = product, "mig" if profile else "gpu"
        shared = [pod for pod in here if notes_of(pod).get(granted.RESERVED)]
        if resource == _NVIDIA[0]:
            has -= len(shared)
            here = [pod for pod in here if pod not in shared]
            for pod in shared:
                yield self._shared(pod, name, where, each)
        free = self._left(has, sum(wanted(pod, resource) for pod in here))
        # With time-slicing and MPS several units are one GPU, and whose memory is whose is unknown.
        sliced = resource == _NVIDIA[1] or product.endswith("-SHARED")
        parts = _decimal(about.get(REPLICAS)) if sliced else 1
        percent = 100 // parts if parts else None
        known = each is not None and not sliced
        if has:
            yield Item(
                f"{where}/{resource}",
                name.removesuffix("-SHARED"),
                where,
                kind,
                profile.replace(".me", "+me") or None,
                memory_mib=has * each if known and each else None,
                free_mib=free * each if known and each and free is not None else None,
                compute_percent=percent and has * percent,
                free_percent=None if percent is None or free is None else free * percent,
                each_mib=each if known else None,
                units=Units(resource, has, free),
                shareable=not sliced and kind == "gpu",
            )

    def _shared(self, pod: Manifest, name: str, node: str, each: int | None) -> Item:
        """A GPU that KAI shares: its reservation pod holds it."""
        uuid = notes_of(pod)[granted.RESERVED]
        used = _sum(
            part.memory_mib
            for other in self.holding
            for part in self.parts(other)
            if part.device == uuid and granted.RESERVED not in notes_of(other)
        )
        left = None if each is None else self._left(each, used)
        return Item(
            uuid, name, node, memory_mib=each, free_mib=left, compute_percent=100,
            free_percent=100 if self.everywhere else None, each_mib=each,
        )  # fmt: skip


def name_of(item: Manifest) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def published(slices: Iterable[Manifest]) -> list[tuple[Key, str, Manifest]]:
    """Devices of ResourceSlices with their keys and nodes; of a pool the newest generation only."""
    newest: dict[tuple[str, str], int] = {}
    for each in slices:
        pool = each["spec"]["pool"]
        key = (each["spec"]["driver"], pool["name"])
        newest[key] = max(newest.get(key, 0), int(pool.get("generation", 0)))
    found: list[tuple[Key, str, Manifest]] = []
    for each in slices:
        spec = each["spec"]
        driver, pool = spec["driver"], spec["pool"]
        if int(pool.get("generation", 0)) == newest[driver, pool["name"]]:
            for device in spec.get("devices") or ():
                # Kubernetes 1.31 and older put all but the name one level deeper.
                flat = {**(device.get("basic") or {}), **device}
                key3 = (driver, pool["name"], flat["name"])
                found.append((key3, str(spec.get("nodeName") or ""), flat))
    return found


def _claimable_item(
    node: Manifest, key: Key, device: Manifest, taken: list[Manifest], uncertain: bool
) -> Item:
    memory = mib((_capacity(device).get("memory") or {}).get("value"))
    shared = bool(device.get("allowMultipleAllocations"))
    held: int | None = 0
    for result in taken:
        capacity = result.get("consumedCapacity") or {}
        part = mib(capacity["memory"]) if "memory" in capacity else memory
        held = None if held is None or part is None else held + part
    whole_taken = bool(taken) and not shared
    kind = "mig" if _text(device, "type") == "mig" else "gpu"
    return Item(
        _text(device, "uuid") or "/".join(key),
        _text(device, "productName") or "GPU",
        name_of(node),
        kind,
        _text(device, "profile") if kind == "mig" else None,
        memory_mib=memory,
        free_mib=None if memory is None or held is None or uncertain else max(0, memory - held),
        compute_percent=100,
        free_percent=None if uncertain else 0 if whole_taken else 100,
        each_mib=memory,
        shareable=shared,
    )


def _capacity(device: Manifest) -> Mapping[str, Any]:
    return device.get("capacity") or {}


def _text(device: Manifest, name: str) -> str:
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{_DRIVER}/{name}") or {}
    return str(value.get("string") or "")


def _register(text: str) -> list[tuple[str, str, int, int, bool]]:
    """UUID, name, memory (MiB), compute (percent) and health, as device plugins register them.

    JSON since HAMi 2.5; before, and in Volcano's, ``UUID,count,MiB,…:`` for each device.
    """
    found = []
    try:
        for each in json.loads(text):
            uuid, memory = str(each["id"]), int(each["devmem"])
            name = str(each.get("type") or "GPU")
            found.append(
                (uuid, name, memory, int(each.get("devcore", 100)), bool(each.get("health")))
            )
        return found
    except (ValueError, KeyError, TypeError):
        found.clear()
    for entry in text.split(":"):
        fields = entry.split(",")
        if len(fields) in (5, 6) and fields[2].isdecimal():
            uuid, _, memory_text, name, healthy = fields[:5]
            found.append((uuid, name, int(memory_text), 100, healthy == "true"))
        elif len(fields) > 6 and fields[2].isdecimal() and fields[3].isdecimal():
            uuid, _, memory_text, cores, name, _, healthy = fields[:7]
            found.append((uuid, name, int(memory_text), int(cores), healthy == "true"))
    return found


def _decimal(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch("[0-9]{1,9}", text) else None


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
