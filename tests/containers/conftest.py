from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.conftest import make_hub

from .podman import Podman, missing

__all__ = ["make_hub"]


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    why = missing()
    if why:
        pytest.skip(f"Containers: {why}")
    made = Podman(tmp_path_factory.mktemp("podman"))
    made.start()
    yield made
    made.close()
