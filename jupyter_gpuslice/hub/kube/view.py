"""What a hub sees of its cluster: nodes and pods by a watch, and from them what is free."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from kubernetes_asyncio.client import ApiException, ApisApi, CoreV1Api, ResourceV1Api

from .cluster import Cluster
from .mirror import Mirror
from .room import Room, room

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that an API server which is busy or starting is asked again."""


class ClusterView:
    """Nodes and pods of the whole cluster, as far as the hub may read them.

    What it may not read is unknown: without nodes no facts, without pods no room.
    """

    def __init__(self, api_client: Any = None) -> None:
        self._client = api_client
        self._nodes: Mirror | None = None
        self._pods: Mirror | None = None
        self._classes: list[str] = []
        self._groups: list[str] = []
        self._started: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Look once and follow; whoever comes while it starts waits for the same start."""
        if self._started is None or (self._started.done() and self._started.exception()):
            self._started = asyncio.ensure_future(self._start())
        await asyncio.shield(self._started)

    async def _start(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await self._look()
            except ApiException as error:
                busy = error.status == 429 or (error.status or 0) >= 500
                if not busy or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(1)

    async def _look(self) -> None:
        core = CoreV1Api(self._client)
        self._nodes = await _allowed(Mirror(core.list_node), "nodes")
        self._pods = await _allowed(Mirror(core.list_pod_for_all_namespaces), "pods")
        self._classes = await _names(ResourceV1Api(self._client).list_device_class)
        try:
            groups = await ApisApi(self._client).get_api_versions()
            self._groups = [group.name for group in groups.groups]
        except ApiException as error:
            log.info("The hub may not look at the cluster's API groups: %s", error.reason)

    async def stop(self) -> None:
        for mirror in (self._nodes, self._pods):
            if mirror is not None:
                await mirror.stop()

    @property
    def cluster(self) -> Cluster:
        nodes = self._nodes.objects.values() if self._nodes else ()
        return Cluster.of(nodes, self._classes, self._groups)

    def room(self, resource: str) -> Room | None:
        """How much of an extended resource is free; ``None`` is unknown."""
        if self._nodes is None or self._pods is None:
            return None
        return room(self._nodes.objects.values(), self._pods.objects.values(), resource)


async def _allowed(mirror: Mirror, what: str) -> Mirror | None:
    try:
        await mirror.start()
    except ApiException as error:
        if error.status not in (401, 403):
            raise
        log.info("The hub may not read the cluster's %s: what is free stays unknown.", what)
        return None
    return mirror


async def _names(list_method: Any) -> list[str]:
    try:
        listed = await list_method()
    except ApiException:
        return []  # an older cluster, or not allowed
    return [item.metadata.name for item in listed.items]
