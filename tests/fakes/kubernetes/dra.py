"""Devices for claims: selectors, counts, shared capacity (KEP-4381, KEP-5075)."""

from __future__ import annotations

import re
import uuid
from decimal import Decimal
from itertools import combinations
from typing import Any

from .kinds import CLAIMS, CLASSES, SLICES
from .rules import quantity
from .status import StatusError, bad_request
from .store import Store

_ATTRIBUTE = r"device\.attributes\['([\w./-]+)'\]\.(\w+)"


def allocate(
    store: Store, claims: list[dict[str, Any]], node: dict[str, Any]
) -> list[dict[str, Any]] | None:
    """An allocation for each claim, all on this node; ``None`` if that cannot be."""
    devices = _devices(store, node["metadata"]["name"])
    taken = _taken(store)
    found = []
    for claim in claims:
        there = (claim.get("status") or {}).get("allocation")
        if there:
            found.append(there)
            continue
        results = _claim(store, claim, devices, taken)
        if results is None:
            return None
        found.append({"devices": {"results": results}})
    return found


def _devices(store: Store, node: str) -> list[dict[str, Any]]:
    found = []
    for slice_ in store.all(SLICES):
        spec = slice_["spec"]
        if spec.get("nodeName") == node or spec.get("allNodes"):
            for device in spec["devices"]:
                found.append({**device, "driver": spec["driver"], "pool": spec["pool"]["name"]})
    return found


def _id(device: dict[str, Any], name: str) -> tuple[str, str, str]:
    return device["driver"], device["pool"], device[name]


def _taken(store: Store) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for claim in store.all(CLAIMS):
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            found.setdefault(_id(result, "device"), []).append(result)
    return found


def _claim(
    store: Store,
    claim: dict[str, Any],
    devices: list[dict[str, Any]],
    taken: dict[tuple[str, str, str], list[dict[str, Any]]],
) -> list[dict[str, Any]] | None:
    wishes = claim["spec"]["devices"]
    results: list[dict[str, Any]] = []
    for request in wishes["requests"]:
        exactly = request["exactly"]
        try:
            device_class = store.get(CLASSES, "", exactly["deviceClassName"])
        except StatusError:
            return None
        selectors = [
            *(device_class["spec"].get("selectors") or ()),
            *(exactly.get("selectors") or ()),
        ]
        capacity = (exactly.get("capacity") or {}).get("requests") or {}
        fitting = [
            device
            for device in devices
            if all(cel(each["cel"]["expression"], device) for each in selectors)
            and _free(device, capacity, taken.get(_id(device, "name"), []))
        ]
        rules = [
            rule
            for rule in wishes.get("constraints") or ()
            if request["name"] in (rule.get("requests") or [request["name"]])
        ]
        chosen = next(
            (
                each
                for each in combinations(fitting, exactly.get("count", 1))
                if all(_obeys(rule, each) for rule in rules)
            ),
            None,
        )
        if chosen is None:
            return None
        for device in chosen:
            result = {
                "request": request["name"],
                "driver": device["driver"],
                "pool": device["pool"],
                "device": device["name"],
            }
            if device.get("allowMultipleAllocations"):
                whole = {name: each["value"] for name, each in device["capacity"].items()}
                result |= {
                    "shareID": str(uuid.uuid4()),
                    "consumedCapacity": {**whole, **capacity},
                }
            results.append(result)
            taken.setdefault(_id(device, "name"), []).append(result)
    return results


def _free(device: dict[str, Any], capacity: dict[str, str], shares: list[dict[str, Any]]) -> bool:
    if not device.get("allowMultipleAllocations"):
        has = device.get("capacity") or {}
        return not shares and all(
            name in has and quantity(has[name]["value"]) >= quantity(amount)
            for name, amount in capacity.items()
        )
    for name, each in device["capacity"].items():
        used = sum(
            (quantity((share.get("consumedCapacity") or {}).get(name, "0")) for share in shares),
            Decimal(0),
        )
        # Who says nothing of a capacity takes all of it.
        if used + quantity(capacity.get(name, each["value"])) > quantity(each["value"]):
            return False
    return capacity.keys() <= device["capacity"].keys()


def _obeys(rule: dict[str, Any], devices: tuple[dict[str, Any], ...]) -> bool:
    name = rule.get("distinctAttribute") or rule.get("matchAttribute") or ""
    values = [attribute(device, *name.split("/")) for device in devices]
    if None in values:
        return False
    different = len(set(values))
    return different == (len(values) if "distinctAttribute" in rule else 1)


def attribute(device: dict[str, Any], domain: str, name: str) -> Any:
    attributes = device.get("attributes") or {}
    found = attributes.get(f"{domain}/{name}")
    if found is None and domain == device["driver"]:
        found = attributes.get(name)
    return next(iter(found.values())) if found else None


def cel(expression: str, device: dict[str, Any]) -> bool:
    """The small part of CEL that is understood; anything else is refused loudly."""
    return all(_cel(part.strip(), device) for part in expression.split("&&"))


def _cel(part: str, device: dict[str, Any]) -> bool:
    if match := re.fullmatch(r"device\.driver == '([\w.-]+)'", part):
        return bool(device["driver"] == match[1])
    if match := re.fullmatch(r"device\.allowMultipleAllocations == (true|false)", part):
        return bool(device.get("allowMultipleAllocations", False)) == (match[1] == "true")
    if match := re.fullmatch(rf"{_ATTRIBUTE} == '([^']*)'", part):
        return bool(attribute(device, match[1], match[2]) == match[3])
    if match := re.fullmatch(rf"{_ATTRIBUTE}(\.lowerAscii\(\))?\.matches\('([^']*)'\)", part):
        value = attribute(device, match[1], match[2])
        if value is None:
            return False
        return re.search(match[4], value.lower() if match[3] else value) is not None
    raise bad_request(f"this emulator does not know the CEL expression {part!r}")
