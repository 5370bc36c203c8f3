"""Numbers and names as people read them. What is not known reads "unknown"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"


def memory(mib: Any) -> str:
    """``mib`` in MiB, as text: ``10 GiB``, ``512 MiB``."""
    if not isinstance(mib, (int, float)) or isinstance(mib, bool):
        return UNKNOWN
    if mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{mib / 1024:.1f} GiB".replace(".0 ", " ")


def percent(value: Any) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return UNKNOWN
    return f"{value:.0f} %"


def duration(seconds: Any) -> str:
    """Seconds as a rough time: ``40 s``, ``12 min``, ``3 h``."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return UNKNOWN
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h".replace(".0 ", " ")
    return f"{seconds / 86400:.1f} days".replace(".0 ", " ")


def short(uuid: Any) -> str:
    """A device's UUID short enough for a line: ``GPU-ab12cd34``."""
    text = str(uuid)
    return text if len(text) <= 16 else text[:12] + "…"


def device_names(pool: Mapping[str, Any] | None) -> dict[str, str]:
    """Device UUID → its name, with "(simulated)" where it is.

    Of several with one name each has the beginning of its UUID as well.
    """
    names = {}
    for device in (pool or {}).get("devices") or ():
        name = str(device.get("name") or short(device.get("uuid")))
        if device.get("kind") == "simulated" and "simulated" not in name.lower():
            name += " (simulated)"
        names[str(device.get("uuid"))] = name
    count = Counter(names.values())
    return {
        uuid: f"{name} {_beginning(uuid)}" if count[name] > 1 else name
        for uuid, name in names.items()
    }


def _beginning(uuid: str) -> str:
    """The first eight digits of a UUID."""
    digits = re.search(r"[0-9a-f]{8}(?=-|$)", uuid)
    return digits[0] if digits else uuid


def slice_words(slice_: Mapping[str, Any]) -> str:
    """How much a slice is: ``20 GiB, 25 % compute``."""
    text = memory(slice_.get("memory_mib"))
    reserved, cap = slice_.get("compute_percent"), slice_.get("compute_cap_percent")
    if reserved:
        return f"{text}, {percent(reserved)} compute"
    if isinstance(cap, int) and cap < 100:
        return f"{text}, up to {percent(cap)} compute"
    return text


def lease_words(lease: Mapping[str, Any] | None, names: Mapping[str, str] | None = None) -> str:
    """What a lease holds: ``0.25 of NVIDIA A100 (20 GiB, 25 % compute)``."""
    slices = list((lease or {}).get("slices") or ())
    if lease is None or not slices:
        return "no slice"
    parts = []
    for slice_ in slices:
        device = str(slice_.get("device"))
        parts.append(f"{(names or {}).get(device, short(device))} ({slice_words(slice_)})")
    held = " + ".join(parts)
    # What "auto" came to is the slice itself.
    return f"{held}, auto" if lease.get("request") == "auto" else f"{lease['request']} of {held}"


def queued_words(lease: Mapping[str, Any]) -> str:
    """Where a queued lease stands: ``place 2 in the queue, about 12 min``."""
    position = lease.get("position")
    text = f"place {position} in the queue" if position else "in the queue"
    estimate = lease.get("estimate_s")
    if estimate is None:
        return f"{text}, the wait is unknown"
    return f"{text}, about {duration(estimate)}"


def table(rows: list[list[str]]) -> str:
    """Rows of text in aligned columns, two blanks between."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows
    )
