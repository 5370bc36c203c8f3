"""The JSON bodies of a group's calls, checked field by field. Each raises :class:`Refused`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..broker.explain import Refused


def fields(body: Any, known: Collection[str]) -> Mapping[str, Any]:
    """The body, if it is an object of known fields."""
    if not isinstance(body, Mapping):
        raise Refused("bad_request", "The body of this call is a JSON object.")
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise Refused("bad_request", f"Unknown field {str(unknown[0])[:40]!r}.")
    return body


def text(body: Mapping[str, Any], name: str) -> str | None:
    """A text, or ``None`` for an empty or missing one."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused("bad_request", f"{name!r} is a text.")
    return value or None


def flag(body: Mapping[str, Any], name: str) -> bool:
    """True or false; a missing one is false."""
    value = body.get(name, False)
    if value is not None and not isinstance(value, bool):
        raise Refused("bad_request", f"{name!r} is true or false.")
    return bool(value)
