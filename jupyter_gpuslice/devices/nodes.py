"""The device nodes through which a process uses a GPU, for who has to say what may be opened.

Sources: nvml.h on ``nvmlDeviceGetMinorNumber``; NVIDIA's MIG user guide, "Device Nodes and
Capabilities": a MIG device is opened through its GPU's node and the nodes of two capabilities,
whose minor numbers stand in ``/proc/driver/nvidia/capabilities``.
"""

from __future__ import annotations

import re
from pathlib import Path

CAPABILITIES = Path("/proc/driver/nvidia/capabilities")

SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""What CUDA opens whichever device it uses; they give no access to a device by themselves."""


def gpu_nodes(minor: int | None) -> tuple[str, ...]:
    """The node of a GPU; none when its minor number is unknown."""
    return () if minor is None else (f"/dev/nvidia{minor}",)


def mig_nodes(
    minor: int | None, gpu_instance: int | None, compute_instance: int | None
) -> tuple[str, ...]:
    """The nodes of a MIG device; none when one of them is unknown: two of three open nothing."""
    if minor is None or gpu_instance is None or compute_instance is None:
        return ()
    folder = CAPABILITIES / f"gpu{minor}" / "mig" / f"gi{gpu_instance}"
    capabilities = [_capability(folder), _capability(folder / f"ci{compute_instance}")]
    if None in capabilities:
        return ()
    return (*gpu_nodes(minor), *(f"/dev/nvidia-caps/nvidia-cap{each}" for each in capabilities))


def _capability(folder: Path) -> int | None:
    try:
        found = re.search(r"^DeviceFileMinor:\s*(\d+)", (folder / "access").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) if found else None
