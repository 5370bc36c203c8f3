"""Reading ``profiles.yaml``: every fault is named with its file, its place and what to write."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from ..request import GpuRequest, RequestError
from .choice import Choice, Profile, Profiles, describe, listed, shown

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MOST_TTL = 366 * 86400


class ProfileError(ValueError):
    """Profiles that cannot be used: the file, the place in it, what is wrong, what to write."""

    def __init__(self, message: str, *, where: str = "", hint: str = "", file: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        self.file = file
        place = ": ".join(part for part in (file, where) if part)
        super().__init__(f"{place}: {message} {hint}".strip() if place else f"{message} {hint}")


def load_profiles(path: str | os.PathLike[str]) -> Profiles:
    """Read and check a file of profiles. :class:`ProfileError`, or ``OSError`` if unreadable."""
    file = os.fspath(path)
    with open(path, encoding="utf-8") as stream:
        try:
            data = yaml.load(stream, _Loader)  # noqa: S506 - a SafeLoader that minds its keys
        except yaml.YAMLError as error:
            raise ProfileError(f"This is not YAML: {_one_line(error)}", file=file) from error
        except UnicodeDecodeError as error:
            raise ProfileError("This is not a text in UTF-8.", file=file) from error
    return parse_profiles(data, file)


def parse_profiles(data: Any, file: str = "") -> Profiles:
    """The profiles that a declaration means; ``file`` is named in the :class:`ProfileError`."""
    try:
        if data is None:
            raise ProfileError("There is nothing in it.", hint="It starts with `profiles:`.")
        error = best_match(_validator().iter_errors(data), key=_relevance)
        if error is not None:
            raise _schema_error(error)
        profiles = [_profile(n, item) for n, item in enumerate(data["profiles"])]
        _check_together(profiles)
    except ProfileError as error:
        if error.file or not file:
            raise
        raise ProfileError(error.message, where=error.where, hint=error.hint, file=file) from None
    return Profiles(tuple(profiles))


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of ``profiles.yaml``."""
    text = files(__package__).joinpath("profiles.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key written twice: plain YAML silently forgets the first."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        try:
            twice = key in seen
        except TypeError:
            raise yaml.constructor.ConstructorError(
                None, None, "a key is a plain text", key_node.start_mark
            ) from None
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{key!r} stands twice", key_node.start_mark
            )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _profile(n: int, item: Mapping[str, Any]) -> Profile:
    where = f"profiles[{n}]"
    slug = item["slug"]
    choices = _choices(where, item)
    hold = item.get("hold", "reserved")
    if hold == "elastic":
        raise ProfileError(
            "Elastic sessions, which give back what their kernels do not use, are not there yet.",
            where=f"{where}.hold",
            hint="Write hold: reserved, or leave it out.",
        )
    if hold != "reserved":
        raise ProfileError(
            f"{shown(hold)} is no way to hold a slice.",
            where=f"{where}.hold",
            hint="Write hold: reserved, or leave it out.",
        )
    ttl = None
    if "ttl" in item:
        try:
            ttl = parse_ttl(item["ttl"])
        except ValueError as error:
            raise ProfileError(str(error), where=f"{where}.ttl") from error
    spawner = item.get("spawner", {})
    return Profile(
        slug=slug,
        display_name=item.get("display_name") or slug,
        description=item.get("description", ""),
        default=item.get("default", False),
        choices=choices,
        custom_max=_custom(where, item),
        users=frozenset(item.get("users", ())),
        groups=frozenset(item.get("groups", ())),
        ttl=ttl,
        environment=dict(spawner.get("environment", {})),
        default_url=spawner.get("default_url", ""),
    )


def _choices(where: str, item: Mapping[str, Any]) -> tuple[Choice, ...]:
    if ("request" in item) == ("choices" in item):
        both = "request" in item
        raise ProfileError(
            "Either one request or several choices, not both."
            if both
            else "It does not say what it offers.",
            where=where,
            hint="Write request: 0.5, say, or a list of choices.",
        )
    if "request" in item:
        request = _request(f"{where}.request", item["request"])
        return (Choice(request, describe(request), True),)
    choices: list[Choice] = []
    for n, choice in enumerate(item["choices"]):
        if not isinstance(choice, Mapping):
            choice = {"request": choice}
        request = _request(f"{where}.choices[{n}].request", choice["request"])
        if any(other.request == request for other in choices):
            raise ProfileError(f"{request} is offered twice.", where=f"{where}.choices[{n}]")
        label = choice.get("label") or describe(request)
        choices.append(Choice(request, label, choice.get("default", False)))
    if sum(choice.default for choice in choices) > 1:
        raise ProfileError(
            "More than one choice is the default.",
            where=f"{where}.choices",
            hint="Keep default: true at one of them.",
        )
    return tuple(choices)


def _custom(where: str, item: Mapping[str, Any]) -> GpuRequest | None:
    if not item.get("custom", False):
        if "max" in item:
            raise ProfileError(
                "A limit for requests of the users' own, which the profile does not allow.",
                where=f"{where}.max",
                hint="Add custom: true, or leave max out.",
            )
        return None
    if "max" not in item:
        raise ProfileError(
            "Requests of the users' own need a limit.", where=where, hint="Write max: 1, say."
        )
    return _request(f"{where}.max", item["max"])


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


def _check_together(profiles: list[Profile]) -> None:
    slugs: dict[str, int] = {}
    for n, profile in enumerate(profiles):
        if profile.slug in slugs:
            raise ProfileError(
                f"{profile.slug!r} is the slug of profiles[{slugs[profile.slug]}] already.",
                where=f"profiles[{n}].slug",
                hint="Every profile has a slug of its own.",
            )
        slugs[profile.slug] = n
    defaults = [profile.slug for profile in profiles if profile.default]
    if len(defaults) > 1:
        raise ProfileError(
            f"{listed(defaults)} are all the default.",
            where="profiles",
            hint="Keep default: true at one of them.",
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


def _relevance(error: ValidationError) -> tuple[int, bool]:
    """The shallowest error first, an unknown key before what is missing (often the same typo)."""
    return -len(error.absolute_path), error.validator == "additionalProperties"


def _schema_error(error: ValidationError) -> ProfileError:
    rule: Any = error.validator_value
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
    ).lstrip(".")
    rules = error.schema if isinstance(error.schema, Mapping) else {}
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = sorted(rules.get("properties", {}))
        extra = next(key for key in error.instance if key not in known)
        near = get_close_matches(str(extra), known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}."
        return ProfileError(f"There is no key {shown(extra)}.", where=where, hint=hint)
    if error.validator == "required" and isinstance(error.instance, Mapping):
        missing = next(key for key in rule if key not in error.instance)
        return ProfileError(f"{missing} is missing.", where=where, hint=_MISSING.get(missing, ""))
    if error.validator == "type":
        words = [_TYPES.get(w, w) for w in ([rule] if isinstance(rule, str) else rule)]
        hint = rules.get("description", "") if where else "It starts with `profiles:`."
        return ProfileError(
            f"{shown(error.instance)} is not {' or '.join(words)}.", where=where, hint=hint
        )
    if error.validator == "pattern":
        hint = "Write lower-case letters, digits and hyphens, 63 at most: half-gpu."
        if not where.endswith("slug"):
            hint = "Write letters, digits and underscores: OMP_NUM_THREADS."
        return ProfileError(f"{shown(error.instance)} cannot be used here.", where=where, hint=hint)
    if error.validator in ("minItems", "minLength"):
        return ProfileError("It is empty.", where=where, hint="Leave it out, or write something.")
    return ProfileError(f"{error.message}.", where=where)


_MISSING = {
    "profiles": "The file starts with `profiles:` and a list of them.",
    "slug": "Every profile has a short name for links and REST calls: slug: half-gpu.",
    "request": "Write request: 0.5, say.",
}
_TYPES = {
    "object": "a mapping of keys to values",
    "array": "a list",
    "string": "a text",
    "number": "a number",
    "boolean": "true or false",
}


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}." if mark else f"{problem}."
