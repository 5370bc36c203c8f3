"""Slices of GPUs for Jupyter: leases, peer groups, and the panel that shows them.

Importing this package is cheap on purpose: it happens in every kernel that loads the magics, in
every server that looks for extensions, and in the hub. Whatever is heavy is imported by the
functions that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "__version__",
    "load_ipython_extension",
    "unload_ipython_extension",
]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where JupyterLab finds the prebuilt extension, relative to this package."""
    return [{"src": "labextension", "dest": "jupyter-gpuslice"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """The server extension, as Jupyter Server asks for it."""
    from .server.app import GpuSliceApp

    return [{"module": "jupyter_gpuslice.server.app", "app": GpuSliceApp}]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext jupyter_gpuslice`: register the `%gpu` magics in this kernel."""
    from .kernel import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext jupyter_gpuslice`: take the magics away again."""
    from .kernel import unload_ipython_extension as unload

    unload(shell)
