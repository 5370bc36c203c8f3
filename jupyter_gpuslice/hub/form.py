"""The spawn page: HTML from profiles, what is free, and what the user chose last. No I/O.

JupyterHub puts the result in its own form, whose page has Bootstrap 5 in light and dark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from ..request import GpuRequest
from .availability import Availability, Offer
from .choice import Choice, ChoiceError, Profile, Profiles, Selection

CUSTOM = "custom"

_STYLE = """
<style>
.gpuslice { text-align: start; margin-bottom: 1rem; }
.gpuslice h2 { font-size: 1.15rem; margin: 1.25rem 0 .15rem; }
.gpuslice p { margin-bottom: .5rem; }
.gpuslice-cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr));
  gap: .6rem; }
.gpuslice-card { position: relative; display: grid; grid-template-columns: auto 1fr;
  column-gap: .65rem; align-content: start; margin: 0; padding: .7rem .8rem; cursor: pointer;
  border: 1px solid var(--bs-border-color, #ccc); border-radius: .5rem; }
.gpuslice-card:hover { border-color: var(--bs-secondary-color, #666); }
.gpuslice-card:has(input:checked) { border-color: #f37726; box-shadow: inset 0 0 0 1px #f37726; }
.gpuslice-card:has(input:focus-visible) { outline: 3px solid var(--bs-primary, #0d6efd);
  outline-offset: 2px; }
.gpuslice-card:has(input:disabled) { cursor: not-allowed; opacity: .65; }
.gpuslice-card input[type=radio] { margin-top: .3rem; accent-color: #f37726; }
.gpuslice-card input[type=text] { width: 100%; margin-top: .35rem; }
.gpuslice-name { font-weight: 600; overflow-wrap: anywhere; }
.gpuslice-status { display: block; font-size: .875rem; }
.gpuslice-dot { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%;
  margin-inline-end: .35rem; border: 2px solid currentColor; }
.gpuslice-free .gpuslice-dot { background: #2e9d5b; border-color: #2e9d5b; }
.gpuslice-busy .gpuslice-dot { background: #e0a100; border-color: #e0a100; }
</style>
"""


def spawn_form(
    profiles: Profiles,
    available: Availability,
    last: Mapping[str, Any] | None,
    user: str,
    groups: Collection[str],
) -> str:
    """The inside of the spawn page's form.

    ``last`` are the options of the user's last start: chosen again if they are still offered,
    dropped with a note if not.
    """
    offered = profiles.visible(user, groups)
    if not offered:
        return _note("No profile of this hub is for you. Ask the hub's administrators for access.")
    chosen, note = _chosen(profiles, last, user, groups)
    if chosen is None or available.offer(chosen.request).never:
        chosen = _possible(offered, available) or chosen
    parts = [_STYLE, '<fieldset class="gpuslice"><legend class="visually-hidden">GPU</legend>']
    if note:
        parts.append(_note(note))
    parts.append(_summary(available))
    parts += [_profile(profile, available, chosen) for profile in offered]
    parts.append("</fieldset>")
    return "\n".join(parts)


def options_from_form(form: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """The ``user_options`` that a submitted form (or a link's query) means; not yet checked.

    A link may name ``profile`` and ``request`` themselves. :class:`ChoiceError` for a field that
    is not the form's.
    """
    fields: dict[str, str] = {}
    for name, values in form.items():
        known = name in ("choice", "profile", "request", "_xsrf") or name.startswith(f"{CUSTOM}.")
        if not known or len(values) != 1 or not isinstance(values[0], str):
            raise ChoiceError("bad_option", f"The form has no such field {name[:60]!r}.")
        fields[name] = values[0]
    if "choice" not in fields:
        return {key: fields[key] for key in ("profile", "request") if key in fields}
    slug, slash, request = fields["choice"].partition("/")
    if request == CUSTOM:
        request = fields.get(f"{CUSTOM}.{slug}", "").strip()
        if not request:
            raise ChoiceError("bad_option", "Your own amount is empty.", "Write 0.5 or 10GiB, say.")
    return {"profile": slug, "request": request} if slash else {"profile": slug}


def _chosen(
    profiles: Profiles, last: Mapping[str, Any] | None, user: str, groups: Collection[str]
) -> tuple[Selection | None, str]:
    """The choice to mark, and a word about a last choice that is gone."""
    try:
        return profiles.select(last, user, groups), ""
    except ChoiceError as error:
        note = f"Your last choice is no longer offered: {error.message}"
        return profiles.select(None, user, groups), note


def _possible(offered: Sequence[Profile], available: Availability) -> Selection | None:
    """The first choice that this machine could ever grant."""
    for profile in offered:
        for choice in profile.choices:
            if not available.offer(choice.request).never:
                return Selection(profile, choice.request)
    return None


def _note(text: str) -> str:
    return f'<p class="gpuslice-note alert alert-warning" role="status">{escape(text)}</p>'


def _summary(available: Availability) -> str:
    """One line on the machine: its devices, and who waits."""
    kinds = [f"{kind.count} × {device_name(kind.name, kind.kind)}" for kind in available.devices]
    text = f"This machine has {', '.join(kinds)}." if kinds else ""
    if kinds and available.waiting:
        requests = "request waits" if available.waiting == 1 else "requests wait"
        text += f" {available.waiting} {requests} in the queue."
    text = f"{text} {available.note}".strip()
    return f'<p class="gpuslice-pool text-body-secondary">{escape(text)}</p>' if text else ""


def _profile(profile: Profile, available: Availability, chosen: Selection | None) -> str:
    slug = escape(profile.slug)
    mine = chosen.request if chosen and chosen.profile == profile else None
    offers = [choice.request for choice in profile.choices]
    cards = [
        _card(profile, choice, available.offer(choice.request), mine == choice.request)
        for choice in profile.choices
    ]
    if profile.custom_max is not None:
        cards.append(_custom_card(profile, mine if mine and mine not in offers else None))
    about = f"<p>{escape(profile.description)}</p>" if profile.description else ""
    return (
        f'<div role="group" aria-labelledby="gpuslice-{slug}">'
        f'<h2 id="gpuslice-{slug}">{escape(profile.display_name)}</h2>{about}'
        f'<div class="gpuslice-cards">{"".join(cards)}</div></div>'
    )


def _card(profile: Profile, choice: Choice, offer: Offer, checked: bool) -> str:
    request = str(choice.request)
    value = escape(f"{profile.slug}/{request}")
    status = escape(f"gpuslice-{profile.slug}-{request}-status")
    kind, words = status_words(choice.request, offer)
    marks = " checked" * (checked and not offer.never) + " disabled" * offer.never
    shown = f" <code>{escape(request)}</code>" if choice.request.kind != "none" else ""
    return (
        f'<label class="gpuslice-card"><input type="radio" name="choice" value="{value}"'
        f' aria-describedby="{status}"{marks}><span>'
        f'<span class="gpuslice-name">{escape(choice.label)}</span>{shown}'
        f'<span class="gpuslice-status gpuslice-{kind}" id="{status}">'
        f'<span class="gpuslice-dot" aria-hidden="true"></span>{escape(words)}</span>'
        "</span></label>"
    )


def _custom_card(profile: Profile, mine: GpuRequest | None) -> str:
    slug = escape(profile.slug)
    checked = " checked" if mine else ""
    value = escape(str(mine)) if mine else ""
    return (
        f'<div class="gpuslice-card"><input type="radio" name="choice" value="{slug}/{CUSTOM}"'
        f' id="gpuslice-{slug}-custom"{checked}><span>'
        f'<label class="gpuslice-name" for="gpuslice-{slug}-custom">Another amount</label>'
        f'<input type="text" class="form-control form-control-sm" name="{CUSTOM}.{slug}"'
        f' value="{value}" maxlength="100" autocomplete="off" spellcheck="false"'
        f' placeholder="0.5 or 10GiB" aria-label="Another amount"'
        f' aria-describedby="gpuslice-{slug}-max"'
        f" oninput=\"document.getElementById('gpuslice-{slug}-custom').checked = true\">"
        f'<span class="gpuslice-status" id="gpuslice-{slug}-max">'
        f"At most {escape(str(profile.custom_max))}.</span></span></div>"
    )


def status_words(request: GpuRequest, offer: Offer) -> tuple[str, str]:
    """A kind (``free``, ``busy``, ``never`` or ``unknown``) and the words beside a choice."""
    if request.kind == "none":
        return "free", "Starts at once"
    if offer.never:
        return "never", offer.message
    if offer.free is None or offer.total is None:
        return "unknown", "Availability unknown"
    if offer.position is None and offer.free:
        return "free", f"{offer.free} of {offer.total} free"
    wait = f"{offer.free} of {offer.total} free: wait in the queue"
    if offer.position is not None:
        wait += f" at position {offer.position}"
    if offer.estimate_s is not None:
        wait += f", {duration(offer.estimate_s)}"
    return "busy", f"Busy, {wait}"


def device_name(name: str, kind: str) -> str:
    """A device's name for people; a simulated one says so."""
    said = kind != "simulated" or "simulated" in name.lower()
    return name if said else f"{name} (simulated)"


def duration(seconds: float) -> str:
    """About how long, for people."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
