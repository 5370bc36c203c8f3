"""What users and groups may hold: the ``policies`` of a ``profiles.yaml``.

A rule is for the users and groups that it names, or for everybody. For each limit the rules that
are closest to a user count: those that name the user, before those that name a group of theirs,
before those for everybody. Of several that are equally close the most generous one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ..broker.limits import ROUNDING, Limits, Standing
from ..request import GpuRequest


@dataclass(frozen=True)
class Terms:
    """What holds for one user. ``None`` is no limit.

    ``lifetime`` and ``idle`` are seconds: how long a GPU is held at most, and after how long
    without activity a server ends. ``priority`` moves a user's requests forward in the queue.
    """

    concurrent: float | None = None
    gpu_hours: float | None = None
    lifetime: float | None = None
    idle: float | None = None
    priority: int = 0

    @property
    def limits(self) -> Limits:
        """What the broker has to heed."""
        return Limits(self.concurrent, self.gpu_hours)


NO_TERMS = Terms()


@dataclass(frozen=True)
class Rule:
    """One entry of ``policies``. ``terms`` are the limits that it says something of, by name."""

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    terms: Mapping[str, float | None] = field(default_factory=dict)

    def closeness(self, user: str, groups: Collection[str]) -> int:
        """How closely it is about a user: 3 by name, 2 by group, 1 as everybody, 0 not at all."""
        if user in self.users:
            return 3
        if not self.groups.isdisjoint(groups):
            return 2
        return 0 if self.users or self.groups else 1


@dataclass(frozen=True)
class Policies:
    """All rules of a hub."""

    rules: tuple[Rule, ...] = ()

    def terms(self, user: str, groups: Collection[str]) -> Terms:
        """What holds for a user who is in these groups."""
        found: dict[str, float | None] = {}
        for name in ("concurrent", "gpu_hours", "lifetime", "idle", "priority"):
            said = [
                (closeness, rule.terms[name])
                for rule in self.rules
                if name in rule.terms and (closeness := rule.closeness(user, groups))
            ]
            if said:
                closest = max(closeness for closeness, _ in said)
                values = [value for closeness, value in said if closeness == closest]
                found[name] = None if None in values else max(v for v in values if v is not None)
        priority = found.pop("priority", 0)
        return Terms(**found, priority=int(priority or 0))


def worth(request: GpuRequest) -> float:
    """How many devices' worth a request is, as far as its text says.

    An amount of memory is a part of a device whose size is not known here, and counts as nothing;
    a MIG instance counts as one device, which it is for the broker.
    """
    if request.kind == "fraction":
        return float(request.fraction or 0) * request.count
    return float(request.count) if request.kind == "mig" else 0.0


def gpus(number: float) -> str:
    """So many devices' worth, for people."""
    return f"{number:.4g} GPU{'' if number == 1 else 's'}"


def beyond_limits(request: GpuRequest, terms: Terms) -> str:
    """Why a user may never have a request; ``""`` if nothing stands against it."""
    most = terms.concurrent
    if request.kind == "none" or most is None:
        return ""
    if most <= 0:
        return "You may not hold a GPU."
    if worth(request) > most + ROUNDING:
        return f"You may hold {gpus(most)} at once."
    return ""


def not_now(
    request: GpuRequest, terms: Terms, standing: Standing, unknown: float = 0.0
) -> tuple[str, bool]:
    """Why a user cannot have it now, and whether waiting in the queue may help.

    ``unknown`` is what a request counts as whose worth its text does not say.
    """
    if request.kind == "none":
        return "", False
    used = standing.gpu_hours
    if terms.gpu_hours is not None and used is not None and used >= terms.gpu_hours:
        return f"Your {terms.gpu_hours:g} GPU-hours of 7 days are used up.", False
    most = terms.concurrent
    if most is not None and standing.held + (worth(request) or unknown) > most + ROUNDING:
        return f"You hold {gpus(standing.held)} of the {most:g} that you may hold at once", True
    return "", False


def standing_words(terms: Terms, standing: Standing) -> str:
    """What a user holds and has used of what they may, as a sentence; ``""`` without limits."""
    parts = []
    if terms.concurrent is not None:
        parts.append(f"hold {standing.held:.4g} of {gpus(terms.concurrent)} at once")
    if terms.gpu_hours is not None and standing.gpu_hours is not None:
        parts.append(
            f"have used {standing.gpu_hours:.1f} of {terms.gpu_hours:g} GPU-hours of the last "
            "7 days"
        )
    return f"You {' and '.join(parts)}." if parts else ""
