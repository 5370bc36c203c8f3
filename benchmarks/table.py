"""Medians, spread and ratios, printed as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from statistics import median, quantiles


def percentile(values: Sequence[float], percent: int) -> float:
    """The ``percent``-th percentile (inclusive method)."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def show(
    title: str, rows: dict[str, Sequence[float]], against: str, unit: str = "ms", digits: int = 2
) -> None:
    """Print one line a row: runs, min, median, p95, max and the ratio of medians to ``against``."""
    width = max(map(len, rows))
    base = median(rows[against])
    print(f"\n{title}  [{unit}]")
    head = ("runs", "min", "median", "p95", "max", "ratio")
    print(f"{'':{width}}  " + "".join(f"{name:>10}" for name in head))
    for name, values in rows.items():
        numbers = (min(values), median(values), percentile(values, 95), max(values))
        ratio = f"{median(values) / base:.2f}x" if base else "-"
        cells = [f"{len(values)}", *(f"{n:.{digits}f}" for n in numbers), ratio]
        print(f"{name:{width}}  " + "".join(f"{cell:>10}" for cell in cells))
    print(f"ratio: of medians, against {against!r}")


def machine() -> str:
    """One line that says where this ran."""
    system = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"
