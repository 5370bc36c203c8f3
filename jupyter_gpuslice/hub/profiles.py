"""Reading ``profiles.yaml``: every fault is named with its file, its place and what to write."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

from ..request import GpuRequest, RequestError
from .choice import Choice, Profile, Profiles, describe, listed, shown
from .faults import Faults, ProfileError, line_of, load, of_schema
from .policies import Policies, Rule

__all__ = [
    "ProfileError",
    "load_profiles",
    "parse_profiles",
    "parse_ttl",
    "read_profiles",
    "schema",
]

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MOST_TTL = 366 * 86400


def load_profiles(path: str | os.PathLike[str]) -> Profiles:
    """Read and check a file of profiles. :class:`ProfileError`, or ``OSError`` if unreadable."""
    profiles, faults = read_profiles(path)
    return _sound(profiles, faults)


def read_profiles(path: str | os.PathLike[str]) -> tuple[Profiles | None, list[ProfileError]]:
    """The profiles of a file, or all the faults that can be found in it. ``OSError``."""
    file = os.fspath(path)
    with open(path, encoding="utf-8") as stream:
        try:
            data, node, twice = load(stream.read())
        except UnicodeDecodeError:
            return None, [ProfileError("This is not a text in UTF-8.", file=file)]
        except ProfileError as fault:
            return None, [fault.at(file)]
    profiles, faults = _check(data)
    placed = [fault.at(file, line_of(fault, node)) for fault in [*twice, *faults]]
    placed.sort(key=lambda fault: fault.line or 0)
    return None if placed else profiles, placed


def parse_profiles(data: Any, file: str = "") -> Profiles:
    """The profiles that a declaration means; ``file`` is named in the :class:`ProfileError`."""
    profiles, faults = _check(data)
    return _sound(profiles, [fault.at(file) for fault in faults])


def _sound(profiles: Profiles | None, faults: list[ProfileError]) -> Profiles:
    """The profiles, if there is no fault; else the first one is raised."""
    if faults or profiles is None:
        raise faults[0].at("", more=len(faults) - 1)
    return profiles


def _check(data: Any) -> tuple[Profiles | None, list[ProfileError]]:
    if data is None:
        fault = ProfileError("There is nothing in it.", hint="It starts with `profiles:`.")
        return None, [fault]
    faults = Faults(of_schema(_validator().iter_errors(data)))
    declared = data.get("profiles") if isinstance(data, Mapping) else None
    profiles = []
    if isinstance(declared, list):
        items = [item if isinstance(item, Mapping) else {} for item in declared]
        profiles = [_profile(n, item, faults) for n, item in enumerate(items)]
        _check_together(items, faults)
    rules = data.get("policies") if isinstance(data, Mapping) else None
    policies = Policies(
        tuple(
            _rule(n, item if isinstance(item, Mapping) else {}, faults)
            for n, item in enumerate(rules if isinstance(rules, list) else ())
        )
    )
    return None if faults.found else Profiles(tuple(profiles), policies), faults.found


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of ``profiles.yaml``."""
    text = files(__package__).joinpath("profiles.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


def _rule(n: int, item: Mapping[str, Any], faults: Faults) -> Rule:
    """An entry of the policies; of one with faults, what can be made of it."""
    where = f"policies[{n}]"
    item = _usable(where, item, faults, "policy")
    with faults.noted():
        _check_texts(where, item)
    terms: dict[str, float | None] = {}
    for name, key in _TERMS.items():
        if key not in item:
            continue
        value = item[key]
        if name in ("lifetime", "idle") and value is not None:
            with faults.noted():
                terms[name] = _ttl(where, value, key)
        elif value != value:
            # `.nan`, which is within all bounds.
            message = f"{shown(value)} is not a number."
            faults.add(ProfileError(message, where=f"{where}.{key}", hint="Write 2, or 0.5."))
        else:
            terms[name] = value
    if not terms and not faults.within(where):
        faults.add(
            ProfileError(
                "It limits nothing.",
                where=where,
                hint=f"Write {listed(_TERMS.values(), 'or')}.",
            )
        )
    return Rule(frozenset(item.get("users", ())), frozenset(item.get("groups", ())), terms)


_TERMS = {
    "concurrent": "concurrent",
    "gpu_hours": "gpu_hours_per_week",
    "lifetime": "lifetime",
    "idle": "idle",
    "priority": "priority",
}
"""What a rule may say, and how it is written."""


def _usable(
    where: str, item: Mapping[str, Any], faults: Faults, what: str = "profile"
) -> dict[str, Any]:
    """What can be looked at further of an entry: known keys, with values of their type."""
    known = schema()["$defs"][what]["properties"]
    usable = {
        key: value
        for key, value in item.items()
        if key in known and not faults.within(f"{where}.{key}")
    }
    choices = item.get("choices")
    if isinstance(choices, list) and choices:
        # A choice that cannot be read says nothing about the others.
        usable["choices"] = [
            None if faults.within(f"{where}.choices[{n}]") else choice
            for n, choice in enumerate(choices)
        ]
    return usable


def _profile(n: int, item: Mapping[str, Any], faults: Faults) -> Profile:
    """A profile; of one with faults, what can be made of it."""
    where = f"profiles[{n}]"
    # What is missing may stand there, misspelt.
    whole = not faults.within(where)
    item = _usable(where, item, faults)
    slug = item.get("slug", "")
    choices: tuple[Choice, ...] = ()
    custom_max = ttl = idle = None
    with faults.noted():
        choices = _choices(where, item, whole, faults)
    with faults.noted():
        custom_max = _custom(where, item, whole)
    with faults.noted():
        _check_hold(where, item.get("hold", "reserved"))
    with faults.noted():
        ttl = _ttl(where, item["ttl"]) if "ttl" in item else None
    with faults.noted():
        idle = _ttl(where, item["idle"], "idle") if "idle" in item else None
    spawner = item.get("spawner", {})
    with faults.noted():
        _check_texts(where, item)
    with faults.noted():
        _check_url(f"{where}.spawner.default_url", spawner.get("default_url", ""))
    return Profile(
        slug=slug,
        display_name=item.get("display_name") or slug,
        description=item.get("description", ""),
        default=item.get("default", False),
        choices=choices,
        custom_max=custom_max,
        users=frozenset(item.get("users", ())),
        groups=frozenset(item.get("groups", ())),
        ttl=ttl,
        idle=idle,
        environment=dict(spawner.get("environment", {})),
        default_url=spawner.get("default_url", ""),
    )


def _check_texts(where: str, value: Any) -> None:
    """No text that a page cannot show or an environment cannot hold."""
    if isinstance(value, dict):
        for key, each in value.items():
            _check_texts(where, key)
            _check_texts(f"{where}.{key}", each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _check_texts(f"{where}[{number}]", each)
    elif isinstance(value, str) and ("\0" in value or not _encodes(value)):
        raise ProfileError(f"{shown(value)} has characters that no text may have.", where=where)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_url(where: str, url: str) -> None:
    try:
        url.format(username="", base_url="")
    except (LookupError, ValueError, AttributeError) as error:
        raise ProfileError(
            f"{shown(url)} is no address: only {{username}} and {{base_url}} are filled in.",
            where=where,
            hint="Write {{ and }} for braces that stay.",
        ) from error


def _check_hold(where: str, hold: str) -> None:
    hint = "Write hold: reserved, or leave it out."
    if hold == "elastic":
        raise ProfileError(
            "Elastic sessions, which give back what their kernels do not use, are not there yet.",
            where=f"{where}.hold",
            hint=hint,
        )
    if hold != "reserved":
        message = f"{shown(hold)} is no way to hold a slice."
        raise ProfileError(message, where=f"{where}.hold", hint=hint)


def _ttl(where: str, value: Any, key: str = "ttl") -> float:
    try:
        return parse_ttl(value)
    except ValueError as error:
        raise ProfileError(str(error), where=f"{where}.{key}") from error


def _choices(
    where: str, item: Mapping[str, Any], whole: bool, faults: Faults
) -> tuple[Choice, ...]:
    if "request" in item and "choices" in item:
        faults.add(
            ProfileError(
                "Either one request or several choices, not both.",
                where=where,
                hint="Write request: 0.5, say, or a list of choices.",
            )
        )
    if "request" not in item and "choices" not in item:
        if not whole:
            return ()
        raise ProfileError(
            "It does not say what it offers.",
            where=where,
            hint="Write request: 0.5, say, or a list of choices.",
        )
    if "request" in item:
        with faults.noted():
            request = _request(f"{where}.request", item["request"])
            return (Choice(request, describe(request), True),)
    choices: list[Choice] = []
    for n, choice in enumerate(item.get("choices", ())):
        if choice is None:
            continue
        at = f"{where}.choices[{n}]"
        written = choice if isinstance(choice, Mapping) else {"request": choice}
        with faults.noted():
            request = _request(f"{at}.request", written["request"])
            if any(other.request == request for other in choices):
                raise ProfileError(f"{request} is offered twice.", where=at)
            label = written.get("label") or describe(request)
            choices.append(Choice(request, label, written.get("default", False)))
    if sum(choice.default for choice in choices) > 1:
        raise ProfileError(
            "More than one choice is the default.",
            where=f"{where}.choices",
            hint="Keep default: true at one of them.",
        )
    return tuple(choices)


def _custom(where: str, item: Mapping[str, Any], whole: bool) -> GpuRequest | None:
    most = _request(f"{where}.max", item["max"]) if "max" in item else None
    if item.get("custom", False) or not whole:
        if most is None and whole:
            raise ProfileError(
                "Requests of the users' own need a limit.", where=where, hint="Write max: 1, say."
            )
        return most
    if most is not None:
        raise ProfileError(
            "A limit for requests of the users' own, which the profile does not allow.",
            where=f"{where}.max",
            hint="Add custom: true, or leave max out.",
        )
    return None


def _request(where: str, value: Any) -> GpuRequest:
    try:
        request = GpuRequest.parse(value)
    except RequestError as error:
        raise ProfileError(error.message, where=where, hint=error.hint) from error
    if request.kind == "auto":
        raise ProfileError(
            "auto is for kernels, which take what is free in their session.",
            where=where,
            hint="A profile says how much: 0.5, 10GiB or 1.",
        )
    return request


def _check_together(items: list[Mapping[str, Any]], faults: Faults) -> None:
    slugs: dict[str, int] = {}
    for n, item in enumerate(items):
        slug = item.get("slug")
        if not isinstance(slug, str):
            continue
        if slug in slugs:
            faults.add(
                ProfileError(
                    f"{slug!r} is the slug of profiles[{slugs[slug]}] already.",
                    where=f"profiles[{n}].slug",
                    hint="Every profile has a slug of its own.",
                )
            )
        slugs.setdefault(slug, n)
    defaults = [
        str(item.get("slug") or f"profiles[{n}]")
        for n, item in enumerate(items)
        if item.get("default") is True
    ]
    if len(defaults) > 1:
        faults.add(
            ProfileError(
                f"{listed(defaults)} are all the default.",
                where="profiles",
                hint="Keep default: true at one of them.",
            )
        )


def parse_ttl(value: Any) -> float:
    """Seconds from ``3600``, ``90s``, ``30m``, ``8h`` or ``2d``; ``ValueError`` says why not."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([a-z]*)", str(value).strip().lower())
    unit = _SECONDS.get(match[2] or "s") if match else None
    if match is None or unit is None:
        raise ValueError(f"{shown(value)} is no length of time: write 30m, 8h or 2d.")
    seconds = float(match[1]) * unit
    if not 0 < seconds <= _MOST_TTL:
        raise ValueError(f"{shown(value)} is no length of time from a second to a year.")
    return seconds
