"""What a hub sees of its cluster: nodes, pods and claims, each followed by a watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException, ApisApi, CoreV1Api, ResourceV1Api

from .cluster import Cluster
from .granted import notes_of
from .inventory import Facts
from .mirror import ListMethod, Mirror
from .session import REQUEST

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that an API server which is busy or starting is asked again."""
UNANSWERED = (ApiException, ClientError, OSError, asyncio.TimeoutError)
"""What a client raises when the API is away, or has no time."""
_SHARES = ("gpu-fraction", "gpu-memory", REQUEST)
_CONTAINER = "nvidia.com/container."


class ClusterView:
    """Nodes, pods and claims of the whole cluster, as far as the hub may read them.

    What it may not read is unknown: without nodes no facts, without pods no room. ``namespace`` is
    where the hub's own pods are, which it may always read; ``changed`` is called after changes.
    """

    def __init__(
        self,
        api_client: Any = None,
        namespace: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = api_client
        self._namespace = namespace
        self._changed = changed
        self._mirrors: dict[str, Mirror] = {}
        self._everywhere = True
        self._classes: list[str] = []
        self._groups: list[str] = []
        self._facts: Facts | None = None
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
            except UNANSWERED as error:
                await self.stop()
                again = not isinstance(error, ApiException) or busy(error)
                if not again or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(1)

    async def _look(self) -> None:
        core, resource = CoreV1Api(self._client), ResourceV1Api(self._client)
        await self._follow("nodes", core.list_node)
        everywhere = core.list_pod_for_all_namespaces
        self._everywhere = await self._follow("pods", everywhere, keep=_wants_gpu)
        if not self._everywhere and self._namespace:
            # KubeSpawner needs this right itself.
            own = core.list_namespaced_pod
            await self._follow("pods", own, keep=_wants_gpu, namespace=self._namespace)
        self._classes = await _names(resource.list_device_class)
        if self._classes:
            await self._follow("claims", resource.list_resource_claim_for_all_namespaces)
            await self._follow("slices", resource.list_resource_slice)
        try:
            groups = await ApisApi(self._client).get_api_versions()
            self._groups = [group.name for group in groups.groups]
        except ApiException as error:
            if busy(error):
                raise
            log.info("The hub may not look at the cluster's API groups: %s", error.reason)

    async def _follow(self, what: str, method: ListMethod, **settings: Any) -> bool:
        """Whether the hub may."""
        mirror = Mirror(method, changed=self._forget, **settings)
        try:
            await mirror.start()
        except ApiException as error:
            if error.status not in (401, 403, 404):
                raise
            log.info("The hub may not read the cluster's %s: what is free stays unknown.", what)
            return False
        self._mirrors[what] = mirror
        return True

    def _forget(self) -> None:
        self._facts = None
        self._changed()

    async def stop(self) -> None:
        for mirror in self._mirrors.values():
            await mirror.stop()
        self._mirrors.clear()

    @property
    def behind(self) -> bool:
        """Whether the API is away: then all is as it was when it was seen last."""
        return any(mirror.behind for mirror in self._mirrors.values())

    @property
    def reads_pods(self) -> bool:
        """Whether the hub may read any pods."""
        return "pods" in self._mirrors

    @property
    def cluster(self) -> Cluster:
        return Cluster.of(self._objects("nodes"), self._classes, self._groups)

    @property
    def facts(self) -> Facts:
        """What there is now; the same object until something changes."""
        if self._facts is None:
            self._facts = Facts(
                tuple(self._objects("nodes")),
                tuple(self._objects("pods")),
                tuple(self._objects("claims")) if "claims" in self._mirrors else None,
                tuple(self._objects("slices")),
                self._everywhere and "nodes" in self._mirrors,
            )
        return self._facts

    def _objects(self, what: str) -> list[dict[str, Any]]:
        mirror = self._mirrors.get(what)
        return list(mirror.objects.values()) if mirror else []


def busy(error: ApiException) -> bool:
    """Whether an API server has no time now, and is to be asked again."""
    return error.status == 429 or (error.status or 0) >= 500


def _wants_gpu(pod: Mapping[str, Any]) -> bool:
    """Whether a pod matters here: it asks for more than CPU and memory. Of a large cluster's pods
    the others need not be kept."""
    spec = pod.get("spec") or {}
    if spec.get("resourceClaims"):
        return True
    for key in notes_of(pod):
        if key in _SHARES or key.startswith(_CONTAINER):
            return True
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(
        "/" in resource
        for container in containers
        for resource in (container.get("resources") or {}).get("limits") or ()
    )


async def _names(list_method: Any) -> list[str]:
    try:
        listed = await list_method()
    except ApiException as error:
        if busy(error):
            raise
        return []  # an older cluster, or not allowed
    return [item.metadata.name for item in listed.items]
