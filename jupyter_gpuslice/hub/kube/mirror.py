"""A copy of a cluster's objects that follows them by a watch."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException
from kubernetes_asyncio.watch import Watch

log = logging.getLogger(__name__)

WATCH_SECONDS = 60
"""How long the server keeps one watch open: then the next begins where it ended. A connection that
died unnoticed is missed no longer than that."""
REQUEST_SECONDS = 30
PAUSE = 0.1
LONGEST_PAUSE = 10.0

ListMethod = Callable[..., Awaitable[Any]]


class Mirror:
    """Objects of one kind, as ``list_method`` of a Kubernetes client lists and watches them.

    ``objects`` are their JSON by namespace and name, of those for which ``keep`` is true. It goes
    on for ever: whatever ends a watch (a version that is gone, an API server that is away), the
    objects are listed anew; ``behind`` is true while that does not succeed. ``changed`` is called
    after every change.
    """

    def __init__(
        self,
        list_method: ListMethod,
        *,
        keep: Callable[[dict[str, Any]], bool] = lambda item: True,
        changed: Callable[[], None] = lambda: None,
        **selectors: str,
    ) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.behind = False
        self._keep = keep
        self._changed = changed
        self._list = partial(
            list_method, _preload_content=False, _request_timeout=REQUEST_SECONDS, **selectors
        )
        self._watch = partial(list_method, _preload_content=False, **selectors)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List the objects, then follow them. Errors of the first list are raised."""
        version = await self._fetch()
        self._task = asyncio.create_task(self._follow(version))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _fetch(self) -> str:
        response = await self._list()
        body = await response.read()
        if response.status != 200:
            raise ApiException(status=response.status, reason=_message(body))
        listed = json.loads(body)
        version = str(listed["metadata"]["resourceVersion"])
        self.objects = {_key(item): item for item in listed.get("items") or () if self._keep(item)}
        self._tell(behind=False)
        return version

    def _tell(self, behind: bool) -> None:
        self.behind = behind
        self._changed()

    async def _follow(self, version: str) -> None:
        pause = PAUSE
        while True:
            try:
                while True:
                    version = await self._once(version)
                    pause = PAUSE
            except ApiException as error:
                if error.status != 410:
                    log.warning("Watching the cluster: %s", error.reason)
            except (ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
                log.warning("Watching the cluster: %s", error or type(error).__name__)
            except Exception:
                log.exception("Watching the cluster failed")
            version, pause = await self._anew(pause)

    async def _anew(self, pause: float) -> tuple[str, float]:
        """List the objects, again and again until the API answers."""
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                return await self._fetch(), pause
            except Exception as error:
                log.warning("The cluster's API does not answer: %s", error)
                self._tell(behind=True)

    async def _once(self, version: str) -> str:
        """One watch to its end; the version with which the next goes on."""
        watch = Watch(return_type="object")
        stream = watch.stream(
            self._watch,
            resource_version=version,
            timeout_seconds=WATCH_SECONDS,
            allow_watch_bookmarks=True,
            _request_timeout=WATCH_SECONDS + REQUEST_SECONDS,
        )
        async with stream:
            async for event in stream:
                item = event["raw_object"]
                version = str(item["metadata"]["resourceVersion"])
                if event["type"] == "BOOKMARK":
                    continue
                if event["type"] == "DELETED" or not self._keep(item):
                    gone = self.objects.pop(_key(item), None)
                    if gone is None:
                        continue
                else:
                    self.objects[_key(item)] = item
                self._changed()
        return version


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return str(item["metadata"].get("namespace", "")), str(item["metadata"]["name"])


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:300]
