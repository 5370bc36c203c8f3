"""Kubernetes' quantities (k8s.io/apimachinery, pkg/api/resource), as far as GPUs are counted."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_SCALES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)([A-Za-z]{0,2})")


def number(quantity: Any) -> Decimal | None:
    """What a quantity says, also one of CPU such as ``500m``; ``None`` for what is none."""
    text = str(quantity)
    if text.endswith("m"):
        thousandths = _parsed(text[:-1])
        return None if thousandths is None else thousandths / 1000
    return _parsed(text)


def count(quantity: Any) -> int:
    """A whole number, written as ``2`` or ``2k``; 0 for what is none."""
    return int(_parsed(quantity) or 0)


def mib(quantity: Any) -> int | None:
    """An amount of bytes in MiB, rounded down; ``None`` for what is none."""
    amount = _parsed(quantity)
    return None if amount is None else int(amount // 2**20)


def _parsed(quantity: Any) -> Decimal | None:
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None or match[2] not in _SCALES:
        return None
    return Decimal(match[1]) * _SCALES[match[2]]
