"""The service's page on Kubernetes: the nodes' GPUs, who has some, and who waits. No I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..form import duration
from ..frame import Frame
from ..page import _bar, _gib, _known, _table, renewing


def cluster_page(
    pool: Mapping[str, Any],
    leases: Sequence[Mapping[str, Any]],
    frame: Frame,
    token: str,
    now: float | None = None,
) -> str:
    """A whole HTML document; see :func:`jupyter_gpuslice.hub.page.index_page`."""
    at = time.time() if now is None else now
    held = [lease for lease in leases if lease["state"] != "queued"]
    waiting = [lease for lease in leases if lease["state"] == "queued"]
    whose = "Who holds what" if pool["admin"] else "What you hold"
    title = f"GPUs of {frame.place}"
    note = f'<p class="alert alert-warning">{escape(pool["note"])}</p>' if pool["note"] else ""
    about = (
        '<p class="text-body-secondary">Held is what the cluster granted. How much of it is used '
        "is measured on the nodes; the hub cannot see it.</p>"
    )
    main = f"""<h1>{escape(title)}</h1>
<p class="text-body-secondary">The cluster's own scheduler grants GPUs and takes them back; this
page shows what it granted.</p>{note}
<h2>Nodes</h2>{_devices(pool["devices"])}{about if pool["devices"] else ""}
<h2>{whose}</h2>{_leases(held, pool["devices"], pool["admin"], at)}
<h2>Who waits</h2>{_queue(pool["queue"], waiting, at)}"""
    return frame.page(title, main, renewing(token))


def _devices(devices: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for device in devices:
        name = escape(device["name"])
        units = device["units"]
        if units is None:
            name += f"<br><code>{escape(device['uuid'])}</code>"
        node = _word(device["node"])
        if device["cordoned"] is not None:
            node += '<br><span class="text-body-secondary">takes no new servers</span>'
        rows.append(
            [
                node,
                name,
                _free(device),
                _line(_memory(device["memory_mib"], device["free_mib"])),
                _line(_compute(device["compute_percent"], device["free_percent"])),
                escape(device["health"]),
            ]
        )
    head = ["Node", "GPU", "Room", "Memory held", "Compute held", "Health"]
    return _table(head, rows) if rows else "<p>None.</p>"


def _free(device: Mapping[str, Any]) -> str:
    units = device["units"]
    if units is not None:
        count, free = units["count"], units["free"]
        what = _unit(units["resource"], count)
        if free is None:
            return f"unknown, of {count} {what}"
        return _bar(count - free, count) + _line(f"{free} of {count} {what} free")
    memory, free = device["memory_mib"], device["free_mib"]
    if memory is None or free is None:
        return "unknown"
    return (
        _bar(memory - free, memory)
        + _line(f"{_gib(free)} of")
        + " "
        + _line(f"{_gib(memory)} free")
    )


def _unit(resource: str, count: int) -> str:
    if resource.startswith("nvidia.com/mig-"):
        word = "MIG device"
    elif resource == "nvidia.com/gpu":
        word = "GPU"
    else:
        word = "share"
    return word if count == 1 else f"{word}s"


def _word(text: str) -> str:
    """A name that is not torn apart, but at its dots, while it is of a usual length."""
    if len(text) > 40:
        return escape(text)
    return f'<span class="word">{escape(text).replace(".", ".<wbr>")}</span>'


def _line(text: str) -> str:
    """Text that stays on one line."""
    return f'<span class="text-nowrap">{escape(text)}</span>'


def _memory(whole: int | None, free: int | None) -> str:
    return _gib(None if whole is None or free is None else whole - free)


def _compute(whole: int | None, free: int | None) -> str:
    return _known(None if whole is None or free is None else whole - free, " %")


def _leases(
    leases: Sequence[Mapping[str, Any]],
    devices: Sequence[Mapping[str, Any]],
    admin: bool,
    now: float,
) -> str:
    rows = []
    for lease in leases:
        counted = [
            device
            for device in devices
            if lease["id"] in device["leases"] and device["units"] is not None
        ]
        since = lease["granted"] or lease["created"]
        state = _line(lease["state"])
        if lease["detail"]:
            state += f'<br><span class="text-body-secondary">{escape(lease["detail"])}</span>'
        rows.append(
            [
                *([_word(lease["holder"]["user"] or "")] if admin else []),
                _server(lease),
                f'<code class="text-nowrap">{escape(lease["request"])}</code>',
                state,
                _word(lease["node"] or "unknown"),
                _which(lease, counted),
                _line(_held(lease, counted)),
                _line(duration(max(0.0, now - since))),
            ]
        )
    head = ["Server", "Request", "State", "Node", "GPU", "Memory held", "For"]
    return _table(["User", *head] if admin else head, rows) if rows else "<p>Nothing.</p>"


def _which(lease: Mapping[str, Any], counted: Sequence[Mapping[str, Any]]) -> str:
    if lease["slices"]:
        return "<br>".join(f"<code>{escape(part['device'])}</code>" for part in lease["slices"])
    # Which of several it is the cluster does not tell, but what they are.
    return "<br>".join(escape(device["name"]) for device in counted) or "unknown"


def _held(lease: Mapping[str, Any], counted: Sequence[Mapping[str, Any]]) -> str:
    amounts = [part["memory_mib"] for part in lease["slices"]]
    if not amounts and len(counted) == 1:
        (device,) = counted
        units = device["units"]
        if device["memory_mib"] is not None:
            each = device["memory_mib"] // units["count"]
            amounts = [each * lease["resources"].get(units["resource"], 0)]
    return _gib(sum(amounts) if amounts and None not in amounts else None)


def _server(lease: Mapping[str, Any]) -> str:
    name = lease["holder"]["name"]
    return _word(name) if name else '<span class="text-body-secondary">default</span>'


def _queue(
    queue: Sequence[Mapping[str, Any]], mine: Sequence[Mapping[str, Any]], now: float
) -> str:
    known = {lease["id"]: lease for lease in mine}
    rows = []
    for waiting in queue:
        lease = known.get(waiting["id"])
        holder = waiting["holder"]
        name = f" ({holder['name']})" if holder["name"] else ""
        who = f"{holder['user']}{name}" if holder["user"] else "somebody else"
        rows.append(
            [
                _word(who),
                f'<code class="text-nowrap">{escape(waiting["request"])}</code>',
                _line(duration(max(0.0, now - lease["created"]))) if lease else "",
                escape(lease["detail"]) if lease else "",
            ]
        )
    return _table(["Who", "Request", "For", "Why"], rows) if rows else "<p>Nobody waits.</p>"
