"""Variables on their way into a peer and out of it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

LIMIT = 64 * 2**20
"""Pickled bytes that are moved at once, of all variables together."""


class ValueTransferError(Exception):
    """A variable that cannot be moved; the text names it."""


def dumps(value: Any) -> bytes:
    """Pickled, by cloudpickle where this environment has it: it takes functions and classes too."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    return pickler.dumps(value)


def push(namespace: MutableMapping[str, Any], text: str) -> list[str]:
    """Put the variables of a base64 pickle of a dict in the namespace; returns their names."""
    try:
        values = pickle.loads(base64.b64decode(text))  # noqa: S301 - signed messages of our user
    except Exception as error:
        raise ValueTransferError(
            f"What was pushed cannot be unpickled on this rank: {type(error).__name__}: {error}. "
            "Modules and classes that it needs must be there as well."
        ) from None
    if not isinstance(values, dict):
        raise ValueTransferError("What was pushed is no dict of variables.")
    namespace.update(values)
    return list(values)


def pull(namespace: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """The named variables as base64 pickles."""
    found: dict[str, str] = {}
    names = list(names)
    size = 0
    for name in names:
        if name not in namespace:
            raise ValueTransferError(f"There is no variable {name!r} on this rank.")
        try:
            data = dumps(namespace[name])
        except Exception as error:
            raise ValueTransferError(
                f"The variable {name!r} cannot be pickled: {type(error).__name__}: {error}"
            ) from None
        size += len(data)
        if size > LIMIT:
            what = f"{name!r} is" if not found else f"{', '.join(names)} together are"
            raise ValueTransferError(
                f"{what} too large to pull: more than {LIMIT // 2**20} MiB. "
                "Save what is large to a file on the rank instead."
            )
        found[name] = base64.b64encode(data).decode("ascii")
    return found
