"""JupyterHub with GPU slices: spawners, the spawn page, and the service that owns the GPUs.

In ``jupyterhub_config.py``::

    from jupyter_gpuslice.hub import configure

    configure(c, profiles="profiles.yaml")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .setup import ConfigurationError, configure

__all__ = ["ConfigurationError", "configure"]


def __getattr__(name: str) -> Any:
    # On first use: a workstation's broker and `profiles check` use parts of this package where
    # there is no JupyterHub.
    if name in __all__:
        from . import setup

        return getattr(setup, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
