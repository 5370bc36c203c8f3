"""Devices as nodes have them: single ones, or those of one resource together. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import granted
from .granted import Key, Manifest
from .quantity import mib

DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver for Dynamic Resource Allocation."""


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


def claimable(
    node: Manifest, key: Key, device: Manifest, taken: list[Manifest], uncertain: bool
) -> Item:
    memory = mib((capacity(device).get("memory") or {}).get("value"))
    shared = bool(device.get("allowMultipleAllocations"))
    held: int | None = 0
    for result in taken:
        consumed = result.get("consumedCapacity") or {}
        part = mib(consumed["memory"]) if "memory" in consumed else memory
        held = None if held is None or part is None else held + part
    whole_taken = bool(taken) and not shared
    kind = "mig" if text(device, "type") == "mig" else "gpu"
    return Item(
        text(device, "uuid") or "/".join(key),
        text(device, "productName") or "GPU",
        granted.name_of(node),
        kind,
        text(device, "profile") if kind == "mig" else None,
        memory_mib=memory,
        free_mib=None if memory is None or held is None or uncertain else max(0, memory - held),
        compute_percent=100,
        free_percent=None if uncertain else 0 if whole_taken else 100,
        each_mib=memory,
        shareable=shared,
    )


def counters(key: Key, device: Manifest) -> set[tuple[str, str]]:
    """The counters of its pool that a partitionable device draws on (KEP-4815)."""
    return {(key[1], str(each.get("counterSet"))) for each in device.get("consumesCounters") or ()}


def capacity(device: Manifest) -> Mapping[str, Any]:
    return device.get("capacity") or {}


def text(device: Manifest, name: str) -> str:
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{DRIVER}/{name}") or {}
    return str(value.get("string") or "")


def registered(register: str) -> list[tuple[str, str, int, int, bool]]:
    """UUID, name, memory (MiB), compute (percent) and health, as device plugins register them.

    JSON since HAMi 2.5; before, and in Volcano's, ``UUID,count,MiB,…:`` for each device.
    """
    found = []
    try:
        for each in json.loads(register):
            uuid, memory = str(each["id"]), int(each["devmem"])
            name = str(each.get("type") or "GPU")
            found.append(
                (uuid, name, memory, int(each.get("devcore", 100)), bool(each.get("health")))
            )
        return found
    except (ValueError, KeyError, TypeError):
        found.clear()
    for entry in register.split(":"):
        fields = entry.split(",")
        if len(fields) in (5, 6) and fields[2].isdecimal():
            uuid, _, memory_text, name, healthy = fields[:5]
            found.append((uuid, name, int(memory_text), 100, healthy == "true"))
        elif len(fields) > 6 and fields[2].isdecimal() and fields[3].isdecimal():
            uuid, _, memory_text, cores, name, _, healthy = fields[:7]
            found.append((uuid, name, int(memory_text), int(cores), healthy == "true"))
    return found
