"""Widgets for notebooks: `from jupyter_gpuslice.widgets import GpuPanel`.

ipywidgets is imported when a widget is first asked for, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .panel import GpuPanel

__all__ = ["GpuPanel"]


def __getattr__(name: str) -> Any:
    if name == "GpuPanel":
        from .panel import GpuPanel

        return GpuPanel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
