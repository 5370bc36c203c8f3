"""How much of a pool a request could have now: what the spawn page shows beside each choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..broker.broker import Broker
from ..broker.limits import Standing
from ..broker.placement import place, slice_on
from ..broker.policy import Policy
from ..broker.pool import Free, PoolDevice
from ..request import GpuRequest

_MOST = 1000


@dataclass(frozen=True)
class Offer:
    """One request: how many of it are free, of how many; ``None`` is unknown.

    ``position`` (from 1) and ``estimate_s`` (seconds) are those of the queue, for a request that
    would have to wait; ``never`` is a request that this machine cannot grant at all, and
    ``message`` says why.
    """

    free: int | None = None
    total: int | None = None
    never: bool = False
    message: str = ""
    position: int | None = None
    estimate_s: float | None = None
    held_up: str = ""
    """That the user's own limits make it wait, for people."""


@dataclass(frozen=True)
class DeviceKind:
    """So many devices of one name and kind (``gpu``, ``mig`` or ``simulated``)."""

    name: str
    kind: str
    count: int


@dataclass(frozen=True)
class Availability:
    """What a pool has for the requests that were asked about, by their canonical text."""

    offers: Mapping[str, Offer] = field(default_factory=dict)
    devices: tuple[DeviceKind, ...] = ()
    waiting: int | None = None
    standing: Standing | None = None
    """What the user who asks holds and has used."""
    note: str = ""
    """Why the rest is unknown, or why there are no devices: one sentence, or ``""``."""

    def offer(self, request: GpuRequest) -> Offer:
        """The offer for a request; everything about it unknown where nobody asked."""
        return self.offers.get(str(request), Offer())

    def to_dict(self) -> dict[str, Any]:
        return {
            "offers": {text: asdict(offer) for text, offer in self.offers.items()},
            "devices": [asdict(kind) for kind in self.devices],
            "waiting": self.waiting,
            "standing": None if self.standing is None else asdict(self.standing),
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Availability:
        return cls(
            {text: Offer(**offer) for text, offer in data["offers"].items()},
            tuple(DeviceKind(**kind) for kind in data["devices"]),
            data["waiting"],
            None if data.get("standing") is None else Standing(**data["standing"]),
            data["note"],
        )


def availability(
    broker: Broker, requests: Iterable[GpuRequest], note: str = "", user: str = ""
) -> Availability:
    """What the broker's pool has for each request now, and what the user holds."""
    kinds = Counter((member.device.name, member.device.kind) for member in broker.pool)
    return Availability(
        {str(request): _offer(broker, request) for request in requests},
        tuple(DeviceKind(name, kind, count) for (name, kind), count in kinds.items()),
        len(broker.queue()),
        broker.standing(user) if user else None,
        note,
    )


def _offer(broker: Broker, request: GpuRequest) -> Offer:
    if request.kind == "none":
        return Offer()
    pool = broker.pool
    explained = broker.explain(request)
    cordoned = broker.cordoned
    free = {uuid: room for uuid, room in broker.free().items() if uuid not in cordoned}
    return Offer(
        free=how_many(request, pool, free, broker.policy),
        total=how_many(request, pool, {m.device.uuid: m.capacity for m in pool}, broker.policy),
        never=explained.never,
        message="" if explained.fits else explained.message,
        position=explained.position,
        estimate_s=explained.estimate_s,
    )


def how_many(
    request: GpuRequest, pool: Sequence[PoolDevice], free: Mapping[str, Free], policy: Policy
) -> int:
    """How many leases of a request fit side by side in what is free (1000 at most)."""

    def fits(count: int) -> bool:
        return place(request, count, pool, free, policy) is not None

    # No more than lie on the devices by themselves, or the search would place hundreds.
    most = min(_MOST, sum(_side_by_side(request, member, free, policy) for member in pool))
    low, high = 0, most + 1
    if most and fits(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _side_by_side(
    request: GpuRequest, member: PoolDevice, free: Mapping[str, Free], policy: Policy
) -> int:
    """How many slices of a request the free part of one device has room for, at most."""
    if request.kind == "auto":
        return _MOST
    slice_ = slice_on(request, member, policy)
    room = free.get(member.device.uuid)
    if slice_ is None or room is None:
        return 0
    counts = [
        have // want
        for have, want in (
            (room.memory_mib, slice_.memory_mib),
            (room.compute_percent, slice_.compute_percent),
        )
        if want > 0
    ]
    return min(counts) if counts else _MOST
