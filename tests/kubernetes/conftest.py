"""The emulator, or the real cluster that ``GPUSLICE_TEST_KUBECONFIG`` names."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client, config

from tests.fakes.kubernetes import Cluster

REAL = os.environ.get("GPUSLICE_TEST_KUBECONFIG", "")


@pytest.fixture
def emulator() -> Iterator[Cluster]:
    """For what a real cluster cannot be made to do."""
    made = Cluster()
    yield made
    made.stop()


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A cluster with one node of four GPUs; the real one has what it has."""
    if REAL:
        yield Path(REAL)
        return
    made = Cluster()
    made.node("n1", gpus=4)
    yield made.kubeconfig(tmp_path / "kubeconfig")
    made.stop()


@asynccontextmanager
async def api_of(kubeconfig: Path) -> AsyncIterator[Any]:
    """A client of a cluster."""
    settings = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=settings)
    async with client.ApiClient(settings) as api:
        yield api
