"""Label and field selectors, as list and watch take them."""

from __future__ import annotations

import re
from typing import Any

from .status import bad_request


def matches_labels(selector: str, labels: dict[str, str]) -> bool:
    return all(_matches(part, labels) for part in _parts(selector))


def _parts(selector: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^()]*\))", selector) if part.strip()]


def _matches(part: str, labels: dict[str, str]) -> bool:
    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", part):
        values = [value.strip() for value in match[3].split(",")]
        return (labels.get(match[1]) in values) == (match[2] == "in")
    if match := re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*(\S*)", part):
        return (labels.get(match[1]) == match[3]) == (match[2] != "!=")
    if match := re.fullmatch(r"(!?)(\S+)", part):
        return (match[2] in labels) != bool(match[1])
    raise bad_request(f"unable to parse requirement: {part}")


def matches_fields(selector: str, body: dict[str, Any]) -> bool:
    for part in _parts(selector):
        match = re.fullmatch(r"([\w.]+)\s*(==|=|!=)\s*(.*)", part)
        if match is None:
            raise bad_request(f"invalid field selector: {part}")
        value: Any = body
        for key in match[1].split("."):
            value = value.get(key, "") if isinstance(value, dict) else ""
        if (str(value or "") == match[3]) != (match[2] != "!="):
            return False
    return True
