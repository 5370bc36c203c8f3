"""Whether the cluster could start a request now: the count that decides it, and the words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...broker.explain import Explanation
from ...devices.device import Device
from ...devices.models import matches
from ...request import GpuRequest
from ..availability import Offer
from .dialects import Dialect, PodContext
from .granted import name_of
from .inventory import Facts
from .item import Item
from .patch import CannotExpressError, PodPatch
from .room import Room, obeys, room
from .words import Wanted, too_few

_CORES = ("nvidia.com/gpucores", "volcano.sh/vgpu-cores")
UNKNOWN = "What is free is not known to the hub."


@dataclass(frozen=True)
class Fit:
    """A request, and whether the cluster has room for it; a room of ``None`` is unknown."""

    wanted: Wanted
    grows: bool = False

    @property
    def now(self) -> bool | None:
        room = self.wanted.room
        return None if room is None else room.node_free >= self.wanted.gpus

    @property
    def never(self) -> bool:
        """Whether no node could ever serve it, and none is added."""
        return not self.grows and too_few(self.wanted).never

    def offer(self) -> Offer:
        """For the spawn page."""
        if self.wanted.room is None:
            return Offer()
        if self.never:
            return Offer(0, 0, True, too_few(self.wanted).sentence)
        free, total = self.wanted.room.pods(self.wanted.gpus)
        return Offer(free, total, message="" if free else "All are in use.")

    def explanation(self) -> Explanation | None:
        """In the words of the REST interface; ``None`` is unknown."""
        now = self.now
        if now is None:
            return None
        if now:
            return Explanation(True, "fits", f"{self.wanted.text} would start now.")
        wait = too_few(self.wanted)
        return Explanation(False, wait.reason, wait.sentence, wait.action, self.never)


def fit(request: GpuRequest, patch: PodPatch, facts: Facts, grows: bool = False) -> Fit:
    """Count what a request needs, in the cluster as it is."""
    part = not request.whole and request.kind != "mig"
    text = named(request)
    if not facts.everywhere:
        return Fit(Wanted(text, request.count, part=part), grows)
    counted = _resource(patch)
    if counted is not None:
        resource, amount = counted
        found = room(facts.nodes, facts.holding, resource, patch.nodes)
        return Fit(Wanted(text, amount, found), grows)
    return Fit(Wanted(text, request.count, _devices(request, patch, facts), part), grows)


def named(request: GpuRequest) -> str:
    """A request as people read it within a sentence: a bare number says nothing."""
    if not request.whole or request.model is not None:
        return str(request)
    return "1 GPU" if request.count == 1 else f"{request.count} GPUs"


def offer(
    request: GpuRequest, dialect: Dialect, pod: PodContext, facts: Facts, grows: bool
) -> Offer:
    """For the spawn page; a request that the dialect has no words for is never to be had."""
    if request.kind == "none":
        return Offer()
    try:
        patch = dialect.patch(request, pod)
    except CannotExpressError as error:
        return Offer(never=True, message=f"{error.message} {error.hint}".strip())
    return fit(request, patch, facts, grows).offer()


def _resource(patch: PodPatch) -> tuple[str, int] | None:
    """The one extended resource that nodes count for it, and how much; ``None`` if there is more
    to it than that."""
    if len(patch.limits) != 1:
        return None
    ((name, amount),) = patch.limits.items()
    return (name, int(amount)) if amount.isdecimal() else None


def _devices(request: GpuRequest, patch: PodPatch, facts: Facts) -> Room | None:
    """Devices that could serve a request, by node; ``None`` where one of them is not known well."""
    cores = next((int(patch.limits[name]) for name in _CORES if name in patch.limits), 0)
    allowed = {name_of(node) for node in facts.nodes if obeys(node, patch.nodes)}
    nodes: dict[str, list[int]] = {}
    for item in facts.items:
        if item.cordoned or item.health == "lost" or item.node not in allowed:
            continue
        if not _serves(request, item):
            continue
        counts = _count(request, item, cores)
        if counts is None:
            return None
        mine = nodes.setdefault(item.node, [0, 0])
        mine[0] += counts[0]
        mine[1] += counts[1]
    if not facts.items:
        return None
    return Room(tuple((free, whole) for free, whole in nodes.values() if whole))


def _serves(request: GpuRequest, item: Item) -> bool:
    if request.model is not None:
        device = Device(item.uuid, item.name, "gpu", item.each_mib or 0)
        if not matches(request.model, device):
            return False
    if request.kind == "mig":
        return item.kind == "mig" and item.profile == str(request.profile)
    return item.kind == "gpu" and (request.whole or item.shareable)


def _count(request: GpuRequest, item: Item, cores: int) -> tuple[int, int] | None:
    """How many devices of an item have room now, and would have if nobody else were there."""
    undivided = request.whole or request.kind == "mig"
    if item.units is not None:
        if item.units.free is None:
            return None
        if not undivided:
            size = _size(request, item)
            if size is None or item.each_mib is None:
                return None
            if size > item.each_mib:
                return 0, 0
        return item.units.free, item.units.count
    if item.free_percent is None:
        return None
    if undivided:
        empty = item.free_mib is None or item.free_mib == item.memory_mib
        return int(empty and item.free_percent == item.compute_percent), 1
    size = _size(request, item)
    if size is None or item.free_mib is None or item.memory_mib is None:
        return None
    if size > item.memory_mib or cores > (item.compute_percent or 0):
        return 0, 0
    return int(size <= item.free_mib and cores <= item.free_percent), 1


def _size(request: GpuRequest, item: Item) -> int | None:
    if request.memory_mib is not None:
        return request.memory_mib
    if request.fraction is None or item.each_mib is None:
        return None
    return int(item.each_mib * request.fraction)
