"""GPU models: which device a model's name in a request means, and what simulated ones have."""

from __future__ import annotations

import itertools
import re

from .device import Device

MODELS: dict[str, tuple[str, int]] = {
    "a10-24gb": ("A10-24GB", 23028),
    "a100-40gb": ("A100-40GB", 40960),
    "a100-80gb": ("A100-80GB", 81920),
    "a30-24gb": ("A30-24GB", 24576),
    "b200-180gb": ("B200-180GB", 183359),
    "gh200-96gb": ("GH200-96GB", 97871),
    "h100-80gb": ("H100-80GB", 81559),
    "h100-94gb": ("H100-94GB", 95830),
    "h200-141gb": ("H200-141GB", 143771),
    "l4-24gb": ("L4-24GB", 23034),
    "l40s-48gb": ("L40S-48GB", 46068),
    "rtx3090-24gb": ("RTX3090-24GB", 24576),
    "rtx4090-24gb": ("RTX4090-24GB", 24564),
    "rtx5090-32gb": ("RTX5090-32GB", 32607),
    "t4-16gb": ("T4-16GB", 15360),
    "v100-16gb": ("V100-16GB", 16384),
    "v100-32gb": ("V100-32GB", 32768),
}
"""Name → what to call it, total memory (MiB) as NVML reports it on such a board."""

_SIZES = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 186, 192, 288)
"""Memory sizes that boards are sold with, GB."""


def nominal_gb(memory_mib: int) -> int:
    """The size that a board is called by: what it reports is up to a tenth less (ECC, firmware)."""
    gib = memory_mib / 1024
    return next((size for size in _SIZES if 0.9 * size <= gib <= size), round(gib))


def matches(model: str, device: Device) -> bool:
    """Whether a device is of a model: every word of ``model`` is one of the device's words.

    ``a100`` matches every A100, ``a100-80gb`` those with 80 GB; ``h100`` is no GH100. A device's
    words are those of its name, two neighbours written as one (``RTX 4090`` is ``rtx4090`` too) and
    its memory's size. A MIG device has the words of its GPU: its own memory is not a model's.
    """
    name = device.name
    if device.kind == "mig":
        name = re.sub(r"\bMIG\b.*", "", name)
    words = _words(name)
    known = {*words, *(a + b for a, b in itertools.pairwise(words))}
    if device.kind != "mig":
        known.add(f"{nominal_gb(device.memory_mib)}gb")
    return all(word in known for word in _words(model))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
