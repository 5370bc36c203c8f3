"""Pools and leases as a caller may see them: the JSON of the REST interface and the events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..broker.broker import Broker
from ..broker.lease import Lease
from ..broker.limits import NO_LIMITS, Limits, Standing
from .measure import Measurement, Use


def _nothing(lease: Lease) -> dict[str, Any]:
    return {"notebook": None, "needs_restart": False}


@dataclass(frozen=True)
class Viewer:
    """Who looks. ``user`` sees leases of that name; an admin all of them.

    ``about`` adds what only the server knows of a lease (its notebook, whether a restart is
    needed); ``entitled`` is what the viewer's profile allows, where that is not the whole pool;
    ``hub`` is the path of the hub's page of all GPUs, where the pool is a session of its;
    ``limits`` are those of the viewer's leases together.
    """

    user: str
    admin: bool = False
    about: Callable[[Lease], Mapping[str, Any]] = _nothing
    entitled: Mapping[str, Any] | None = None
    hub: str | None = None
    limits: Limits = NO_LIMITS

    def sees(self, lease: Lease) -> bool:
        return self.admin or lease.holder.user == self.user


EVERYTHING = Viewer("", admin=True)


def lease_view(broker: Broker, latest: Measurement, lease: Lease, viewer: Viewer) -> dict[str, Any]:
    """A lease; of somebody else's, for those who are no admins, what tells nothing of them."""
    queued = lease.state == "queued"
    body = lease.to_dict()
    body["position"] = broker.position(lease.id) if queued else None
    body["estimate_s"] = broker.estimate(lease.id) if queued else None
    body["expires"] = broker.ends_at(lease)
    body["detail"] = broker.held_up(lease) or lease.detail
    body["used"] = used_view(latest.leases.get(lease.id), lease)
    body |= _nothing(lease)
    if viewer.sees(lease):
        body |= viewer.about(lease)
    else:
        body["id"] = None
        body["holder"] = {"kind": lease.holder.kind, "id": None, "user": None, "name": None}
        body["detail"] = ""
    return body


def used_view(uses: Mapping[str, Use] | None, lease: Lease) -> dict[str, Any]:
    """Measured use of a lease: MiB over all its devices, and the mean of their percents."""
    devices = {slice_.device for slice_ in lease.slices}
    if not uses or not lease.holds or not devices <= uses.keys():
        return {"memory_mib": None, "utilization_percent": None}
    mine = [uses[device] for device in devices]
    percents = _sum(use.utilization_percent for use in mine)
    return {
        "memory_mib": _sum(use.memory_mib for use in mine),
        "utilization_percent": None if percents is None else round(percents / len(mine)),
    }


def pool_view(broker: Broker, latest: Measurement, viewer: Viewer, note: str) -> dict[str, Any]:
    """Devices, what is free of them, who waits, and the viewer's own numbers."""
    leases = broker.leases()
    return {
        "devices": _devices(broker, latest, leases, viewer),
        "isolation": broker.isolation,
        "queue": [_waiting(broker, lease, viewer) for lease in broker.queue()],
        "note": note,
        "session": _session(broker, latest, leases, viewer),
        "uses": {
            lease.id: used_view(latest.leases.get(lease.id), lease)
            for lease in leases
            if lease.holds and viewer.sees(lease)
        },
        "user": viewer.user,
        "admin": viewer.admin,
        "hub": viewer.hub,
    }


def empty_pool_view(viewer: Viewer, note: str) -> dict[str, Any]:
    """The pool of a server that has no broker: why is in ``note``."""
    nothing = {"memory_mib": 0, "percent": 0}
    return {
        "devices": [],
        "isolation": None,
        "queue": [],
        "note": note,
        "session": {
            "entitled": {"memory_mib": 0, "devices": 0, "text": "no GPU"},
            "held": nothing,
            "used": nothing,
            "limits": None,
        },
        "uses": {},
        "user": viewer.user,
        "admin": viewer.admin,
        "hub": viewer.hub,
    }


def _devices(
    broker: Broker, latest: Measurement, leases: Iterable[Lease], viewer: Viewer
) -> list[dict[str, Any]]:
    free = broker.free()
    lost = broker.lost
    cordoned = broker.cordoned
    seen: dict[str, list[str]] = {}
    for lease in leases:
        if lease.holds and viewer.sees(lease):
            for uuid in {slice_.device for slice_ in lease.slices}:
                seen.setdefault(uuid, []).append(lease.id)
    found = []
    for member in broker.pool:
        device = member.device
        use = latest.devices.get(device.uuid)
        health = "lost" if device.uuid in lost else use.health if use else "unknown"
        found.append(
            {
                "uuid": device.uuid,
                "name": device.name,
                "kind": device.kind,
                "memory_mib": member.memory_mib,
                "free_mib": free[device.uuid].memory_mib,
                "compute_percent": member.compute_percent,
                "free_percent": free[device.uuid].compute_percent,
                "used_mib": use.used_mib if use else None,
                "utilization_percent": use.utilization_percent if use else None,
                "health": health,
                "cordoned": cordoned.get(device.uuid),
                "profile": device.profile,
                "total_mib": device.memory_mib,
                "reserve_mib": device.reserve_mib,
                "leases": seen.get(device.uuid, []),
            }
        )
    return found


def _waiting(broker: Broker, lease: Lease, viewer: Viewer) -> dict[str, Any]:
    mine = viewer.sees(lease)
    nobody = {"kind": lease.holder.kind, "id": None, "user": None, "name": None}
    return {
        "id": lease.id if mine else None,
        "request": str(lease.request),
        "workers": lease.workers,
        "position": broker.position(lease.id),
        "estimate_s": broker.estimate(lease.id),
        "holder": lease.holder.to_dict() if mine else nobody,
    }


def _session(
    broker: Broker, latest: Measurement, leases: Iterable[Lease], viewer: Viewer
) -> dict[str, Any]:
    mine = [lease for lease in leases if lease.holds and lease.holder.user == viewer.user]
    slices = [slice_ for lease in mine for slice_ in lease.slices]
    memory: list[int | None] = []
    percent: list[int | None] = []
    for lease in mine:
        uses = latest.leases.get(lease.id, {})
        for device in {slice_.device for slice_ in lease.slices}:
            use = uses.get(device)
            memory.append(use.memory_mib if use else None)
            percent.append(use.utilization_percent if use else None)
    return {
        "entitled": dict(viewer.entitled) if viewer.entitled else _whole_pool(broker),
        "held": {
            "memory_mib": sum(slice_.memory_mib for slice_ in slices),
            "percent": sum(slice_.compute_percent for slice_ in slices),
        },
        "used": {"memory_mib": _sum(memory), "percent": _sum(percent)},
        "limits": limits_view(viewer.limits, broker.standing(viewer.user)),
    }


def limits_view(limits: Limits, standing: Standing) -> dict[str, Any] | None:
    """What a user may hold at once and use in seven days, and does; ``None`` without limits."""
    if limits.none:
        return None
    return {
        **limits.to_dict(),
        "held": round(standing.held, 4),
        "gpu_hours_used": None if standing.gpu_hours is None else round(standing.gpu_hours, 2),
    }


def _whole_pool(broker: Broker) -> dict[str, Any]:
    pool = broker.pool
    count = len(pool)
    return {
        "memory_mib": sum(member.memory_mib for member in pool),
        "devices": count,
        "text": "no GPU" if not count else f"{count} GPU{'s' if count > 1 else ''}",
    }


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
