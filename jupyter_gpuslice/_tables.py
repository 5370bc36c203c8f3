"""What the command line prints: pools, leases and sums of use as text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .broker.explain import clock_text


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as lines with aligned columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def known(value: object, unit: str = "") -> str:
    """A measured value with its unit; what is not known is never shown as a number."""
    return "unknown" if value is None else f"{value}{unit}"


def gib(mib: int | float | None) -> str:
    """Memory for people: GiB with one digit after the point."""
    return "unknown" if mib is None else f"{mib / 1024:.1f} GiB"


def describe_pool(pool: Mapping[str, Any]) -> str:
    """The devices of a pool and what waits for them, from the REST interface's own JSON."""
    devices = pool.get("devices", [])
    if not devices:
        return f"No GPU in this pool. {pool.get('note') or ''}".strip()
    rows = [("DEVICE", "KIND", "FREE", "OF", "COMPUTE FREE", "USED", "BUSY", "HEALTH", "LEASES")]
    rows += [
        (
            device["name"],
            device["kind"],
            gib(device["free_mib"]),
            gib(device["memory_mib"]),
            known(device["free_percent"], " %"),
            gib(device["used_mib"]),
            known(device["utilization_percent"], " %"),
            device_state(device),
            str(len(device["leases"])),
        )
        for device in devices
    ]
    return f"{table(rows)}\nIsolation: {pool.get('isolation')}"


def device_state(device: Mapping[str, Any]) -> str:
    """A device's health, and that it is out of service."""
    why = device.get("cordoned")
    if why is None:
        return str(device["health"])
    return f"{device['health']}, out of service{f': {why}' if why else ''}"


def describe_leases(leases: Sequence[Mapping[str, Any]]) -> str:
    """Who holds or waits for what."""
    if not leases:
        return "No leases."
    rows = [("LEASE", "STATE", "REQUEST", "HOLDER", "MEMORY", "NOTE")]
    for lease in leases:
        memory = sum(part["memory_mib"] for part in lease["slices"])
        position = lease.get("position")
        rows.append(
            (
                lease["id"] or "-",
                lease["state"],
                requested(lease),
                holder_of(lease),
                gib(memory) if lease["slices"] else "-",
                f"position {position}" if position is not None else _end_of(lease),
            )
        )
    return table(rows)


def _end_of(lease: Mapping[str, Any]) -> str:
    """When a lease ends and why, where that is known."""
    expires = lease.get("expires")
    if expires is None or not lease["slices"]:
        return ""
    why = lease.get("detail") or ""
    return f"ends {clock_text(expires, time.time())}{f': {why}' if why else ''}"


def requested(lease: Mapping[str, Any]) -> str:
    """The request, and for how many workers of a group each."""
    workers = lease.get("workers") or 1
    return f"{workers} × {lease['request']}" if workers > 1 else str(lease["request"])


def gpu_hours(seconds: float | None) -> str:
    """GPU-seconds as GPU-hours, fine enough for a cell that ran for some seconds."""
    return "unknown" if seconds is None else f"{seconds / 3600:.3f}"


def holder_of(lease: Mapping[str, Any]) -> str:
    """The holder in words. Of somebody else's lease only its kind may be known."""
    holder = lease["holder"]
    if str(holder.get("name") or "").startswith("process ") and holder.get("user"):
        # A server of somebody's on a shared machine: who that is says more than its number.
        return f"{holder['kind']} of {holder['user']} ({holder['name']})"
    return f"{holder['kind']} {holder.get('name') or holder.get('id') or '(not yours)'}"


def describe_usage(entries: Sequence[Mapping[str, Any]], by: str) -> str:
    """Sums of GPU time with their unit."""
    if not entries:
        return "Nothing has been held yet."
    spent = ("held", "busy", "idle", "waited")
    rows = [(by.upper(), *(word.upper() for word in spent))]
    rows += [
        (str(entry.get(by) or "-"), *(gpu_hours(entry.get(f"{word}_s")) for word in spent))
        for entry in entries
    ]
    return f"GPU-hours of the last week; half a GPU for an hour is 0.5.\n\n{table(rows)}"
