"""What can be wrong with a declaration: where it stands, what it is, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import yaml
from jsonschema.exceptions import ValidationError

from .choice import shown

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


class ProfileError(ValueError):
    """Profiles that cannot be used: the file, the place in it, what is wrong, what to write.

    ``key`` is the one in ``where`` that is meant; ``line`` is known of a file only; ``more`` is how
    many other faults there are.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        hint: str = "",
        file: str = "",
        key: str = "",
        line: int | None = None,
        more: int = 0,
    ) -> None:
        self.message = message
        self.where = where
        self.hint = hint
        self.file = file
        self.key = key
        self.line = line
        at = f"{file}:{line}" if file and line else file
        place = "".join(f"{part}: " for part in (at, where) if part)
        rest = f"({more} more: `jupyter gpuslice profiles check` names all.)" if more else ""
        super().__init__(" ".join(f"{place}{message} {hint} {rest}".split()))

    def at(self, file: str, line: int | None = None, more: int = 0) -> ProfileError:
        """The same fault of a file, and where in it."""
        return ProfileError(
            self.message,
            where=self.where,
            hint=self.hint,
            file=file or self.file,
            key=self.key,
            line=line or self.line,
            more=more,
        )


@dataclass
class Faults:
    """All faults that were found so far."""

    found: list[ProfileError] = field(default_factory=list)

    def add(self, fault: ProfileError) -> None:
        self.found.append(fault)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Goes on after what is inside, whether or not that has a fault."""
        try:
            yield
        except ProfileError as fault:
            self.add(fault)

    def within(self, where: str) -> bool:
        """Whether a fault was found there, or in a part of it."""
        return any(
            fault.where == where or fault.where.startswith((f"{where}.", f"{where}["))
            for fault in self.found
        )


def of_schema(errors: Iterable[ValidationError]) -> list[ProfileError]:
    """Faults in words, in the order of the declaration; none twice."""
    found: dict[tuple[str, str], ProfileError] = {}
    guessed: set[tuple[str, str]] = set()
    for error in sorted(errors, key=_unknown_keys_first):
        for fault, guess in _in_words(error):
            if guess:
                guessed.add((fault.where, guess))
            # A key that is only misspelt is not missing as well.
            if fault.key and not guess and (fault.where, fault.key) in guessed:
                continue
            found.setdefault((fault.where, fault.message), fault)
    return list(found.values())


def _unknown_keys_first(error: ValidationError) -> bool:
    return error.validator != "additionalProperties"


def _in_words(error: ValidationError) -> Iterator[tuple[ProfileError, str]]:
    """The faults that an error of the schema stands for, each with a key that was likely meant."""
    rule: Any = error.validator_value
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
    ).lstrip(".")
    rules = error.schema if isinstance(error.schema, Mapping) else {}
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = sorted(rules.get("properties", {}))
        for extra in (key for key in error.instance if key not in known):
            near = get_close_matches(str(extra), known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}."
            message = f"There is no key {shown(extra)}."
            fault = ProfileError(message, where=where, hint=hint, key=str(extra))
            yield fault, near[0] if near else ""
        return
    if error.validator == "required" and isinstance(error.instance, Mapping):
        for missing in (key for key in rule if key not in error.instance):
            message, hint = f"{missing} is missing.", _MISSING.get(missing, "")
            yield ProfileError(message, where=where, hint=hint, key=missing), ""
        return
    message, hint = _value_in_words(error, where, rules)
    # A key that cannot be one is no part of its own path.
    key = str(error.instance) if "propertyNames" in error.absolute_schema_path else ""
    yield ProfileError(message, where=where, hint=hint, key=key), ""


def _value_in_words(
    error: ValidationError, where: str, rules: Mapping[str, Any]
) -> tuple[str, str]:
    """What is wrong with one value, and what to write."""
    rule: Any = error.validator_value
    if error.validator == "type":
        words = [_TYPES.get(w, w) for w in ([rule] if isinstance(rule, str) else rule)]
        hint = str(rules.get("description", "")) if where else "It starts with `profiles:`."
        return f"{shown(error.instance)} is not {' or '.join(words)}.", hint
    if error.validator == "pattern":
        hint = "Write lower-case letters, digits and hyphens, 63 at most: half-gpu."
        if not where.endswith("slug"):
            hint = "Write letters, digits and underscores: OMP_NUM_THREADS."
        return f"{shown(error.instance)} cannot be used here.", hint
    if error.validator in ("minItems", "minLength"):
        return "It is empty.", "Leave it out, or write something."
    return f"{error.message}.", ""


_MOST_NODES = 100_000
"""What a file may hold once its aliases are filled in: a few lines can mean billions."""


class Loader(yaml.SafeLoader):
    """YAML as people read it, which minds a key written twice: plain YAML forgets the first.

    A number is what looks like one. For PyYAML, which speaks YAML 1.1, ``1:30`` is 90 and ``010``
    is 8; here they are texts, as in YAML 1.2, and so are ``1_000``, ``0b11`` and dates.

    ``twice`` are the faults of keys that stand twice.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.twice: list[ProfileError] = []


def _mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    # Before what `<<` brings in: a key may stand in place of a merged one.
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        try:
            twice = key in seen
        except TypeError:
            raise ProfileError("A key is a plain text.", line=line) from None
        if twice:
            loader.twice.append(ProfileError(f"The key {key!r} stands twice.", line=line))
        seen.add(key)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][-+]?[0-9]+)?$"
        r"|[-+]?(?:0|[1-9][0-9]*)\.(?:[eE][-+]?[0-9]+)?$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
}
_NONE_OF_OURS = "tag:yaml.org,2002:timestamp"
Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, rule)) for tag, rule in rules if tag != _NONE_OF_OURS]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(text: str) -> tuple[Any, yaml.Node | None, list[ProfileError]]:
    """What a text in YAML says, its places for `line_of`, and keys that stand twice.

    :class:`ProfileError` for a text that is not YAML.
    """
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _check_size(node)
        return loader.construct_document(node) if node else None, node, loader.twice
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = mark.line + 1 if mark else None
        raise ProfileError(f"This is not YAML: {problem}.", line=line) from error
    except ProfileError:
        raise
    except (RecursionError, ValueError) as error:
        raise ProfileError(f"This is no file of profiles: {str(error) or 'too deep'}.") from error


def _check_size(root: yaml.Node) -> None:
    """:class:`ProfileError` for a text that is far more than it looks, or that holds itself."""
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node), 0)
        line = node.start_mark.line + 1
        if known is None:
            raise ProfileError("This holds itself, by an alias.", line=line)
        if known:
            return known
        sizes[id(node)] = None
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        total = 1 + sum(map(size, parts))
        if total > _MOST_NODES:
            raise ProfileError(
                "With its aliases filled in, this is larger than a file of profiles can be.",
                line=line,
                hint="Write it without aliases (*name).",
            )
        sizes[id(node)] = total
        return total

    size(root)


def line_of(fault: ProfileError, node: yaml.Node | None) -> int | None:
    """The line that a fault is in, or that of the part that it is nearest to."""
    if fault.line is not None or node is None:
        return fault.line
    line = node.start_mark.line + 1
    parts = [index or name for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", fault.where)]
    for part in [*parts, *([fault.key] if fault.key else [])]:
        if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
            continue
        found = [
            (key, value)
            for key, value in (node.value if isinstance(node, yaml.MappingNode) else ())
            if getattr(key, "value", None) == part
        ]
        if not found:
            break
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
    return line
