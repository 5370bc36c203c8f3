"""What the node's broker gave a session, in the form in which its server hears of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..broker.lease import Lease, Slice
from ..devices.device import Device
from ..isolation.environment import slice_environment

Near = Mapping[tuple[str, str], int]
"""Two devices (in the pool's order) → how far they are apart."""


def grant_of(lease: Lease, devices: Sequence[Device], near: Near, url: str) -> dict[str, Any]:
    """The ``JUPYTER_GPUSLICE_GRANT`` of a lease; ``url`` is the API of the hub's service."""
    held = {slice_.device for slice_ in lease.slices}
    return {
        "lease": lease.id,
        "request": str(lease.request),
        "isolation": lease.isolation,
        "devices": [device.to_dict() for device in devices if device.uuid in held],
        "slices": [slice_.to_dict() for slice_ in lease.slices],
        "nearness": [[a, b, level] for (a, b), level in near.items() if {a, b} <= held],
        "url": url,
    }


def no_grant(url: str) -> dict[str, Any]:
    """The grant of a session without a GPU: its pool is empty, whatever the machine has."""
    return {
        "lease": None,
        "request": "0",
        "isolation": "watch",
        "devices": [],
        "slices": [],
        "nearness": [],
        "url": url,
    }


def grant_environment(
    grant: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, str | None]:
    """What to set (or unset: ``None``) in a user's server beside the grant itself."""
    if not grant["slices"]:
        # No UUID is the empty text, so CUDA sees nothing. The server may not have the node's
        # driver at all: nothing else is touched.
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "none"}
    devices = [Device.from_dict(device) for device in grant["devices"]]
    slices = [Slice.from_dict(slice_) for slice_ in grant["slices"]]
    return slice_environment(slices, devices, grant["isolation"], environ=environ)
