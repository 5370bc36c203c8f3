"""The HTTP side: addresses, verbs, watches, and faults on purpose."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from . import rules, status
from .kinds import KINDS, PODS, Kind
from .selectors import matches_fields, matches_labels
from .store import Object, Store, now

DEFAULT_TIMEOUT = 60
HANG_UP = 1
"""In place of an answer's code: the connection is cut."""
PENDING = "localqueues/pendingworkloads"


@dataclass
class Faults:
    """What goes wrong on purpose: an answer for some time or some requests, and slowness."""

    code: int = 0
    until: float = 0.0
    requests: int = 0
    slow: float = 0.0
    drops: asyncio.Event = field(default_factory=asyncio.Event)

    def bites(self) -> bool:
        return bool(self.code) and (time.monotonic() <= self.until or self.requests > 0)

    async def hit(self) -> web.Response | None:
        if self.slow:
            await asyncio.sleep(self.slow)
        if not self.bites():
            return None
        self.requests -= 1
        words = {429: ("TooManyRequests", "too many requests")}.get(
            self.code, ("InternalError", "internal error, on purpose")
        )
        body = status.StatusError(self.code, *words).body
        headers = {"Retry-After": "1"} if self.code == 429 else {}
        return web.json_response(body, status=self.code, headers=headers)


@dataclass(frozen=True)
class Right:
    """A rule of RBAC for the token; a ``namespace`` of ``""`` is that of a ClusterRoleBinding."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    namespace: str = ""

    def grants(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        return (
            verb in self.verbs
            and group in self.groups
            and resource in self.resources
            and self.namespace in ("", namespace)
        )


class Api:
    """Routes over a store. ``pending`` serves Kueue's visibility API: queue → items."""

    def __init__(self, store: Store, token: str, faults: Faults) -> None:
        self.store = store
        self.faults = faults
        self.pending: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._token = token
        self.forbidden: set[tuple[str, str]] = set()
        """Verb and plural that this token may not, cluster-wide ones too."""
        self.rights: list[Right] | None = None
        """What RBAC grants the token; ``None`` is everything."""
        self.used: set[tuple[str, str, str, bool]] = set()
        """What was asked for: verb, group, plural, and whether it was in one namespace."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=8 * 2**20)
        app.router.add_get("/version", self._version)
        app.router.add_get("/api", self._core)
        app.router.add_get("/apis", self._groups)
        for kind in KINDS:
            for base in self._bases(kind):
                app.router.add_route("*", base, self._on_many(kind))
                app.router.add_route("*", base + "/{name}", self._on_one(kind))
                app.router.add_route("*", base + "/{name}/status", self._on_one(kind, "status"))
        queue = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues/{name}"
        app.router.add_get(queue + "/pendingworkloads", self._pending)
        return app

    @staticmethod
    def _bases(kind: Kind) -> list[str]:
        flat = f"{kind.base}/{kind.plural}"
        return (
            [flat, f"{kind.base}/namespaces/{{namespace}}/{kind.plural}"]
            if (kind.namespaced)
            else [flat]
        )

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.faults.code == HANG_UP and self.faults.bites():
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPServiceUnavailable
        failed = await self.faults.hit()
        if failed is not None:
            return failed
        try:
            if request.headers.get("Authorization") != f"Bearer {self._token}":
                raise status.StatusError(401, "Unauthorized", "Unauthorized")
            answer: web.StreamResponse = await handler(request)
            return answer
        except status.StatusError as error:
            return web.json_response(error.body, status=error.code)
        except web.HTTPNotFound:
            words = "the server could not find the requested resource"
            return web.json_response(status.StatusError(404, "NotFound", words).body, status=404)

    async def _version(self, request: web.Request) -> web.Response:
        major, minor, *_ = rules.NEWEST.split(".")
        return web.json_response({"major": major, "minor": minor, "gitVersion": f"v{rules.NEWEST}"})

    async def _core(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, request: web.Request) -> web.Response:
        groups = {kind.group: kind.version for kind in KINDS if kind.group}
        found = [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in groups.items()
        ]
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": found})

    async def _pending(self, request: web.Request) -> web.Response:
        queues = Kind("visibility.kueue.x-k8s.io", "v1beta2", PENDING, "Pending", schema=False)
        self._allow("get", queues, request.match_info["namespace"])
        key = request.match_info["namespace"], request.match_info["name"]
        items = self.pending.get(key, [])
        return web.json_response({"kind": "PendingWorkloadsSummary", "items": items})

    # Many

    def _on_many(self, kind: Kind) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            namespace = request.match_info.get("namespace", "")
            if request.method == "GET" and request.query.get("watch") in ("1", "true", "True"):
                self._allow("watch", kind, namespace)
                return await self._watch(request, kind, namespace)
            if request.method == "GET":
                self._allow("list", kind, namespace)
                return self._list(request, kind, namespace)
            if request.method == "POST":
                self._allow("create", kind, namespace)
                return await self._create(request, kind, namespace)
            if request.method == "DELETE":
                self._allow("deletecollection", kind, namespace)
                for body in self._selected(request, kind, namespace):
                    self._delete(kind, namespace, body["metadata"]["name"], 0)
                return web.json_response({"kind": "Status", "status": "Success"})
            raise status.StatusError(405, "MethodNotAllowed", "method not allowed")

        return handle

    def _allow(self, verb: str, kind: Kind, namespace: str) -> None:
        self.used.add((verb, kind.group, kind.plural, bool(namespace)))
        granted = self.rights is None or any(
            right.grants(verb, kind.group, kind.plural, namespace) for right in self.rights
        )
        if not granted or (verb, kind.plural) in self.forbidden:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise status.StatusError(
                403,
                "Forbidden",
                f'{kind.plural} is forbidden: User "system:serviceaccount:hub:hub" cannot {verb} '
                f'resource "{kind.plural}" in API group "{kind.group}" {where}',
                {"kind": kind.plural},
            )

    def _selected(self, request: web.Request, kind: Kind, namespace: str) -> list[Object]:
        return [body for body in self.store.all(kind, namespace) if self._wanted(request, body)]

    @staticmethod
    def _wanted(request: web.Request, body: Object) -> bool:
        return matches_labels(
            request.query.get("labelSelector", ""), body["metadata"].get("labels") or {}
        ) and matches_fields(request.query.get("fieldSelector", ""), body)

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        found = self._selected(request, kind, namespace)
        start = int(request.query.get("continue") or 0)
        limit = int(request.query.get("limit") or 0) or len(found)
        meta: dict[str, Any] = {"resourceVersion": str(self.store.version)}
        if start + limit < len(found):
            meta |= {
                "continue": str(start + limit),
                "remainingItemCount": len(found) - start - limit,
            }
        return web.json_response(
            {
                "kind": f"{kind.name}List",
                "apiVersion": kind.api_version,
                "metadata": meta,
                "items": found[start : start + limit],
            }
        )

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        wanted = request.query.get("resourceVersion") or "0"
        version = int(wanted)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(event: str, body: Object) -> None:
            await response.write(json.dumps({"type": event, "object": body}).encode() + b"\n")

        if version == 0:
            for body in self._selected(request, kind, namespace):
                await send("ADDED", body)
            version = self.store.version
        seconds = float(request.query.get("timeoutSeconds") or DEFAULT_TIMEOUT)
        end = time.monotonic() + seconds
        drops = self.faults.drops
        while time.monotonic() < end and not drops.is_set():
            changed = self.store.changed
            try:
                for number, event, _, body in self.store.since(version, kind, namespace):
                    version = number
                    if self._wanted(request, body):
                        await send(event, body)
            except status.StatusError as error:
                await send("ERROR", error.body)
                break
            version = max(version, self.store.version)
            waiting = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(drops.wait())]
            left = max(0.0, end - time.monotonic())
            await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
        if request.query.get("allowWatchBookmarks") == "true" and not drops.is_set():
            meta = {"resourceVersion": str(version), "creationTimestamp": None}
            await send("BOOKMARK", {"kind": kind.name, "metadata": meta})
        return response

    async def _create(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        body = await self._body(request)
        strict = request.query.get("fieldValidation", "Warn") == "Strict"
        rules.check(kind, body, strict)
        if kind.namespaced and not namespace:
            raise status.StatusError(405, "MethodNotAllowed", "a namespace is needed")
        if kind is PODS:
            rules.check_quota(self.store, namespace, body)
            body["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        return web.json_response(self.store.create(kind, namespace, body), status=201)

    # One

    def _on_one(self, kind: Kind, part: str = "") -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            namespace = request.match_info.get("namespace", "")
            name = request.match_info["name"]
            verbs = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
            self._allow(verbs.get(request.method, ""), kind, namespace)
            if request.method == "GET":
                return web.json_response(self.store.get(kind, namespace, name))
            if request.method == "DELETE":
                grace = request.query.get("gracePeriodSeconds")
                text = await request.text()
                given = (json.loads(text) if text else {}).get("gracePeriodSeconds")
                seconds = int(grace) if grace is not None else given
                return web.json_response(self._delete(kind, namespace, name, seconds))
            if request.method == "PUT":
                body = await self._body(request)
                if body.get("metadata", {}).get("name") != name:
                    raise status.bad_request("the name of the object does not match the URL")
                return web.json_response(self._write(kind, namespace, body, part))
            if request.method == "PATCH":
                before = self.store.get(kind, namespace, name)
                patch = await self._body(request)
                if isinstance(patch, list):
                    patched = _json_patch(before, patch)
                else:
                    patched = merge(before, patch)
                return web.json_response(self._write(kind, namespace, patched, part))
            raise status.StatusError(405, "MethodNotAllowed", "method not allowed")

        return handle

    def _write(self, kind: Kind, namespace: str, body: Object, part: str) -> Object:
        before = self.store.get(kind, namespace, body["metadata"]["name"])
        if part == "status":
            body = {**before, "status": body.get("status", {}), "metadata": {
                **before["metadata"],
                "resourceVersion": body["metadata"].get("resourceVersion", ""),
            }}  # fmt: skip
        else:
            rules.check(kind, body, False)
            if kind is PODS and before["spec"] != body["spec"]:
                raise status.invalid(
                    kind,
                    body["metadata"]["name"],
                    "spec",
                    "Forbidden: pod updates may not change fields other than "
                    "`spec.containers[*].image`,`spec.initContainers[*].image`,"
                    "`spec.activeDeadlineSeconds`,`spec.terminationGracePeriodSeconds`,"
                    "`spec.tolerations` (only additions to existing tolerations)",
                )
            if "status" in before:
                body = {**body, "status": before["status"]}
        return self.store.replace(kind, namespace, body)

    def _delete(self, kind: Kind, namespace: str, name: str, seconds: int | None) -> Object:
        body = self.store.get(kind, namespace, name)
        if kind is PODS and body["spec"].get("nodeName") and seconds != 0:
            # The kubelet takes it away when its processes have ended.
            return self.store.update(
                kind, namespace, name, lambda pod: pod["metadata"].update(deletionTimestamp=now())
            )
        if kind is PODS and body["spec"].get("nodeName"):
            return self.store.update(
                kind, namespace, name, lambda pod: pod["metadata"].update(deletionTimestamp=now())
            )
        return self.store.remove(kind, namespace, name)

    @staticmethod
    async def _body(request: web.Request) -> Any:
        try:
            return json.loads(await request.text())
        except ValueError as error:
            raise status.bad_request(f"the body of the request is no JSON: {error}") from error


def merge(before: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def _json_patch(before: Object, patch: list[dict[str, Any]]) -> Object:
    for step in patch:
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        )
        target: Any = before
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
        if step["op"] == "remove":
            del target[last]
        elif step["op"] in ("add", "replace"):
            target[last] = step["value"]
        else:
            raise status.bad_request(f"this emulator does not know the operation {step['op']}")
    return before
