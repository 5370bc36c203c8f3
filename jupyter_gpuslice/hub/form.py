"""The spawn page: HTML from profiles, what is free, and what the user chose last. No I/O.

JupyterHub puts the result in its own form, whose page has Bootstrap 5 in light and dark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from ..request import GpuRequest
from .availability import Availability, Offer
from .choice import Choice, ChoiceError, Profile, Profiles, Selection, at_most, listed
from .policies import Terms, beyond_limits, not_now, standing_words

CUSTOM = "custom"
REFRESH_SECONDS = 5
MOST_CHARACTERS = 100

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
.gpuslice-card:has(input[type=radio]:focus-visible) { outline: 3px solid var(--bs-primary, #0d6efd);
  outline-offset: 2px; }
.gpuslice-card:has(input:disabled) { cursor: not-allowed; opacity: .65; }
.gpuslice-card input[type=radio] { align-self: start; margin-top: .35rem; accent-color: #f37726; }
.gpuslice-card input[type=text] { width: 100%; margin: .35rem 0 .2rem; }
.gpuslice-name { font-weight: 600; overflow-wrap: anywhere; }
.gpuslice-status { display: block; font-size: .875rem; }
.gpuslice-dot { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%;
  margin-inline-end: .35rem; border: 2px solid currentColor; }
.gpuslice-free .gpuslice-dot { background: #2e9d5b; border-color: #2e9d5b; }
.gpuslice-busy .gpuslice-dot { background: #e0a100; border-color: #e0a100; }
.gpuslice-pool:empty { display: none; }
</style>
"""

# The page is fetched again, and of it only what is free is taken: what the user chose or wrote
# stays. Without the query, with which the hub would start a server. A busy hub is asked less often.
_SCRIPT = """
<script>
(() => {
  const live = ".gpuslice-pool, .gpuslice-status[id$=-status]";
  const radios = (page) => page.querySelectorAll(".gpuslice input[name=choice]");
  let timer = 0;
  async function renew() {
    clearTimeout(timer);
    const began = Date.now();
    if (!document.hidden) {
      try {
        const headers = {"X-XSRFToken": window.jhdata.xsrf_token};
        const answer = await fetch(location.pathname, {headers, redirect: "error"});
        if (answer.ok) {
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          for (const old of document.querySelectorAll(live)) {
            const fresh = page.getElementById(old.id);
            if (fresh && fresh.outerHTML !== old.outerHTML) old.replaceWith(fresh);
          }
          const fresh = new Map([...radios(page)].map((radio) => [radio.value, radio]));
          for (const radio of radios(document)) {
            const now = fresh.get(radio.value);
            if (now) radio.disabled = now.disabled && !radio.checked;
          }
        }
      } catch (error) { /* the hub restarts, or a server runs by now: nothing to show */ }
    }
    timer = setTimeout(renew, Math.max(SECONDS * 1000, 20 * (Date.now() - began)));
  }
  timer = setTimeout(renew, SECONDS * 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) renew(); });
})();
</script>
""".replace("SECONDS", str(REFRESH_SECONDS))


@dataclass
class Submitted:
    """A form (or a link's query) that somebody sent; ``refused`` if its choice was not to be had.

    When the hub shows the form once more, it holds what it was sent with.
    """

    fields: Mapping[str, Sequence[Any]]
    refused: bool = False


@dataclass(frozen=True)
class _Filled:
    """What the fields of a form hold: the value of the marked card, and amounts by profile."""

    card: str = ""
    amounts: Mapping[str, str] = field(default_factory=dict)
    refused: bool = False


def spawn_form(
    profiles: Profiles,
    available: Availability,
    last: Mapping[str, Any] | None,
    user: str,
    groups: Collection[str],
    submitted: Submitted | None = None,
) -> str:
    """The inside of the spawn page's form.

    ``last`` are the options of the user's last start: chosen again if they are still offered,
    dropped with a note if not. ``submitted`` is what this very request was sent with.
    """
    offered = profiles.visible(user, groups)
    if not offered:
        return _note("No profile of this hub is for you. Ask the hub's administrators for access.")
    terms = profiles.terms(user, groups)
    available = limited(available, asked_about(offered), terms)
    note = ""
    filled = _filled_again(submitted, offered) if submitted else _Filled()
    cards = _cards(offered, available)
    if filled.card not in cards:
        chosen, note = _chosen(profiles, last, user, groups)
        card = _card_of(chosen) if chosen else ""
        amounts = {}
        if chosen and card == f"{chosen.profile.slug}/{CUSTOM}":
            amounts = {chosen.profile.slug: str(chosen.request)}
        note = "" if submitted else note
        card = card if card in cards else next(iter(cards), "")
        filled = _Filled(card, {**amounts, **filled.amounts})
    parts = [_STYLE, '<fieldset class="gpuslice"><legend class="visually-hidden">GPU</legend>']
    if note:
        parts.append(_note(note))
    parts.append(_summary(available, terms))
    parts += [_profile(profile, available, filled) for profile in offered]
    parts += ["</fieldset>", _SCRIPT]
    return "\n".join(parts)


def asked_about(offered: Sequence[Profile]) -> list[str]:
    """The requests whose availability the form shows."""
    requests = [choice.request for profile in offered for choice in profile.choices]
    requests += [each for profile in offered if profile.custom_max for each in profile.examples]
    return sorted({str(request) for request in requests})


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
    return {"profile": slug, "request": request} if slash else {"profile": slug}


def _chosen(
    profiles: Profiles, last: Mapping[str, Any] | None, user: str, groups: Collection[str]
) -> tuple[Selection | None, str]:
    """The choice to mark, and a word about a last choice that is gone."""
    try:
        return profiles.select(last, user, groups), ""
    except ChoiceError as error:
        note = f"Your last choice is no longer offered: {error.message}" if last else ""
    try:
        return profiles.select(None, user, groups), note
    except ChoiceError:
        # The default is more than this user may have.
        return None, note


def _filled_again(submitted: Submitted, offered: Sequence[Profile]) -> _Filled:
    """The fields as they were sent; what is not of this form is left out."""
    sent = {
        name: values[0]
        for name, values in submitted.fields.items()
        if len(values) == 1 and isinstance(values[0], str)
    }
    amounts = {
        profile.slug: sent[f"{CUSTOM}.{profile.slug}"][:MOST_CHARACTERS]
        for profile in offered
        if f"{CUSTOM}.{profile.slug}" in sent
    }
    card = sent.get("choice", "")
    if not card and "request" in sent:
        # A link names profile and request themselves.
        for profile in offered:
            if profile.slug == sent.get("profile"):
                card = f"{profile.slug}/{sent['request']}"
                if profile.custom_max and card not in map(_card_of, _selections(profile)):
                    card = f"{profile.slug}/{CUSTOM}"
                    amounts[profile.slug] = sent["request"][:MOST_CHARACTERS]
    return _Filled(card, amounts, submitted.refused)


def _selections(profile: Profile) -> list[Selection]:
    return [Selection(profile, choice.request) for choice in profile.choices]


def _card_of(chosen: Selection) -> str:
    """The value of the card that stands for a choice."""
    offered = any(choice.request == chosen.request for choice in chosen.profile.choices)
    return f"{chosen.profile.slug}/{chosen.request if offered else CUSTOM}"


def _cards(offered: Sequence[Profile], available: Availability) -> list[str]:
    """The values of the cards that can be chosen: not of what this machine could never grant."""
    cards = []
    for profile in offered:
        for chosen in _selections(profile):
            if not available.offer(chosen.request).never:
                cards.append(_card_of(chosen))
        if profile.custom_max is not None:
            cards.append(f"{profile.slug}/{CUSTOM}")
    return cards


def _note(text: str) -> str:
    return f'<p class="gpuslice-note alert alert-warning" role="status">{escape(text)}</p>'


def limited(available: Availability, requests: Sequence[str], terms: Terms) -> Availability:
    """What there is for a user, of whom ``terms`` hold."""
    offers = dict(available.offers)
    for text in requests:
        request = GpuRequest.parse(text)
        offer = available.offer(request)
        over = beyond_limits(request, terms)
        if not over and available.standing is not None:
            words, waits = not_now(request, terms, available.standing)
            over = "" if waits else words
            offer = replace(offer, held_up=words if waits else "")
        offers[text] = replace(offer, never=True, message=over) if over else offer
    return replace(available, offers=offers)


def _summary(available: Availability, terms: Terms) -> str:
    """The machine's devices, who waits, and what the user holds of what they may."""
    kinds = [f"{kind.count} × {device_name(kind.name, kind.kind)}" for kind in available.devices]
    text = f"This machine has {', '.join(kinds)}." if kinds else ""
    if kinds and available.waiting:
        requests = "request waits" if available.waiting == 1 else "requests wait"
        text += f" {available.waiting} {requests} in the queue."
    text = f"{text} {available.note}".strip()
    if available.standing is not None:
        text = f"{text} {standing_words(terms, available.standing)}".strip()
    return f'<p class="gpuslice-pool text-body-secondary" id="gpuslice-pool">{escape(text)}</p>'


def _profile(profile: Profile, available: Availability, filled: _Filled) -> str:
    slug = escape(profile.slug)
    cards = [
        _card(profile, choice, available.offer(choice.request), filled)
        for choice in profile.choices
    ]
    if profile.custom_max is not None:
        examples = [each for each in profile.examples if not available.offer(each).never]
        limit = at_most(profile.custom_max)
        cards.append(_custom_card(profile, filled, limit, [str(each) for each in examples[:2]]))
    about = f"<p>{escape(profile.description)}</p>" if profile.description else ""
    return (
        f'<div role="group" aria-labelledby="gpuslice-{slug}">'
        f'<h2 id="gpuslice-{slug}">{escape(profile.display_name)}</h2>{about}'
        f'<div class="gpuslice-cards">{"".join(cards)}</div></div>'
    )


def _card(profile: Profile, choice: Choice, offer: Offer, filled: _Filled) -> str:
    request = str(choice.request)
    card = f"{profile.slug}/{request}"
    value = escape(card)
    status = escape(f"gpuslice-{profile.slug}-{request}-status")
    kind, words = status_words(choice.request, offer)
    marks = " checked" * (card == filled.card and not offer.never) + " disabled" * offer.never
    shown = f" <code>{escape(request)}</code>" if choice.request.kind != "none" else ""
    return (
        f'<label class="gpuslice-card"><input type="radio" name="choice" value="{value}"'
        f' aria-describedby="{status}"{marks}><span>'
        f'<span class="gpuslice-name">{escape(choice.label)}</span>{shown}'
        f'<span class="gpuslice-status gpuslice-{kind}" id="{status}">'
        f'<span class="gpuslice-dot" aria-hidden="true"></span>{escape(words)}</span>'
        "</span></label>"
    )


def _custom_card(profile: Profile, filled: _Filled, limit: str, examples: list[str]) -> str:
    slug = escape(profile.slug)
    chosen = filled.card == f"{profile.slug}/{CUSTOM}"
    value = escape(filled.amounts.get(profile.slug, ""))
    wrong = chosen and filled.refused
    return (
        f'<div class="gpuslice-card"><input type="radio" name="choice" value="{slug}/{CUSTOM}"'
        f' id="gpuslice-{slug}-custom"{" checked" * chosen}><span>'
        f'<label class="gpuslice-name" for="gpuslice-{slug}-custom">Another amount</label>'
        f'<input type="text" class="form-control form-control-sm{" is-invalid" * wrong}"'
        f' name="{CUSTOM}.{slug}" value="{value}" maxlength="{MOST_CHARACTERS}"'
        f' autocomplete="off" spellcheck="false"'
        f' placeholder="{escape(listed(examples, "or")) if examples else ""}"'
        f' aria-label="Another amount" aria-describedby="gpuslice-{slug}-max"'
        f"{' aria-invalid=true autofocus' * wrong}"
        f" oninput=\"document.getElementById('gpuslice-{slug}-custom').checked = true\">"
        f'<span class="gpuslice-status" id="gpuslice-{slug}-max">'
        f"{escape(limit[0].upper() + limit[1:])}.</span></span></div>"
    )


def status_words(request: GpuRequest, offer: Offer) -> tuple[str, str]:
    """A kind (``free``, ``busy``, ``never`` or ``unknown``) and the words beside a choice."""
    if request.kind == "none":
        return "free", "Starts at once"
    if offer.never:
        return "never", offer.message
    if offer.held_up:
        return "busy", f"{offer.held_up}: it waits until you give some back"
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
