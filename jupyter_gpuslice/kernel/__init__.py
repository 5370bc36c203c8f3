"""What runs inside a kernel: the magics, the slice hook, the client of the server extension.

Needs IPython and the standard library only, and nothing of this package outside this folder: it is
also loaded as ``jupyter_gpuslice_kernel`` in kernels of environments where ``jupyter_gpuslice`` is
not installed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_LOADED = "_gpuslice_loaded"
"""On the shell, not in this module: the same kernel may load us under two names."""


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics and look at the kernel's slice before each cell; once is enough."""
    if getattr(shell, _LOADED, None) is not None:
        return
    from .completion import Completer
    from .frameworks import watch_torch
    from .magics import GpuMagics
    from .slicefile import SliceHook

    path = os.environ.get("JUPYTER_GPUSLICE_SLICE")
    magics = GpuMagics(shell)
    hook = magics.hook = SliceHook(path, names=magics.device_names) if path else None
    shell.register_magics(magics)
    completer = Completer(shell, magics.groups, magics.pool)
    completer.install()
    if hook is not None:
        shell.events.register("pre_run_cell", hook.before_cell)
        watch_torch()
    setattr(shell, _LOADED, _Loaded(completer, hook))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take magics and hook away again; the slice stays in place."""
    loaded = getattr(shell, _LOADED, None)
    if loaded is not None:
        loaded.unload(shell)
        setattr(shell, _LOADED, None)


class _Loaded:
    def __init__(self, completer: Any, hook: Any) -> None:
        self.completer = completer
        self.hook = hook

    def unload(self, shell: Any) -> None:
        from .frameworks import unwatch_torch

        if self.hook is not None:
            shell.events.unregister("pre_run_cell", self.hook.before_cell)
        unwatch_torch()
        self.completer.uninstall()
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("gpu", None)
