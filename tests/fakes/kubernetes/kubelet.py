"""The node's side: pods that were placed run, end, and go when they are deleted."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from typing import Any

from .kinds import NODES, PODS
from .scheduler import event
from .status import StatusError
from .store import Store, now


class Kubelet:
    """For all nodes. ``execute``: containers' commands really run, as processes of this machine,
    each pod on a loopback address of its own."""

    def __init__(self, store: Store, delay: float, execute: bool) -> None:
        self.delay = delay
        self._store = store
        self._execute = execute
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, float] = {}
        self._count = 1
        # Another cluster's pods may run on this machine at the same time.
        self._network = f"127.{secrets.randbelow(253) + 1}.{secrets.randbelow(250)}"

    def sync(self) -> None:
        """One round."""
        nodes = {node["metadata"]["name"] for node in self._store.all(NODES)}
        for pod in self._store.all(PODS):
            meta, where = pod["metadata"], pod["spec"].get("nodeName")
            if meta.get("deletionTimestamp"):
                self._end(pod)
            elif where and where not in nodes:
                self._end(pod)  # its node is gone
            elif where and pod["status"].get("phase") == "Pending":
                self._run(pod)
            elif pod["status"].get("phase") == "Running":
                self._look(pod)

    def _run(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        loop = asyncio.get_running_loop()
        if loop.time() - self._begun.setdefault(uid, loop.time()) < self.delay:
            return
        self._count += 1
        address = f"{self._network}.{self._count % 250 + 2}"
        if self._execute:
            self._start(pod, address)

        def running(body: dict[str, Any]) -> None:
            body["status"] |= {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "startTime": now(),
                "conditions": [
                    {"type": kind, "status": "True"}
                    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
                ],
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "ready": True,
                        "started": True,
                        "restartCount": 0,
                        "image": container.get("image", ""),
                        "imageID": "",
                        "state": {"running": {"startedAt": now()}},
                    }
                    for container in body["spec"]["containers"]
                ],
            }

        self._change(pod, running)
        event(self._store, pod, "Normal", "Started", "Started container", "kubelet")

    def _start(self, pod: dict[str, Any], address: str) -> None:
        (container, *_) = pod["spec"]["containers"]
        command = [*(container.get("command") or ()), *(container.get("args") or ())]
        variables = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
        # What listens on every address of its pod listens on the pod's own one here.
        variables = {name: text.replace("0.0.0.0", address) for name, text in variables.items()}
        self._processes[pod["metadata"]["uid"]] = subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], "HOME": "/tmp", **variables},
            start_new_session=True,
        )

    def _look(self, pod: dict[str, Any]) -> None:
        process = self._processes.get(pod["metadata"]["uid"])
        code = process.poll() if process is not None else None
        if code is not None:
            phase = "Failed" if code else "Succeeded"
            ended = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}

            def over(body: dict[str, Any]) -> None:
                body["status"]["phase"] = phase
                for each in body["status"]["containerStatuses"]:
                    each |= {"ready": False, "state": ended}

            self._change(pod, over)

    def _end(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self._kill(meta["uid"])
        try:
            self._store.remove(PODS, meta["namespace"], meta["name"])
        except StatusError:
            pass

    def _kill(self, uid: str) -> None:
        process = self._processes.pop(uid, None)
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def close(self) -> None:
        for uid in list(self._processes):
            self._kill(uid)

    def _change(self, pod: dict[str, Any], change: Any) -> None:
        meta = pod["metadata"]
        try:
            self._store.update(PODS, meta["namespace"], meta["name"], change)
        except StatusError:
            pass
