"""The document around every page of the service: the hub's bar, its look and its theme. No I/O.

The stylesheet is the hub's own, so that its pages and ours look alike, also where an administrator
has given them another look.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

_STYLE = """
.gpuslice { max-width: 70rem; margin: 0 auto; padding: 0 1rem 2rem; }
.gpuslice h1 { font-size: 1.5rem; } .gpuslice h2 { font-size: 1.15rem; margin: 1.75rem 0 .5rem; }
.gpuslice .scroll { overflow-x: auto; margin-bottom: .75rem; }
.gpuslice table { border-collapse: collapse; width: 100%; }
.gpuslice th, .gpuslice td { text-align: start; padding: .4rem .7rem .4rem 0; vertical-align: top;
  border-bottom: 1px solid var(--bs-border-color, #8886); overflow-wrap: anywhere; }
.gpuslice th { font-weight: 600; white-space: nowrap; }
.gpuslice .word { overflow-wrap: break-word; }
.gpuslice .bar { display: block; height: .5rem; min-width: 10rem; border-radius: .25rem;
  background: var(--bs-secondary-bg, #8882); overflow: hidden; }
.gpuslice .bar span { display: block; height: 100%; background: #f37726; }
.gpuslice-nav .container-fluid, .gpuslice-nav .navbar-nav { flex-wrap: wrap; }
#gpuslice-theme svg { width: 1rem; height: 1rem; vertical-align: -.15rem; }
"""

# Where the hub keeps what its reader chose; before anything is drawn.
_THEME = """
const KEY = "jupyterhub-bs-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
function showTheme() {
  let theme = null;
  try { theme = localStorage.getItem(KEY); } catch (error) { /* not allowed here */ }
  if (theme !== "light" && theme !== "dark") theme = dark.matches ? "dark" : "light";
  document.documentElement.dataset.bsTheme = theme;
  document.documentElement.style.colorScheme = theme;
}
function otherTheme() {
  const theme = document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark";
  try { localStorage.setItem(KEY, theme); } catch (error) { /* not allowed here */ }
  showTheme();
}
showTheme();
dark.addEventListener("change", showTheme);
addEventListener("storage", showTheme);
"""

_HALF = (
    '<svg viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="7" fill="none" '
    'stroke="currentColor" stroke-width="2"/><path d="M8 1a7 7 0 0 1 0 14z" fill="currentColor"/>'
    "</svg>"
)


@dataclass(frozen=True)
class Frame:
    """Where the hub and this service are, and who reads; ``user`` is ``""`` where nobody asked.

    ``hub`` is the hub's address up to its slash, with a host only if that is another one. ``place``
    is what has the GPUs, for people.
    """

    hub: str
    service: str
    user: str = ""
    admin: bool = False
    place: str = "this machine"

    def page(self, title: str, main: str, script: str = "") -> str:
        """A whole HTML document; ``main`` is HTML, ``title`` plain text."""
        hub = escape(self.hub)
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="{hub}static/favicon.ico"><link rel="stylesheet"
href="{hub}static/css/style.min.css"><style>{_STYLE}</style>
<script>{_THEME}</script></head><body>
{self._bar()}
<main class="gpuslice">
{main}
</main>
{f"<script>{script}</script>" if script else ""}</body></html>
"""

    def _bar(self) -> str:
        hub = escape(self.hub)
        links = [("Home", f"{hub}home"), ("Token", f"{hub}token")]
        if self.admin:
            links.append(("Admin", f"{hub}admin"))
        links.append(("GPUs", escape(self.service)))
        items = "".join(
            f'<li class="nav-item"><a class="nav-link" href="{address}">{name}</a></li>'
            for name, address in links
        )
        who = (
            f'<span class="me-2">{escape(self.user)}</span><a class="btn btn-sm '
            f'btn-outline-contrast" role="button" href="{hub}logout">Logout</a>'
        )
        return (
            '<nav class="gpuslice-nav navbar navbar-expand bg-body-tertiary mb-4" aria-label="Hub">'
            '<div class="container-fluid"><span id="jupyterhub-logo" class="navbar-brand">'
            f'<a href="{hub}"><img src="{hub}logo" alt="JupyterHub" class="jpy-logo" title="Home">'
            f'</a></span><ul class="navbar-nav me-auto mb-0">{items}</ul><div>'
            '<button type="button" id="gpuslice-theme" class="btn btn-sm" title="Toggle dark mode" '
            f'aria-label="Toggle dark mode" onclick="otherTheme()">{_HALF}</button>'
            f"{who if self.user else ''}</div></div></nav>"
        )


def content_policy(hub_host: str) -> str:
    """The Content-Security-Policy of these pages: nothing but what they hold and the hub's look."""
    look = f"'self' {hub_host}".strip()
    return (
        f"default-src 'none'; style-src 'unsafe-inline' {look}; script-src 'unsafe-inline'; "
        f"img-src data: {look}; font-src {look}; connect-src 'self'; frame-ancestors 'none'"
    )
