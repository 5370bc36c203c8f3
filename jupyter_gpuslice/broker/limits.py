"""What one user may hold, whatever is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ledger import Span

WINDOW_SECONDS = 7 * 86400
"""GPU-hours are counted over the last seven days, at every instant."""
ROUNDING = 1e-6
"""Parts of devices are sums of binary fractions."""


@dataclass(frozen=True)
class Limits:
    """What a user may hold; ``None`` is as much as there is.

    ``concurrent`` is how many devices' worth at once (0.5 is half of one), ``gpu_hours`` how many
    device-hours in any seven days.
    """

    concurrent: float | None = None
    gpu_hours: float | None = None

    @property
    def none(self) -> bool:
        """Whether nothing is limited."""
        return self.concurrent is None and self.gpu_hours is None

    def to_dict(self) -> dict[str, Any]:
        return {"concurrent": self.concurrent, "gpu_hours": self.gpu_hours}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """``ValueError`` or ``TypeError`` for what is no number."""
        values = {}
        for name in ("concurrent", "gpu_hours"):
            value = data.get(name)
            if value is not None and (isinstance(value, bool) or not 0 <= float(value) < 1e9):
                raise ValueError(f"{name} is a number from 0, not {value!r}")
            values[name] = None if value is None else float(value)
        return cls(**values)


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Standing:
    """What a user holds now (devices' worth) and has used of the last seven days (GPU-hours;
    ``None`` is unknown)."""

    held: float = 0.0
    gpu_hours: float | None = None


def used_seconds(spans: Iterable[Span], now: float) -> float:
    """Device-seconds that spans of holding had in the window that ends ``now``.

    What lies behind ``now`` was written while the clock was wrong.
    """
    since = now - WINDOW_SECONDS
    return sum(
        span.devices
        * max(0.0, min(now, now if span.stop is None else span.stop) - max(span.start, since))
        for span in spans
    )


def back_in(spans: Sequence[Span], now: float, limit_seconds: float) -> float:
    """Seconds until the use of the window is below a limit again, if nothing more is held."""
    low, high = 0.0, float(WINDOW_SECONDS)
    closed = [span for span in spans if span.stop is not None]
    if used_seconds(closed, now) < limit_seconds:
        return 0.0
    # Use of the past only falls as the window moves on.
    while high - low > 30:
        middle = (low + high) / 2
        fits = used_seconds(closed, now + middle) < limit_seconds
        low, high = (low, middle) if fits else (middle, high)
    return high
