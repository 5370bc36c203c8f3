"""What a hub offers and what a user chose of it: values, and the one check of every choice.

The spawn page, the REST API and the spawner all go through :meth:`Profiles.select`, so a profile
that is denied on the page cannot be had by any other way either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from ..request import GpuRequest, RequestError
from .policies import NO_TERMS, Policies, Terms, beyond_limits

OPTIONS = ("profile", "request")
"""What ``user_options`` may hold."""


class ChoiceError(Exception):
    """A choice that is not to be had; ``status`` is the HTTP status it means (400 or 403).

    ``advice`` is a sentence on what to do, which may name requests; ``examples`` are requests that
    the profile gives, for the hint to offer.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        advice: str = "",
        status: int = 400,
        examples: Sequence[GpuRequest] = (),
    ) -> None:
        self.reason = reason
        self.message = message
        self.status = status
        self.examples = tuple(examples)
        self._advice = advice
        super().__init__(f"{message} {self.hint}".strip())

    @property
    def hint(self) -> str:
        words = (str(request) for request in self.examples)
        offer = f"Write {listed(words, 'or')}." if self.examples else ""
        return f"{self._advice} {offer}".strip()

    @property
    def named(self) -> list[GpuRequest]:
        """All requests that the hint offers."""
        return [*self.examples, *_requests_in(self._advice)]

    def among(self, possible: Callable[[GpuRequest], bool]) -> ChoiceError:
        """The same, its hint without the requests that are not possible."""
        sentences = re.split(r"(?<=[.!?]) ", self._advice)
        advice = " ".join(s for s in sentences if all(map(possible, _requests_in(s))))
        return ChoiceError(
            self.reason, self.message, advice, self.status, list(filter(possible, self.examples))
        )

    def of(self, profile: Profile) -> ChoiceError:
        """The same in a profile's terms: what it does not give gives way to its own examples."""
        here = self.among(profile.gives)
        if here.hint == self.hint:
            return self
        return ChoiceError(self.reason, self.message, here._advice, self.status, profile.examples)


@dataclass(frozen=True)
class Choice:
    """One request that a profile offers."""

    request: GpuRequest
    label: str
    default: bool = False


@dataclass(frozen=True)
class Profile:
    """Something that a user may start a server with."""

    slug: str
    display_name: str
    choices: tuple[Choice, ...]
    description: str = ""
    default: bool = False
    custom_max: GpuRequest | None = None
    """The largest request that users may write themselves; ``None``: none at all."""
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    ttl: float | None = None
    """Seconds that the GPU is held at most; ``None`` is as long as the server runs."""
    idle: float | None = None
    """Seconds without activity after which the server ends; ``None`` is never."""
    environment: Mapping[str, str] = field(default_factory=dict)
    default_url: str = ""

    def allows(self, user: str, groups: Collection[str]) -> bool:
        """Whether a user may have it. A profile that names nobody is for everybody."""
        if not self.users and not self.groups:
            return True
        return user in self.users or not self.groups.isdisjoint(groups)

    @property
    def default_choice(self) -> Choice:
        return next((choice for choice in self.choices if choice.default), self.choices[0])

    def gives(self, request: GpuRequest) -> bool:
        """Whether it offers a request, or lets users write it."""
        if any(choice.request == request for choice in self.choices):
            return True
        return self.custom_max is not None and not beyond(request, self.custom_max)

    @property
    def examples(self) -> tuple[GpuRequest, ...]:
        """What users may write: a few of many, or else all that is offered."""
        most = self.custom_max
        if most is None:
            return tuple(choice.request for choice in self.choices)
        model = f"{most.model}:" if most.model else ""
        some = [GpuRequest.parse(model + text) for text in ("0.5", "10GiB")]
        within = [request for request in [*some, most] if not beyond(request, most)]
        return tuple(dict.fromkeys(within))


@dataclass(frozen=True)
class Selection:
    """A choice that was checked."""

    profile: Profile
    request: GpuRequest
    terms: Terms = NO_TERMS
    """What holds for its user."""

    @property
    def ttl(self) -> float | None:
        """Seconds that the GPU is held at most."""
        return _least(self.profile.ttl, self.terms.lifetime)

    @property
    def idle(self) -> float | None:
        """Seconds without activity after which the server ends."""
        return _least(self.profile.idle, self.terms.idle)

    def to_options(self) -> dict[str, str]:
        """The choice as ``user_options``, for the hub to keep."""
        return {"profile": self.profile.slug, "request": str(self.request)}


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Profiles:
    """All profiles of a hub, in the order of the spawn page."""

    all: tuple[Profile, ...]
    policies: Policies = Policies()  # noqa: RUF009 - it is frozen

    def terms(self, user: str, groups: Collection[str]) -> Terms:
        """What users may hold whatever they choose."""
        return self.policies.terms(user, groups)

    def visible(self, user: str, groups: Collection[str]) -> list[Profile]:
        """The profiles that a user may have."""
        return [profile for profile in self.all if profile.allows(user, groups)]

    def select(
        self, options: Mapping[str, Any] | None, user: str, groups: Collection[str]
    ) -> Selection:
        """What a user's options mean; nothing chosen means the default. :class:`ChoiceError`."""
        options = dict(options or {})
        for key in options:
            if key not in OPTIONS:
                near = get_close_matches(str(key), OPTIONS, n=1)
                raise ChoiceError(
                    "bad_option",
                    f"There is no option {shown(key)}.",
                    f"Did you mean {near[0]}?" if near else "The options are profile and request.",
                )
        for key, value in options.items():
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise ChoiceError("bad_option", f"The option {key} is a text, not {shown(value)}.")
        offered = self.visible(user, groups)
        if not offered:
            raise ChoiceError(
                "not_allowed",
                "No profile of this hub is for you.",
                "Ask the hub's administrators for access.",
                403,
            )
        profile = self._profile(options.get("profile"), offered)
        request = profile.default_choice.request
        if "request" in options:
            request = _requested(profile, options["request"])
        terms = self.terms(user, groups)
        over = beyond_limits(request, terms)
        if over:
            within = [each for each in profile.examples if not beyond_limits(each, terms)]
            advice = "" if within else "Choose another profile, or ask the hub's administrators."
            message = f"{request} is more than you may have: {over}"
            raise ChoiceError("over_quota", message, advice, 403, within)
        return Selection(profile, request, terms)

    def _profile(self, slug: object, offered: list[Profile]) -> Profile:
        if slug is None:
            return next((profile for profile in offered if profile.default), offered[0])
        for profile in offered:
            if profile.slug == slug:
                return profile
        if any(profile.slug == slug for profile in self.all):
            raise ChoiceError(
                "not_allowed",
                f"The profile {shown(slug)} is not for you.",
                f"Yours are {listed(p.slug for p in offered)}.",
                403,
            )
        raise ChoiceError(
            "unknown_profile",
            f"There is no profile {shown(slug)}.",
            f"Choose {listed((p.slug for p in offered), 'or')}.",
        )


def _requested(profile: Profile, text: Any) -> GpuRequest:
    if not str(text).strip():
        raise ChoiceError("bad_request", "The amount is empty.", examples=profile.examples)
    try:
        request = GpuRequest.parse(text)
    except RequestError as error:
        # The grammar's examples are of everything that there is: the profile's own are of more use.
        advice = error.hint.partition("Valid requests:")[0].strip()
        told = ChoiceError(error.reason, error.message, advice, examples=profile.examples)
        raise told.among(profile.gives) from error
    if any(choice.request == request for choice in profile.choices):
        return request
    if profile.custom_max is None:
        raise ChoiceError(
            "not_offered",
            f"The profile {profile.slug} does not offer {request}.",
            examples=profile.examples,
        )
    why = beyond(request, profile.custom_max)
    if why:
        raise ChoiceError(
            "over_limit",
            f"The profile {profile.slug} does not give {request}: {why}",
            examples=profile.examples,
        )
    return request


def beyond(request: GpuRequest, most: GpuRequest) -> str:
    """Why a request is more than another, or cannot be compared with it; ``""`` if it is not."""
    if request.kind == "none":
        return ""
    if request.kind == "auto":
        return "auto is for kernels; a server asks for an amount."
    limit = f"it gives {at_most(most)}."
    if most.model is not None and request.model != most.model:
        return f"it is for {most.model}, so write {most.model}: before the amount; {limit}"
    if request.count > most.count:
        return limit
    if most.whole:
        return ""
    if request.kind != most.kind or (request.profile != most.profile):
        return f"{request} does not compare with its limit; {limit}"
    if request.fraction is not None and most.fraction is not None:
        return limit if request.fraction > most.fraction else ""
    if request.memory_mib is not None and most.memory_mib is not None:
        if request.memory_mib > most.memory_mib:
            return limit
        if (request.compute_percent or 0) > (most.compute_percent or 0):
            return limit
        if request.compute_percent is None and most.compute_percent is not None:
            return f"{request} does not say how much compute; {limit}"
    return ""


def at_most(most: GpuRequest) -> str:
    """A limit in words: what of, and how to write it where that is not plain."""
    words = describe(most)
    if most.whole:
        return f"at most {words.replace('One', '1')}"
    return f"at most {words} ({most})"


def _requests_in(text: str) -> list[GpuRequest]:
    """The requests that stand in a sentence; a number of something is none."""
    found = []
    for word, following in pairwise([*text.split(), ""]):
        if word.replace(".", "", 1).isdigit() and following.strip(".,") in _COUNTED:
            continue
        try:
            found.append(GpuRequest.parse(word.strip(".,:;()")))
        except RequestError:
            continue
    return found


_COUNTED = ("s", "min", "h", "%", "GiB", "MiB", "device", "devices", "GPU", "GPUs", "workers")


def describe(request: GpuRequest) -> str:
    """A request in words, for people: a label where the admin wrote none."""
    model = f" of {_article(request.model)} {request.model.upper()}" if request.model else ""
    of = model or " of a GPU"
    many = f"{request.count} × " if request.count > 1 else ""
    if request.kind == "none":
        return "CPU only"
    if request.kind == "auto":
        return f"What is free{of}"
    if request.fraction is not None:
        kind = request.model.upper() if request.model else "GPU"
        if request.whole:
            return f"{request.count} {kind}s" if request.count > 1 else f"One {kind}"
        percent = float(request.fraction * 100)
        return f"{many}{percent:g} %{of}"
    if request.memory_mib is not None:
        amount = (
            f"{request.memory_mib} MiB"
            if request.memory_mib % 1024
            else f"{request.memory_mib // 1024} GiB"
        )
        compute = f", {request.compute_percent} % compute" if request.compute_percent else ""
        return f"{many}{amount}{of}{compute}"
    return f"{many}MIG {request.profile}{model}"


def _article(model: str) -> str:
    """a T4, an A100: the first letter is spoken by its name."""
    return "an" if model[0] in "aefhilmnorsx" else "a"


def listed(items: Iterable[str], word: str = "and") -> str:
    *head, last = list(items)
    return f"{', '.join(head)} {word} {last}" if head else last


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
