"""Requests that differ in one number only: what a free field holds, and the expression for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...request import GpuRequest


@dataclass(frozen=True)
class Family:
    """Requests that differ in one number, from 1 to ``most``, and how users write it."""

    label: str
    most: int
    pattern: str
    text: Callable[[int], str]
    request: Callable[[int], str]


def families(most: GpuRequest) -> Iterator[Family]:
    """What users may write below a limit: the likeliest first."""
    model = f"{most.model}:" if most.model else ""

    def plain(label: str, most: int, unit: str = "") -> Family:
        return Family(label, most, numbers_up_to(most), str, lambda n: f"{model}{n}{unit}")

    def fraction(n: int) -> str:
        return f"0.{n:02}"

    if most.whole and most.count > 1:
        yield plain("GPUs", most.count)
    elif most.fraction is not None:
        hundredths = 99 if most.whole else int(most.fraction * 100)
        yield Family(
            "Part of a GPU",
            hundredths,
            rf"0\.(?:{_two_digits_up_to(hundredths)})",
            fraction,
            lambda n: f"{model}{fraction(n)}",
        )
        yield Family(
            "Percent of a GPU",
            hundredths,
            numbers_up_to(hundredths),
            str,
            lambda n: f"{model}{fraction(n)}",
        )
    elif most.memory_mib is not None:
        compute = f"/{most.compute_percent}%" if most.compute_percent is not None else ""
        if most.memory_mib >= 1024:
            yield plain("Memory in GiB", most.memory_mib // 1024, f"GiB{compute}")
        yield plain("Memory in MiB", most.memory_mib, f"MiB{compute}")


def probes(most: int) -> list[int]:
    """All numbers, or of many those at which the way of writing changes."""
    if most <= 128:
        return list(range(1, most + 1))
    edges = {10**n + d for n in range(1, len(str(most))) for d in (-1, 0, 1)}
    return sorted({n for n in {1, 2, 1023, 1024, 1025, most // 3, most} | edges if n <= most})


def numbers_up_to(most: int) -> str:
    """A regular expression of the whole numbers from 1 to ``most``, without leading zeros."""
    digits = str(most)
    parts = [f"[1-9]{_any_digits(n)}" for n in range(len(digits) - 1)]
    return "|".join([*parts, *_same_length(digits, 1), digits])


def _two_digits_up_to(most: int) -> str:
    """The same of 01 to at most 99."""
    digits = f"{most:02}"
    if most < 10:
        return f"0[1-{most}]"
    return "|".join(["0[1-9]", *_same_length(digits, 1), digits])


def _same_length(digits: str, lowest: int) -> Iterator[str]:
    """Patterns of the smaller numbers of the same length, the first digit from ``lowest``."""
    for place, digit in enumerate(digits):
        rest = len(digits) - place - 1
        least = 0 if place else lowest
        if int(digit) > least:
            yield f"{digits[:place]}[{least}-{int(digit) - 1}]{_any_digits(rest)}"


def _any_digits(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"
