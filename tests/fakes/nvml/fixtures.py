"""Pytest fixtures around the fake NVML; a conftest that wants them imports them by name.

``fake_nvml``  a machine without devices at first; pynvml in this process sees it, and in children
that have ``fake_nvml.env``
``fake_nvml_library``  the compiled library's path (once for each run)
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import STATE_VARIABLE, FakeNvml, build


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to build the fake NVML")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    if os.environ.get("GPUSLICE_TEST_REAL_NVML") == "1":
        pytest.skip("the real NVML is under test")
    # The loader knows a library by its SONAME: once this one is in the process, pynvml gets it.
    library = ctypes.CDLL(str(fake_nvml_library))
    fake = FakeNvml(tmp_path / "nvml.state", fake_nvml_library)
    monkeypatch.setenv(STATE_VARIABLE, str(fake.path))
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield fake
    fake.mend()  # whoever hangs goes on
    while library.nvmlShutdown() == 0:  # the next test's machine is read by the next first nvmlInit
        pass
