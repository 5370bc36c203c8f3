"""The emulator as tests hold it: started, filled, broken and stopped."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from . import rules
from .kinds import BY_ADDRESS, PODS, Kind
from .kubelet import Kubelet
from .scheduler import schedule
from .server import Api, Faults, Right
from .store import Store

TOKEN = "emulator-token"
T = TypeVar("T")


class Cluster:
    """Serves until :meth:`stop`. ``delay``: seconds from a pod's placing to its running."""

    def __init__(self, *, delay: float = 0.0, execute: bool = False) -> None:
        self._delay, self._execute = delay, execute
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kubernetes", daemon=True)
        self._thread.start()
        if not self._ready.wait(30):
            raise RuntimeError("the emulator does not start")

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self.store, self.faults = Store(), Faults()
        self.api = Api(self.store, TOKEN, self.faults)
        self._kubelet = Kubelet(self.store, self._delay, self._execute)
        runner = web.AppRunner(self.api.app(), shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}"
        self.store.create(_kind("namespaces"), "", {"metadata": {"name": "default"}})
        self._ready.set()
        while not self._done.is_set():
            schedule(self.store)
            self._kubelet.sync()
            try:
                await asyncio.wait_for(self._done.wait(), 0.05)
            except asyncio.TimeoutError:
                pass
        self._kubelet.close()
        self.faults.drops.set()
        await runner.cleanup()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    def _call(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for it."""
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                    "contexts": [
                        {"name": "x", "context": {"cluster": "c", "user": "u"}},
                    ],
                    "current-context": "x",
                }
            )
        )
        return path

    # What is there

    def create(self, plural: str, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        """Any object, checked as over HTTP."""
        kind = _kind(plural)
        rules.check(kind, body, kind.schema)
        if kind is PODS:
            body = {**body, "status": {"phase": "Pending"}}
        where = (namespace or "default") if kind.namespaced else ""
        return self._call(lambda: self.store.create(kind, where, body))

    def all(self, plural: str, namespace: str = "") -> list[dict[str, Any]]:
        return self._call(lambda: self.store.all(_kind(plural), namespace))

    def node(
        self, name: str, gpus: int = 0, labels: dict[str, str] | None = None, **allocatable: str
    ) -> None:
        """A node; further resources by keyword, a slash as ``__`` and a dot as ``_``."""
        resources = {"cpu": "16", "memory": "64Gi", "pods": "110", **allocatable}
        if gpus:
            resources["nvidia.com/gpu"] = str(gpus)
        self.create(
            "nodes",
            {
                "metadata": {"name": name, "labels": labels or {}},
                "spec": {},
                "status": {
                    "allocatable": resources,
                    "capacity": resources,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """At once, as with a grace period of 0."""
        kind = _kind(plural)
        self._call(lambda: self.store.remove(kind, namespace if kind.namespaced else "", name))

    def remove_node(self, name: str) -> None:
        self._call(lambda: self.store.remove(_kind("nodes"), "", name))

    def change(
        self, plural: str, name: str, change: Callable[[dict[str, Any]], None], namespace: str = ""
    ) -> None:
        kind = _kind(plural)
        where = (namespace or "default") if kind.namespaced else ""
        self._call(lambda: self.store.update(kind, where, name, change))

    def gpu_devices(self, node: str, count: int, memory: str, shared: bool = False) -> None:
        """A ResourceSlice of NVIDIA's driver, and its DeviceClass if it is not there yet."""
        if not self.all("deviceclasses"):
            expression = "device.driver == 'gpu.nvidia.com'"
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            self.create("deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, "spec": spec})
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {
                    "uuid": {"string": f"GPU-{node}-{number}"},
                    "productName": {"string": "NVIDIA A100-SXM4-80GB"},
                },
                "capacity": {"memory": {"value": memory}},
                **({"allowMultipleAllocations": True} if shared else {}),
            }
            for number in range(count)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        self.create(
            "resourceslices",
            {
                "metadata": {"name": f"{node}-gpu"},
                "spec": {
                    "driver": "gpu.nvidia.com",
                    "nodeName": node,
                    "pool": pool,
                    "devices": devices,
                },
            },
        )

    # What goes wrong

    def fail(self, code: int, *, seconds: float = 0.0, requests: int = 0) -> None:
        """Answer everything with this code (or `HANG_UP`), for so long or so often."""

        def begin() -> None:
            self.faults.code, self.faults.requests = code, requests
            self.faults.until = time.monotonic() + seconds

        self._call(begin)

    def slow_nodes(self, seconds: float) -> None:
        """From now on pods run so long after they were placed."""

        def slow() -> None:
            self._kubelet.delay = seconds

        self._call(slow)

    def drop_watches(self) -> None:
        """End all watches, and forget what was: they get 410 when they come back."""

        def drop() -> None:
            self.store.forget()
            drops, self.faults.drops = self.faults.drops, asyncio.Event()
            drops.set()

        self._call(drop)

    def forbid(self, verb: str, plural: str) -> None:
        self._call(lambda: self.api.forbidden.add((verb, plural)))

    def bind(self, objects: list[dict[str, Any]], namespace: str) -> None:
        """From now on RBAC grants what these Roles (in ``namespace``) and ClusterRoles say, and
        nothing else."""

        def rules() -> None:
            self.api.rights = [
                *(self.api.rights or []),
                *(
                    Right(
                        frozenset(rule["verbs"]),
                        frozenset(rule["apiGroups"]),
                        frozenset(rule["resources"]),
                        "" if body["kind"] == "ClusterRole" else namespace,
                    )
                    for body in objects
                    if body["kind"] in ("Role", "ClusterRole")
                    for rule in body["rules"]
                ),
            ]

        self._call(rules)

    def used(self) -> set[tuple[str, str, str, bool]]:
        """What was asked of the API: verb, group, plural, and whether it was in one namespace."""
        return self._call(lambda: set(self.api.used))

    def set_queue(self, namespace: str, queue: str, items: list[dict[str, Any]]) -> None:
        """What Kueue's visibility API says of a LocalQueue."""
        self._call(lambda: self.api.pending.update({(namespace, queue): items}))


def _kind(plural: str) -> Kind:
    return next(kind for (_, _, name), kind in BY_ADDRESS.items() if name == plural)
