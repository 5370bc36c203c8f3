"""The GPUs of a cluster's nodes and what is free of them, from the API's JSON. Pure.

Where the stack names single devices (claims of Dynamic Resource Allocation, HAMi, Volcano, the GPUs
that KAI shares), each is an item; otherwise a node's GPUs of one resource are one item together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from . import granted
from .cluster import MEMORY, PRODUCT
from .granted import Claimed, Key, Manifest, Part, labels_of, name_of, notes_of
from .item import DRIVER, Item, Units, capacity, claimable, counters, published, registered, text
from .quantity import count, mib
from .room import ENDED, Room, room, wanted

HAMI_REGISTER = "hami.io/node-nvidia-register"
VOLCANO_REGISTER = "volcano.sh/node-vgpu-register"
REPLICAS = "nvidia.com/gpu.replicas"
MIG = "nvidia.com/mig-"
_KOORDINATOR = ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory")
_GPUSHARE = "aliyun.com/gpu-mem"
_NVIDIA = ("nvidia.com/gpu", "nvidia.com/gpu.shared")


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
                text(device, "uuid") or "/".join(key),
                mib((capacity(device).get("memory") or {}).get("value")),
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
        found = (self._claims.get((space, name)) for name in names)
        return [claim for claim in found if claim is not None]

    @cached_property
    def _claims(self) -> dict[tuple[Any, Any], Manifest]:
        return {
            (each["metadata"].get("namespace"), name_of(each)): each for each in self.claims or ()
        }

    def parts(self, pod: Manifest) -> tuple[Part, ...]:
        """The parts of devices that a pod was given, as far as its stack tells."""
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        if not node:
            return ()
        return granted.parts(
            pod, self.claims_of(pod), self.devices, self.reserved, self.memory.get(node)
        )

    @cached_property
    def _here(self) -> dict[str, list[Manifest]]:
        """By node, the pods that hold something there."""
        found: dict[str, list[Manifest]] = {}
        for pod in self.holding:
            found.setdefault(pod["spec"]["nodeName"], []).append(pod)
        return found

    @cached_property
    def _held(self) -> dict[str, list[Part]]:
        """By device, the parts that pods have of it."""
        found: dict[str, list[Part]] = {}
        for pod in self.holding:
            if granted.RESERVED not in notes_of(pod):
                for part in self.parts(pod):
                    found.setdefault(part.device, []).append(part)
        return found

    @cached_property
    def _published(self) -> dict[str, list[tuple[Key, Manifest]]]:
        """By node, the devices of its ResourceSlices."""
        found: dict[str, list[tuple[Key, Manifest]]] = {}
        for key, node, device in published(self.slices):
            found.setdefault(node, []).append((key, device))
        return found

    @cached_property
    def _taken(self) -> dict[Key, list[Manifest]]:
        """By device, what claims have of it."""
        found: dict[Key, list[Manifest]] = {}
        for claim in self.claims or ():
            for result in granted.results(claim):
                found.setdefault(granted.key_of(result, "device"), []).append(result)
        return found

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
        here = self._here.get(name_of(node), [])
        notes = notes_of(node)
        for register in (HAMI_REGISTER, VOLCANO_REGISTER):
            if register in notes:
                return self._registered(node, notes[register])
        claims = self._claimable(node)
        if claims:
            return claims
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

    def _registered(self, node: Manifest, register: str) -> list[Item]:
        found = []
        for uuid, name, memory, cores, healthy in registered(register):
            mine = self._held.get(uuid, [])
            found.append(
                Item(
                    uuid,
                    name,
                    name_of(node),
                    memory_mib=memory,
                    free_mib=self._left(memory, _sum(part.memory_mib for part in mine)),
                    compute_percent=cores,
                    free_percent=self._left(cores, _sum(part.compute_percent for part in mine)),
                    each_mib=memory,
                    health="ok" if healthy else "lost",
                )
            )
        return found

    def _left(self, whole: int, used: int | None) -> int | None:
        return None if used is None or not self.everywhere else max(0, whole - used)

    def _claimable(self, node: Manifest) -> list[Item]:
        taken, there = self._taken, self._published.get(name_of(node), [])
        # Devices that draw on the same counters exclude each other: MIG devices and their GPU.
        spent = {each for key, device in there if key in taken for each in counters(key, device)}
        found = []
        for key, device in there:
            sets = counters(key, device)
            mig = text(device, "type") == "mig"
            if key[0] != DRIVER or (mig and sets and key not in taken):
                continue  # a MIG device that could be made is none yet
            uncertain = self.claims is None or (key not in taken and bool(sets & spent))
            found.append(claimable(node, key, device, taken.get(key, []), uncertain))
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
        used = _sum(part.memory_mib for part in self._held.get(uuid, ()))
        left = None if each is None else self._left(each, used)
        return Item(
            uuid, name, node, memory_mib=each, free_mib=left, compute_percent=100,
            free_percent=100 if self.everywhere else None, each_mib=each,
        )  # fmt: skip


def _decimal(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch("[0-9]{1,9}", text) else None


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
