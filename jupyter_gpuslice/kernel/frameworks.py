"""What the frameworks in this process do with CUDA: told, limited and tidied, never imported.

Nothing here costs anything, or can fail, where a framework is absent.
"""

from __future__ import annotations

import gc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

FRACTION = "JUPYTER_GPUSLICE_MEMORY_FRACTION"
"""Share of each device that PyTorch's allocator may take, 0 to 1; unset: no limit."""


def cuda_user() -> str:
    """What has initialised CUDA in this process, as a name for people; ``""`` if nothing has.

    From then on the process keeps the devices it found: a change of ``CUDA_VISIBLE_DEVICES``
    reaches it no more.
    """
    torch = _torch()
    with suppress(Exception):  # a torch of an unknown kind: the check below still tells
        if torch is not None and torch.cuda.is_initialized():
            return "PyTorch"
    # The CUDA driver opens this device file when it is initialised, whichever library asked;
    # NVML, which looks only, does not.
    with suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}") == "/dev/nvidia-uvm":
                    return _other_framework()
    return ""


def apply_memory_fraction() -> bool:
    """Limit PyTorch's allocator to ``JUPYTER_GPUSLICE_MEMORY_FRACTION`` on every device it sees.

    True if there was an initialised PyTorch to limit.
    """
    torch = _torch()
    try:
        if torch is None or not torch.cuda.is_initialized():
            return False
        return _limit(torch)
    except Exception:
        return False


def watch_torch() -> None:
    """See to it that the memory fraction holds from the first moment PyTorch uses CUDA."""
    torch = _torch()
    cuda = getattr(torch, "cuda", None)
    if isinstance(cuda, ModuleType):
        _queue(cuda)
    elif not any(isinstance(finder, _TorchCudaFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchCudaFinder())


def unwatch_torch() -> None:
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _TorchCudaFinder)]


def give_memory_back() -> None:
    """Drop what keeps device memory alive without a name: tracebacks, garbage, caches."""
    # The traceback of the last error holds the frames of the cell that failed, and those its
    # tensors (jupyter/notebook#5421).
    for name in ("last_traceback", "last_value", "last_type", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    gc.collect()
    torch = _torch()
    with suppress(Exception):  # an allocator in a bad state gives back what it can
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _torch() -> Any:
    return sys.modules.get("torch")


def _other_framework() -> str:
    for module, name in (("jax", "JAX"), ("tensorflow", "TensorFlow"), ("cupy", "CuPy")):
        if module in sys.modules:
            return name
    return "a library"


def _limit(torch: Any) -> bool:
    try:
        fraction = float(os.environ.get(FRACTION) or 1)
    except ValueError:
        return False
    if not 0 < fraction <= 1:
        return False
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    return True


def _limit_when_initialised() -> None:
    # PyTorch turns an exception here into a failure of its own initialisation.
    with suppress(Exception):
        if os.environ.get(FRACTION):
            _limit(_torch())


def _queue(cuda: Any) -> None:
    """Have ``torch.cuda`` call us when it is initialised (at once, if it is already)."""
    if getattr(cuda, "_gpuslice_limited", False):
        return
    with suppress(Exception):  # an unknown torch: the environment's allocator settings remain
        cuda._gpuslice_limited = True
        cuda._lazy_call(_limit_when_initialised)


class _TorchCudaFinder(MetaPathFinder):
    """Finds ``torch.cuda`` as the finders after it do, and hears when it has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch.cuda":
            return None
        unwatch_torch()
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _TorchCudaLoader(spec.loader)
                return spec
        return None


class _TorchCudaLoader(Loader):
    """Imports as the real loader does, puts that one back in its place, then queues our call."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _queue(module)
