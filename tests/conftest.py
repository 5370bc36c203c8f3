"""What every test stands on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest_plugins = ["pytest_jupyter.jupyter_server"]

# what a session or a kernel around the tests would leave in the environment
OF_A_SESSION = ("JUPYTER_GPUSLICE_", "JUPYTERHUB_", "JPY_", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_")


@pytest.fixture(autouse=True, scope="session")
def outside_any_session() -> Iterator[None]:
    """Tests run as if no hub, server or kernel had started them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(OF_A_SESSION):
                patch.delenv(name)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from jupyter_gpuslice.devices import open_devices

    source = open_devices()
    try:
        found = [device for device in source.devices() if device.kind != "simulated"]
        note = source.note
    finally:
        source.close()
    if not found:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU. {note}"))
