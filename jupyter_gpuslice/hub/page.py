"""The service's page: the machine's devices, who holds what, and who waits. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..broker.explain import amount
from ..broker.limits import Standing
from .form import device_name, duration
from .frame import Frame
from .policies import Terms, standing_words

REFRESH_SECONDS = 3

# The page is fetched again and its main part replaced: nothing moves but what changed, and a
# reader's place on it is kept.
_SCRIPT = """
const main = document.querySelector("main");
async function renew() {
  try {
    const answer = await fetch(location.href, {headers: {"X-XSRFToken": TOKEN}, redirect: "error"});
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main");
      if (fresh && fresh.innerHTML !== main.innerHTML) main.innerHTML = fresh.innerHTML;
    }
  } catch (error) { /* the service restarts: the next try finds it */ }
  setTimeout(renew, SECONDS * 1000);
}
setTimeout(renew, SECONDS * 1000);
"""


def index_page(
    pool: Mapping[str, Any], leases: Sequence[Mapping[str, Any]], frame: Frame, token: str
) -> str:
    """A whole HTML document. ``pool`` and ``leases`` are the JSON that the caller may see;
    ``token`` is the caller's XSRF token."""
    held = [lease for lease in leases if lease["state"] != "queued"]
    whose = "Who holds what" if pool["admin"] else "What you hold"
    about = f'<p class="text-body-secondary">{escape(_measured(pool))}</p>'
    title = f"GPUs of {frame.place}"
    main = f"""<h1>{title}</h1>
<p class="text-body-secondary">{escape(_isolation(pool))}</p>
<h2>Devices</h2>{_devices(pool)}{about if pool["devices"] else ""}
<h2>{whose}</h2>{_standing(pool)}{_leases(held, pool["admin"])}
<h2>Queue</h2>{_queue(pool)}"""
    return frame.page(title, main, renewing(token))


def _standing(pool: Mapping[str, Any]) -> str:
    """What the viewer holds and has used of what the policies let them."""
    told = pool["session"].get("limits")
    if not told:
        return ""
    terms = Terms(told["concurrent"], told["gpu_hours"])
    words = standing_words(terms, Standing(told["held"], told["gpu_hours_used"]))
    return f"<p>{escape(words)}</p>"


def renewing(token: str) -> str:
    """The script that keeps a page as it is now; ``token`` is the caller's XSRF token."""
    # "</script>" cannot stand in the token, but nothing here relies on that.
    quoted = json.dumps(token).replace("<", "\\u003c")
    return _SCRIPT.replace("TOKEN", quoted).replace("SECONDS", str(REFRESH_SECONDS))


def error_page(status: int, message: str, hint: str, frame: Frame) -> str:
    """What people see in place of a page that is not to be had."""
    title = "Page not found" if status == 404 else "This did not work"
    more = f"<p>{escape(hint)}</p>" if hint else ""
    main = f"""<h1>{title}</h1>
<p>{escape(message)}</p>{more}
<p><a href="{escape(frame.service)}">GPUs of {escape(frame.place)}</a> ·
<a href="{escape(frame.hub)}home">Home</a></p>"""
    return frame.page(title, main)


def _measured(pool: Mapping[str, Any]) -> str:
    """What the columns of use count."""
    if pool["isolation"] == "simulated":
        return (
            "Held is what was granted. Used is main memory that the programs of the holders have "
            "taken since they started, and busy their processor time (100 % is one core): "
            "simulated devices have neither."
        )
    return (
        "Held is what was granted. Used and busy are measured by the driver: of a device by "
        "whatever runs on it, of a server by its own programs."
    )


def _isolation(pool: Mapping[str, Any]) -> str:
    words = {
        "mig": "Slices are kept apart by the GPU itself (MIG).",
        "framework": "Slices bind PyTorch, JAX and CuPy; other programs are not held to theirs.",
        "watch": "Slices are not enforced: use is measured and shown.",
        "simulated": "The devices are simulated: nothing runs on a GPU, and nothing is enforced.",
    }
    level = words.get(pool["isolation"], f"Isolation: {pool['isolation']}.")
    note: str = pool.get("note") or ""
    return f"{level} {note}".strip() if pool["devices"] else note or "This machine has no GPU."


def _devices(pool: Mapping[str, Any]) -> str:
    rows = []
    for device in pool["devices"]:
        total, free = device["memory_mib"], device["free_mib"]
        name = device_name(device["name"], device["kind"])
        rows.append(
            [
                f"{escape(name)}<br><code>{escape(device['uuid'])}</code>",
                _bar(total - free, total) + f"{_gib(total - free)} of {_gib(total)}",
                f"{100 - device['free_percent']} %",
                _gib(device["used_mib"]),
                _known(device["utilization_percent"], " %"),
                escape(_state(device)),
            ]
        )
    head = ["Device", "Memory held", "Compute held", "Memory used", "Busy", "Health"]
    return _table(head, rows) if rows else "<p>None.</p>"


def _state(device: Mapping[str, Any]) -> str:
    """The health of a device, and that nothing new is granted on it."""
    why = device.get("cordoned")
    if why is None:
        return str(device["health"])
    return f"{device['health']}; out of service{f': {why}' if why else ''}"


def _leases(leases: Sequence[Mapping[str, Any]], admin: bool) -> str:
    rows = []
    for lease in leases:
        holder = lease["holder"]
        used = lease.get("used") or {}
        held = sum(slice_["memory_mib"] for slice_ in lease["slices"])
        row = [escape(holder["user"] or "")] if admin else []
        server = '<span class="text-body-secondary">default</span>'
        if holder["name"]:
            server = escape(holder["name"])
        row += [
            server,
            f"<code>{escape(lease['request'])}</code>",
            escape(lease["state"]),
            _gib(held),
            _gib(used.get("memory_mib")),
            _known(used.get("utilization_percent"), " %"),
        ]
        rows.append(row)
    head = ["Server", "Request", "State", "Memory held", "Memory used", "Busy"]
    return _table(["User", *head] if admin else head, rows) if rows else "<p>Nothing.</p>"


def _queue(pool: Mapping[str, Any]) -> str:
    rows = []
    for waiting in pool["queue"]:
        holder = waiting["holder"]
        name = f" ({holder['name']})" if holder["name"] else ""
        who = f"{holder['user']}{name}" if holder["user"] else "somebody else"
        wait = waiting["estimate_s"]
        rows.append(
            [
                str(waiting["position"]),
                escape(who),
                f"<code>{escape(waiting['request'])}</code>",
                "unknown" if wait is None else escape(duration(wait)),
            ]
        )
    head = ["Position", "Who", "Request", "Wait"]
    return _table(head, rows) if rows else "<p>Nobody waits.</p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML; the head is plain text."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _bar(part: int, total: int) -> str:
    width = round(100 * part / total) if total else 0
    return f'<span class="bar" aria-hidden="true"><span style="width:{width}%"></span></span>'


def _gib(mib: int | None) -> str:
    return "unknown" if mib is None else amount(mib)


def _known(value: object, unit: str) -> str:
    return "unknown" if value is None else f"{value}{unit}"
