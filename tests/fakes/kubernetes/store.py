"""Objects with versions, and the history that watches are served from."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from . import status
from .kinds import BY_ADDRESS, PODS, Kind

Object = dict[str, Any]
Change = tuple[int, str, Kind, Object]


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """All objects; used from one event loop. ``changed`` wakes who waits for changes."""

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = {
            kind: {} for kind in BY_ADDRESS.values()
        }
        self.version = 0
        self.oldest = 0
        """Watches from before this version are refused: their history is forgotten."""
        self.history: list[Change] = []
        self.changed = asyncio.Event()

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        try:
            return copy.deepcopy(self._objects[kind][namespace, name])
        except KeyError:
            raise status.not_found(kind, name) from None

    def all(self, kind: Kind, namespace: str = "") -> list[Object]:
        found = self._objects[kind]
        return [copy.deepcopy(o) for (ns, _), o in found.items() if namespace in ("", ns)]

    def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        body = copy.deepcopy(body)
        meta = body.setdefault("metadata", {})
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise status.invalid(
                    kind, "", "metadata.name", "Required value: name or generateName is required"
                )
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if (namespace, meta["name"]) in self._objects[kind]:
            raise status.exists(kind, meta["name"])
        body["apiVersion"], body["kind"] = kind.api_version, kind.name
        if kind.namespaced:
            meta["namespace"] = namespace
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        return self._put("ADDED", kind, namespace, body)

    def replace(self, kind: Kind, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        before = self.get(kind, namespace, name)
        wanted = body["metadata"].get("resourceVersion")
        if wanted and wanted != before["metadata"]["resourceVersion"]:
            raise status.conflict(kind, name)
        body = copy.deepcopy(body)
        for field in ("uid", "creationTimestamp", "namespace", "deletionTimestamp"):
            if field in before["metadata"]:
                body["metadata"][field] = before["metadata"][field]
        return self._put("MODIFIED", kind, namespace, body)

    def update(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], None]
    ) -> Object:
        body = self.get(kind, namespace, name)
        change(body)
        return self._put("MODIFIED", kind, namespace, body)

    def remove(self, kind: Kind, namespace: str, name: str) -> Object:
        body = self.get(kind, namespace, name)
        del self._objects[kind][namespace, name]
        self._note("DELETED", kind, body)
        self._collect(body["metadata"]["uid"])
        return body

    def _collect(self, owner: str) -> None:
        """What a removed object owned goes with it."""
        for kind, objects in self._objects.items():
            for (namespace, name), body in list(objects.items()):
                owners = body["metadata"].get("ownerReferences") or ()
                if any(each["uid"] == owner for each in owners) and kind is not PODS:
                    self.remove(kind, namespace, name)

    def _put(self, event: str, kind: Kind, namespace: str, body: Object) -> Object:
        self._note(event, kind, body)
        self._objects[kind][namespace, body["metadata"]["name"]] = body
        return copy.deepcopy(body)

    def _note(self, event: str, kind: Kind, body: Object) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, event, kind, copy.deepcopy(body)))
        self.changed.set()
        self.changed = asyncio.Event()

    def forget(self) -> None:
        """Compact: whoever asks for an older version gets 410 and has to list anew."""
        self.oldest = self.version
        self.history.clear()

    def since(self, version: int, kind: Kind, namespace: str) -> Iterable[Change]:
        if version < self.oldest:
            raise status.expired(version, self.oldest)
        for change in list(self.history):
            there = namespace in ("", change[3]["metadata"].get("namespace", ""))
            if change[0] > version and change[2] is kind and there:
                yield change
