"""Objects that stand beside a server's pod: made before it, gone with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kubernetes_asyncio.client import ApiException

from .view import UNANSWERED, busy

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that an API server which is away or busy is asked again."""
PAUSE = 0.5
LONGEST_PAUSE = 5.0

LABEL = "gpuslice.jupyter.org/pod"
"""Names the pod that an object stands beside."""

KINDS = {
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): "resourceclaimtemplates",
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): "podgroups",
    ("scheduling.run.ai/v2alpha2", "PodGroup"): "podgroups",
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): "podgroups",
}
"""What may be created, and its name in addresses."""


Name = tuple[str, str, str]
"""An object beside a pod: API version, kind, name."""


class Beside:
    """``api`` is a ``CustomObjectsApi``, which takes any object by its group."""

    def __init__(self, api: Any, namespace: str, pod: str) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod

    async def create(self, manifest: Mapping[str, Any]) -> Name:
        """Create one, in place of what an earlier start left; `ApiException` if refused."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        metadata = dict(manifest["metadata"])
        metadata["labels"] = {**metadata.get("labels", {}), LABEL: self._pod}
        body = {**manifest, "metadata": metadata}
        name: Name = (version, kind, metadata["name"])
        try:
            await self._create(name, body)
        except ApiException as error:
            if error.status != 409:
                raise
            await self.delete(name)
            await self._create(name, body)
        return name

    async def _create(self, name: Name, body: Any) -> None:
        group, version, plural = _address(name)
        create = self._api.create_namespaced_custom_object
        await _patiently(lambda: create(group, version, self._namespace, plural, body))

    async def delete(self, name: Name, *, known: bool = True) -> None:
        """Delete one; that it is gone already is well. One that is not ``known`` may also never
        have been, in a cluster where the hub has no such right."""
        group, version, plural = _address(name)
        delete = self._api.delete_namespaced_custom_object
        try:
            await _patiently(lambda: delete(group, version, self._namespace, plural, name[2]))
        except ApiException as error:
            if error.status != 404 and (known or error.status not in (401, 403)):
                raise


async def _patiently(call: Callable[[], Awaitable[Any]]) -> None:
    deadline, pause = time.monotonic() + PATIENCE, PAUSE
    while True:
        try:
            await call()
            return
        except UNANSWERED as error:
            again = not isinstance(error, ApiException) or busy(error)
            if not again or time.monotonic() + pause > deadline:
                raise
            log.info("The cluster's API is asked again: %s", error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _address(name: Name) -> tuple[str, str, str]:
    group, _, version = name[0].partition("/")
    return group, version, KINDS[name[0], name[1]]
