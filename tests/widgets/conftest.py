"""The kernel side's fixtures: a little real server, real kernels."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "gpuslice_kernel_fixtures", Path(__file__).parents[1] / "kernel" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

little = _fixtures.little
kernel = _fixtures.kernel
