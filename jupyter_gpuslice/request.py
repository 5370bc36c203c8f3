"""What somebody asks for: one grammar for forms, magics, REST, profiles and metadata.

==================  ==========================================================================
``0``, ``none``     no GPU
``auto``            what is free in the pool, up to one device
``0.25``            a quarter of one device: memory and compute
``10GiB``           that much memory on one device, no compute reserved
``10GiB/50%``       memory and compute apart
``2``               a bundle: two whole devices on one node
``2x0.5``           two slices on two different devices
``1g.10gb``         a MIG profile
``h100:0.5``        any of these on a model
==================  ==========================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

Kind = Literal["none", "auto", "fraction", "memory", "mig"]

EXAMPLES = ("0.5", "10GiB/50%", "h100:2")
SMALLEST_FRACTION = Fraction(1, 100)
MOST_DEVICES = 1024
MOST_MIB = 1 << 31

# Bytes in one unit. SI prefixes are decimal, IEC prefixes binary (IEC 80000-13).
_UNITS = {
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_MIB = 2**20

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}"
_COUNT = re.compile(r"([0-9]{1,9})\s*x\s*(.*)", re.IGNORECASE | re.DOTALL)
_AMOUNT = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE)
_PERCENT = re.compile(rf"({_NUMBER})\s*%")
_MODEL = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_MIG = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]+(?:\.[a-z]+)?)*")


class RequestError(ValueError):
    """A text that is no request. ``message`` says which part, ``hint`` what to write instead."""

    reason = "bad_request"

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = f"{hint} Valid requests: {', '.join(EXAMPLES)}.".strip()
        super().__init__(f"{self.message} {self.hint}")


@dataclass(frozen=True)
class GpuRequest:
    """A request as a value: equal requests are equal, and ``str()`` parses to an equal one.

    ``count`` slices are meant to lie on as many different devices; ``fraction`` is exact and at
    most 1 (1: a whole device); ``memory_mib`` is rounded down. ``RequestError`` for fields that
    make no request.
    """

    kind: Kind
    count: int = 1
    fraction: Fraction | None = None
    memory_mib: int | None = None
    compute_percent: int | None = None
    """With ``memory`` only: compute reserved and capped (1 to 100); ``None`` reserves none."""
    profile: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        check = {"fraction": self.fraction, "memory": self.memory_mib, "mig": self.profile}
        for kind, value in check.items():
            if (value is not None) != (kind == self.kind):
                raise RequestError(f"A request of kind {self.kind!r} does not hold {value!r}.")
        if not 1 <= self.count <= MOST_DEVICES:
            raise RequestError(f"{self.count} is no number of devices from 1 to {MOST_DEVICES}.")
        if self.kind in ("none", "auto") and self.count != 1:
            raise RequestError(f"{self.kind!r} cannot be asked for several times.")
        if self.kind == "none" and self.model:
            raise RequestError(
                f"No GPU at all, but of model {self.model!r}: that is a contradiction."
            )
        if self.fraction is not None:
            self._check_fraction(self.fraction)
        if self.memory_mib is not None and not 1 <= self.memory_mib <= MOST_MIB:
            raise RequestError("The amount of memory is less than 1 MiB or beyond any device.")
        if self.compute_percent is not None:
            if self.kind != "memory":
                raise RequestError("A percentage of compute goes with an amount of memory.")
            if not 1 <= self.compute_percent <= 100:
                raise RequestError(f"{self.compute_percent}% is no share from 1% to 100%.")

    @staticmethod
    def _check_fraction(fraction: Fraction) -> None:
        if not SMALLEST_FRACTION <= fraction <= 1:
            raise RequestError(
                f"{_decimal(fraction)} is no fraction of a device: from "
                f"{float(SMALLEST_FRACTION)} to 1."
            )
        rest = fraction.denominator
        for prime in (2, 5):
            while rest % prime == 0:
                rest //= prime
        if rest != 1:
            raise RequestError(f"{fraction} has no exact decimal form.")

    @classmethod
    def parse(cls, text: Any) -> GpuRequest:
        """The request that ``text`` means; ``RequestError`` names what it does not understand.

        Numbers are taken as their text, so that a form's ``0.5`` and ``1`` work as well.
        """
        if isinstance(text, GpuRequest):
            return text
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise RequestError(f"A request is a text, not {type(text).__name__}.")
        whole = str(text).strip()
        if not whole:
            raise RequestError("The request is empty.")
        if len(whole) > 100:
            raise RequestError("The request is longer than 100 characters.")
        *models, body = (part.strip() for part in whole.split(":"))
        if models and models[-1].lower() == "mig":
            models.pop()
            if not _MIG.fullmatch(_rest_of(body).lower()):
                raise RequestError(
                    f"{_shown(body)} is no MIG profile.",
                    "MIG profiles read like 1g.10gb, 3g.40gb or 1g.10gb+me.",
                )
        if len(models) > 1:
            raise RequestError(f"{_shown(whole)} names more than one model.")
        model = cls._parse_model(models[0]) if models else None
        return cls._parse_body(body, model)

    @staticmethod
    def _parse_model(text: str) -> str:
        model = text.lower()
        if not _MODEL.fullmatch(model) or not re.search("[a-z]", model) or _MIG.fullmatch(model):
            raise RequestError(
                f"{_shown(text)} before the colon is no GPU model.",
                "Write for example h100:0.5, a100-80gb:2 or l4:10GiB.",
            )
        return model

    @classmethod
    def _parse_body(cls, body: str, model: str | None) -> GpuRequest:
        word = body.lower()
        if not word:
            raise RequestError("Nothing is asked for after the colon.")
        if word == "none" or re.fullmatch(r"0{1,9}(\.0{1,9})?", word):
            return cls("none", model=model)
        if word == "auto":
            return cls("auto", model=model)
        count, unit = 1, body
        if match := _COUNT.fullmatch(body):
            count, unit = int(match[1]), match[2].strip()
            if count == 0:
                raise RequestError("0x asks for nothing.", "Write 0 for no GPU.")
            if not unit:
                raise RequestError(f"{_shown(body)} does not say how much of each device.")
        if _MIG.fullmatch(unit.lower()):
            return cls("mig", count, profile=unit.lower(), model=model)
        amount, slash, percent = (part.strip() for part in unit.partition("/"))
        match = _AMOUNT.fullmatch(amount)
        if match is None:
            raise RequestError(
                f"{_shown(amount or unit)} is neither a number nor an amount of memory."
            )
        number = Fraction(match[1])
        if match[2]:
            return cls(
                "memory",
                count,
                memory_mib=_memory(number, match[2], amount),
                compute_percent=_percent(percent) if slash else None,
                model=model,
            )
        if slash:
            raise RequestError(
                f"{_shown(unit)}: only an amount of memory takes a percentage.",
                "Write 10GiB/50%, or 0.5 for half of memory and compute.",
            )
        return cls._of_number(count, number, model)

    @classmethod
    def _of_number(cls, count: int, number: Fraction, model: str | None) -> GpuRequest:
        if number <= 1:
            return cls("fraction", count, fraction=number, model=model)
        if number.denominator == 1:
            if count != 1:
                raise RequestError(
                    f"{count}x{number} counts twice.", f"Write {count * number} for whole devices."
                )
            return cls("fraction", int(number), fraction=Fraction(1), model=model)
        parts = -(-number.numerator // number.denominator)
        each = number / parts
        prefix = f"{model}:" if model else ""
        exact = each.denominator in (1, 2, 4, 5, 10, 20, 25, 50, 100)
        hint = f"{prefix}{parts}x{_decimal(each)}" if exact else f"{prefix}{parts}"
        raise RequestError(
            f"{_decimal(number)} devices cannot be granted: a slice lies on one device.",
            f"Write {hint} for {'slices' if exact else 'whole devices'} on {parts} devices.",
        )

    @property
    def whole(self) -> bool:
        """Whether whole devices are meant."""
        return self.fraction == 1

    def __str__(self) -> str:
        if self.kind in ("none", "auto"):
            unit = "0" if self.kind == "none" else "auto"
        elif self.whole:
            unit = str(self.count)
        else:
            times = f"{self.count}x" if self.count > 1 else ""
            unit = times + self._unit()
        return f"{self.model}:{unit}" if self.model else unit

    def _unit(self) -> str:
        if self.fraction is not None:
            return _decimal(self.fraction)
        if self.memory_mib is not None:
            gib, mib = divmod(self.memory_mib, 1024)
            size = f"{self.memory_mib}MiB" if mib else f"{gib}GiB"
            return size if self.compute_percent is None else f"{size}/{self.compute_percent}%"
        return str(self.profile)


def _rest_of(body: str) -> str:
    match = _COUNT.fullmatch(body)
    return match[2].strip() if match else body


def _memory(number: Fraction, unit: str, text: str) -> int:
    scale = _UNITS.get(unit.upper())
    if scale is None:
        raise RequestError(
            f"{_shown(unit)} in {_shown(text)} is no unit of memory.",
            "Units are GiB and MiB (binary), GB and MB (decimal): 10GiB, 512MiB, 24GB.",
        )
    return int(number * scale / _MIB)


def _percent(text: str) -> int:
    match = _PERCENT.fullmatch(text)
    if match is None or "." in match[1]:
        raise RequestError(
            f"{_shown(text)} after the slash is no whole percentage.",
            "Write for example 10GiB/50%.",
        )
    return int(match[1])


def _decimal(value: Fraction) -> str:
    """A terminating fraction as decimal text, exactly: no float comes near it."""
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
        if digits > 18:
            return str(value)
    scaled = str(int(value * 10**digits)).rjust(digits + 1, "0")
    return scaled if digits == 0 else f"{scaled[:-digits]}.{scaled[-digits:]}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
