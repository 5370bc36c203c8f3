"""Real JupyterHubs with simulated devices, one for each test module that asks for one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hub.hubs import Hub


@pytest.fixture(scope="module")
def make_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Hub]]:
    hubs: list[Hub] = []

    def make(**settings: Any) -> Hub:
        hub = Hub(tmp_path_factory.mktemp("hub"), **settings)
        hubs.append(hub)
        hub.start()
        return hub

    yield make
    for hub in hubs:
        hub.stop()
        shutil.rmtree(hub.root / "homes", ignore_errors=True)
