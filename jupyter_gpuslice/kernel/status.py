"""The picture that ``%gpu`` shows: this kernel's slice, its use, the pool around it.

Pure: from the JSON of ``GET pool``, ``GET leases`` and ``GET groups`` to text and HTML.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .words import (
    UNKNOWN,
    device_names,
    duration,
    lease_words,
    memory,
    percent,
    queued_words,
    slice_words,
    table,
)

LEVELS = {
    "mig": "MIG (hardware)",
    "cgroup": "cgroup memory limits (driver)",
    "mps": "MPS",
    "hami": "HAMi-core",
    "framework": "framework allocator limits",
    "watch": "watched, not limited",
    "simulated": "simulated devices",
}
"""Isolation levels as people read them."""

# The variables of JupyterLab's theme, with what reads well on light and dark where there is none.
CSS = """
.gpuslice{font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;
color:var(--jp-ui-font-color1,inherit);max-width:640px;line-height:1.5}
.gpuslice table{color:inherit;border-collapse:collapse;margin:4px 0;width:100%;
table-layout:auto!important}
.gpuslice th,.gpuslice td{text-align:left!important;padding:2px 12px 2px 0;border:0;
background:none;color:inherit;vertical-align:middle;font-size:13px}
.gpuslice th{font-weight:600;color:var(--jp-ui-font-color2,inherit)}
.gpuslice tr{background:none!important}
.gpuslice-bar{position:relative;height:10px;min-width:60px;border-radius:3px;overflow:hidden;
background:var(--jp-layout-color3,rgba(128,128,128,.25))}
.gpuslice-bar span{position:absolute;top:0;bottom:0;left:0}
.gpuslice-held{background:var(--jp-brand-color1,#1976d2);opacity:.4}
.gpuslice-used{background:var(--jp-brand-color1,#1976d2);top:3px!important;bottom:3px!important}
.gpuslice-note{color:var(--jp-ui-font-color2,inherit);opacity:.85}
.gpuslice-tag{border:1px solid currentColor;border-radius:3px;padding:0 4px;font-size:11px;
opacity:.75}
""".replace("\n", "")


def own_leases(leases: Sequence[Mapping[str, Any]], kernel_id: str) -> list[Mapping[str, Any]]:
    """This kernel's own leases: those that hold something first, then those asked for by name."""
    mine = [
        lease
        for lease in leases
        if (lease.get("holder") or {}).get("kind") == "kernel"
        and (lease.get("holder") or {}).get("id") == kernel_id
    ]
    return sorted(mine, key=lambda lease: (not lease.get("slices"), lease.get("request") == "auto"))


def text(
    pool: Mapping[str, Any],
    leases: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    kernel_id: str,
    warning: str = "",
) -> str:
    """The picture in plain text."""
    names = device_names(pool)
    lines = [*_own_lines(leases, kernel_id, names)]
    if warning:
        lines.append(warning)
    lines += [f"This session: {_session_words(pool)}"] if pool.get("session") else []
    lines.append("")
    devices = list(pool.get("devices") or ())
    if devices:
        rows = [["Device", "free", "of", "compute free", "used", "busy", ""]]
        for device in devices:
            rows.append(
                [
                    names[str(device.get("uuid"))],
                    memory(device.get("free_mib")),
                    memory(device.get("memory_mib")),
                    percent(device.get("free_percent")),
                    memory(device.get("used_mib")),
                    percent(device.get("utilization_percent")),
                    _health(device),
                ]
            )
        lines += [table(rows), f"Isolation: {_level(pool)}"]
    else:
        lines.append(_no_devices(pool))
    for group in groups:
        lines.append(f"Group {group_words(group)}")
    queue = list(pool.get("queue") or ())
    if queue:
        lines.append(f"Waiting: {len(queue)}")
        lines += [f"  {_waiting_words(entry)}" for entry in queue]
    elif devices:
        lines.append(_nobody_waits(pool))
    return "\n".join(lines)


def html(
    pool: Mapping[str, Any],
    leases: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    kernel_id: str,
    warning: str = "",
) -> str:
    """The picture in HTML, for light and dark; everything from outside is escaped."""
    names = device_names(pool)
    parts = [f"<style>{CSS}</style>", '<div class="gpuslice">']
    parts += [f"<div><b>{escape(line)}</b></div>" for line in _own_lines(leases, kernel_id, names)]
    if warning:
        parts.append(f"<div>⚠ {escape(warning)}</div>")
    if pool.get("session"):
        parts.append(f"<div>This session: {escape(_session_words(pool))}</div>")
    devices = list(pool.get("devices") or ())
    if devices:
        parts.append(
            "<table><tr><th>Device</th><th>held and used</th><th>free</th><th>used</th>"
            "<th>busy</th></tr>"
        )
        parts += [_device_row(device, names) for device in devices]
        parts.append(f'</table><div class="gpuslice-note">Isolation: {escape(_level(pool))}</div>')
    else:
        parts.append(f"<div>{escape(_no_devices(pool))}</div>")
    parts += [f"<div>Group {escape(group_words(group))}</div>" for group in groups]
    queue = list(pool.get("queue") or ())
    if queue:
        waiting = "".join(f"<br>{escape(_waiting_words(entry))}" for entry in queue)
        parts.append(f"<div>Waiting: {len(queue)}{waiting}</div>")
    elif devices:
        parts.append(f'<div class="gpuslice-note">{_nobody_waits(pool)}</div>')
    return "".join([*parts, "</div>"])


def group_words(group: Mapping[str, Any]) -> str:
    """A group in a line: ``train: 2 workers of 0.5, ready (gloo)``."""
    workers = group.get("workers")
    line = (
        f"{group.get('name')}: {workers} worker{'s' if workers != 1 else ''} "
        f"of {group.get('request')}, {group.get('state')}"
    )
    backend = group.get("backend")
    return f"{line} ({backend})" if backend and backend not in ("none", "auto") else line


def rank_rows(group: Mapping[str, Any], names: Mapping[str, str]) -> list[list[str]]:
    """A group's ranks as rows: rank, state, pid, slice."""
    rows = [["rank", "state", "pid", "slice"]]
    for rank in group.get("ranks") or ():
        slices = rank.get("slices") or ()
        held = " + ".join(
            f"{names.get(str(s.get('device')), str(s.get('device')))} ({slice_words(s)})"
            for s in slices
        )
        pid = rank.get("pid")
        rows.append(
            [
                str(rank.get("rank")),
                str(rank.get("state")),
                UNKNOWN if pid is None else str(pid),
                held or "none",
            ]
        )
    return rows


def _own_lines(
    leases: Sequence[Mapping[str, Any]], kernel_id: str, names: Mapping[str, str]
) -> list[str]:
    mine = own_leases(leases, kernel_id)
    if not mine:
        return ["This kernel holds no GPU slice. `%gpu request 0.5` asks for one."]
    lines = []
    for lease in mine:
        if lease.get("state") == "queued":
            lines.append(f"This kernel waits for {lease.get('request')}: {queued_words(lease)}")
        elif lease.get("slices"):
            used = lease.get("used") or {}
            lines.append(
                f"This kernel: {lease_words(lease, names)} · used "
                f"{memory(used.get('memory_mib'))} · busy "
                f"{percent(used.get('utilization_percent'))}{_until(lease)}"
            )
        else:
            lines.append(f"This kernel's slice ({lease.get('request')}) is {lease.get('state')}.")
    return lines


def _until(lease: Mapping[str, Any]) -> str:
    expires = lease.get("expires")
    if not isinstance(expires, (int, float)):
        return ""
    return f" · ends in {duration(expires - time.time())}"


def _session_words(pool: Mapping[str, Any]) -> str:
    session = pool.get("session") or {}
    entitled, held, used = (session.get(key) or {} for key in ("entitled", "held", "used"))
    return (
        f"entitled to {entitled.get('text') or memory(entitled.get('memory_mib'))} · "
        f"held {memory(held.get('memory_mib'))} · used {memory(used.get('memory_mib'))}"
    )


def _level(pool: Mapping[str, Any]) -> str:
    level = str(pool.get("isolation") or UNKNOWN)
    return LEVELS.get(level, level)


def _nobody_waits(pool: Mapping[str, Any]) -> str:
    """A session's own queue is not the hub's."""
    return "Nobody is waiting in this session." if pool.get("hub") else "Nobody is waiting."


def _no_devices(pool: Mapping[str, Any]) -> str:
    note = str(pool.get("note") or "")
    return f"No GPU here. {note}".strip()


def _health(device: Mapping[str, Any]) -> str:
    return "" if device.get("health") in ("ok", None) else str(device.get("health"))


def _waiting_words(entry: Mapping[str, Any]) -> str:
    holder = entry.get("holder") or {}
    who = holder.get("name") or holder.get("user") or f"another {holder.get('kind') or 'user'}"
    workers = entry.get("workers") or 1
    what = f"{workers} × {entry.get('request')}" if workers > 1 else str(entry.get("request"))
    return f"{entry.get('position') or '?'}. {what} for {who}, {_estimate(entry)}"


def _estimate(entry: Mapping[str, Any]) -> str:
    estimate = entry.get("estimate_s")
    return "the wait is unknown" if estimate is None else f"about {duration(estimate)}"


def _share(part: Any, whole: Any) -> float:
    if not isinstance(part, (int, float)) or not isinstance(whole, (int, float)) or whole <= 0:
        return 0.0
    return min(max(100 * part / whole, 0.0), 100.0)


def _device_row(device: Mapping[str, Any], names: Mapping[str, str]) -> str:
    total, free, used = (device.get(key) for key in ("memory_mib", "free_mib", "used_mib"))
    held = total - free if isinstance(total, int) and isinstance(free, int) else None
    label = f"{memory(held)} held, {memory(used)} used of {memory(total)}"
    uuid = str(device.get("uuid"))
    name = f'<span title="{escape(uuid)}">{escape(names[uuid])}</span>'
    if _health(device):
        name += f' <span class="gpuslice-tag">{escape(_health(device))}</span>'
    bar = (
        f'<div class="gpuslice-bar" role="img" aria-label="{escape(label)}" '
        f'title="{escape(label)}">'
        f'<span class="gpuslice-held" style="width:{_share(held, total):.1f}%"></span>'
        f'<span class="gpuslice-used" style="width:{_share(used, total):.1f}%"></span></div>'
    )
    cells = [
        name,
        bar,
        f"{escape(memory(free))}, {escape(percent(device.get('free_percent')))}",
        escape(memory(used)),
        escape(percent(device.get("utilization_percent"))),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
