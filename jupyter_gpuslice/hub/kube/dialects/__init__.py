"""The GPU-sharing stacks of clusters, one module each: a request as additions to a pod.

Names and values follow the stacks' own documentation; each module names the pages.
"""

from __future__ import annotations

from .dialect import Dialect, PodContext
from .dra import Dra
from .gpushare import GpuShare
from .hami import Hami
from .kai import Kai
from .koordinator import Koordinator
from .nvidia import Nvidia
from .runai import RunAi
from .volcano import Volcano

DIALECTS: dict[str, type[Dialect]] = {
    kind.name: kind for kind in (Nvidia, Dra, Hami, Volcano, Kai, RunAi, Koordinator, GpuShare)
}

__all__ = ["DIALECTS", "Dialect", "PodContext"]
