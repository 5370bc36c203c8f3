"""The service's page: the machine's devices, who holds what, and who waits. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..broker.explain import amount
from .form import device_name, duration

REFRESH_SECONDS = 3

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; --ours: #f37726; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 70rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: baseline; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 1.75rem 0 .5rem; }
.soft { opacity: .75; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: start; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; white-space: nowrap; }
.bar { display: block; height: .5rem; min-width: 6rem; border-radius: .25rem;
  background: var(--soft); overflow: hidden; }
.bar span { display: block; height: 100%; background: var(--ours); }
code { font-size: .9em; }
"""

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
    pool: Mapping[str, Any], leases: Sequence[Mapping[str, Any]], hub: str, token: str
) -> str:
    """A whole HTML document. ``pool`` and ``leases`` are the JSON that the caller may see;
    ``hub`` is the hub's prefix, ``token`` the caller's XSRF token."""
    # "</script>" cannot stand in the token, but nothing here relies on that.
    quoted = json.dumps(token).replace("<", "\\u003c")
    script = _SCRIPT.replace("TOKEN", quoted).replace("SECONDS", str(REFRESH_SECONDS))
    held = [lease for lease in leases if lease["state"] != "queued"]
    whose = "Who holds what" if pool["admin"] else "What you hold"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>GPUs</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<header><h1>GPUs of this machine</h1>
<a href="{escape(hub)}home">Back to the hub</a></header>
<main>
<p class="soft">{escape(_isolation(pool))}</p>
<h2>Devices</h2>{_devices(pool)}
<h2>{whose}</h2>{_leases(held, pool["admin"])}
<h2>Queue</h2>{_queue(pool)}
</main>
<script>{script}</script></body></html>
"""


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
                escape(device["health"]),
            ]
        )
    head = ["Device", "Memory held", "Compute held", "Memory used", "Busy", "Health"]
    return _table(head, rows) if rows else "<p>None.</p>"


def _leases(leases: Sequence[Mapping[str, Any]], admin: bool) -> str:
    rows = []
    for lease in leases:
        holder = lease["holder"]
        used = lease.get("used") or {}
        held = sum(slice_["memory_mib"] for slice_ in lease["slices"])
        row = [escape(holder["user"] or "")] if admin else []
        server = escape(holder["name"]) if holder["name"] else '<span class="soft">default</span>'
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
