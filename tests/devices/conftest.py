from __future__ import annotations

from tests.fakes.nvml.fixtures import fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]
