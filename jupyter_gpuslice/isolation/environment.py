"""The environment variables that make a slice real in a process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from ..broker.lease import Slice
from ..devices.device import Device

FRACTION_VARIABLE = "JUPYTER_GPUSLICE_MEMORY_FRACTION"
"""What the kernel side gives to ``torch.cuda.set_per_process_memory_fraction``."""

TORCH_WITH_FRACTION = (2, 10)
"""The first torch whose allocator settings know ``per_process_memory_fraction``; an unknown key
makes an older one fail at its first allocation."""

_TORCH_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_FRAMEWORK_VARIABLES = (
    FRACTION_VARIABLE,
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "CUPY_GPU_MEMORY_LIMIT",
    "TF_FORCE_GPU_ALLOW_GROWTH",
)
_PLACES = 10_000  # fractions have four decimals, rounded down
_MIB = 1 << 20


def slice_environment(
    slices: Sequence[Slice],
    devices: Sequence[Device],
    isolation: str,
    *,
    environ: Mapping[str, str] | None = None,
    torch: tuple[int, int] | None = None,
) -> dict[str, str | None]:
    """What to set (a text) or unset (None) in a process that holds ``slices``.

    ``devices`` are the pool's; where it has none, nothing is touched. The same variables are named
    for any slices, so that a later call takes back what an earlier one set: to the value that the
    process would have without us, which ``environ`` tells.

    - Devices are named by UUID, in the order of the slices; without slices the process sees none
      (``CUDA_VISIBLE_DEVICES=""``). A simulated device's UUID is no beginning of a real one's, so
      CUDA finds no device by it either, and real GPUs stay hidden. The container runtime
      (``NVIDIA_VISIBLE_DEVICES``) is told of real devices only: it would fail on others.
    - Allocators get their part of the device's *total* memory, which is how PyTorch and JAX count.
      They know one number for all devices: the smallest slice's. It binds allocators only, not what
      CUDA takes for itself. At the level ``watch`` nothing is limited.
    - PyTorch's own variables are set where ``torch`` (see `installed_torch`) is a version that
      knows the setting, beside the other settings in them. In a kernel the kernel side limits
      every version besides.
    - TensorFlow has no variable for a limit: it is only kept from taking all at once.
    """
    if not devices:
        return {}
    before = environ or {}
    result: dict[str, str | None] = {
        name: before.get(name) for name in (*_TORCH_VARIABLES, *_FRAMEWORK_VARIABLES)
    }
    known = {device.uuid: device for device in devices}
    held = [known[slice_.device] for slice_ in slices]
    uuids = dict.fromkeys(device.uuid for device in held)
    real = dict.fromkeys(device.uuid for device in held if device.kind != "simulated")
    result |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(real) or "none",
        FRACTION_VARIABLE: None,
    }
    if not slices or isolation == "watch":
        return result
    fraction = memory_fraction(slices, devices)
    result |= {
        FRACTION_VARIABLE: fraction,
        "XLA_CLIENT_MEM_FRACTION": fraction,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "CUPY_GPU_MEMORY_LIMIT": str(min(slice_.memory_mib for slice_ in slices) * _MIB),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    if torch is not None and torch >= TORCH_WITH_FRACTION:
        # Some settings were read from only one of the two names, which one changed with 2.9.
        conf = before.get("PYTORCH_ALLOC_CONF") or before.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        merged = _with_fraction(conf, fraction)
        result |= dict.fromkeys(_TORCH_VARIABLES, merged)
    return result


def memory_fraction(slices: Sequence[Slice], devices: Sequence[Device]) -> str:
    """The smallest slice's part of its device's total memory, such as ``0.4968``; rounded down."""
    total = {device.uuid: device.memory_mib for device in devices}
    part = min(Fraction(slice_.memory_mib, total[slice_.device]) for slice_ in slices)
    places = max(1, min(_PLACES, part.numerator * _PLACES // part.denominator))
    return f"{places // _PLACES}.{places % _PLACES:04d}"


def _with_fraction(conf: str, fraction: str) -> str:
    """PyTorch's ``key:value,key:value`` with our key in it once; values may be lists in [ ]."""
    ours = "per_process_memory_fraction"
    settings = [part.strip() for part in re.split(r",(?![^\[]*\])", conf)]
    kept = [part for part in settings if part and part.partition(":")[0].strip() != ours]
    return ",".join([*kept, f"{ours}:{fraction}"])


def installed_torch(python: str | Path) -> tuple[int, int] | None:
    """Version (major, minor) of the torch that an interpreter would import; None when not known.

    Looks at files only (it blocks, but does not start the interpreter). Where several are found,
    such as in the user's own site-packages too, the oldest counts: the others take its settings.
    """
    prefix = Path(python).parent.parent
    found: list[tuple[int, int]] = []
    for base in (prefix, Path.home() / ".local"):
        for packages in ("site-packages", "dist-packages"):
            for folder in base.glob(f"lib/python3*/{packages}/torch-*.dist-info"):
                version = re.match(r"torch-(\d+)\.(\d+)", folder.name)
                if version:
                    found.append((int(version[1]), int(version[2])))
    return min(found, default=None)
