"""The rules of a pool that are not about who was first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What holds for every lease of a broker."""

    smallest_mib: int = 64
    """No slice has less memory: a CUDA context alone needs more."""
    bursts: bool = False
    """Whether a fraction may use compute that others leave idle (its cap is then 100 %)."""
    activate_within: float = 120.0
    """Seconds that a granted lease waits for its holder to come to life."""
