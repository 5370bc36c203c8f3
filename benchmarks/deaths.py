"""How long after a kill -9 everything is free, freed or back again, in a real demo hub.

Each round kills a rank in the middle of a collective, a notebook's kernel with a group, and a user
server with kernels; the last one also kills the hub's GPU service. The limit is the promise: five
seconds until what a dead holder held is free.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from jupyter_gpuslice.demo.check import spawn_form, start_server
from jupyter_gpuslice.demo.hub import DemoError, DemoHub
from jupyter_gpuslice.demo.visitor import Visitor
from jupyter_gpuslice.devices.process import runs

from .table import machine, show

PROMISE_S = 5.0
DEADLINE_S = 120.0
COLLECTIVE = """%%gpu train -n 2
import torch, torch.distributed as dist
print("begun", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
"""


def until(done: Callable[[], Any], what: str) -> float:
    """Seconds until ``done()`` is true."""
    start = time.monotonic()
    while not done():
        if time.monotonic() - start > DEADLINE_S:
            raise RuntimeError(f"{what} did not come within {DEADLINE_S:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - start


class Session:
    """A demo user's server."""

    def __init__(self, hub: DemoHub) -> None:
        self._user = hub.users[0]
        self._visitor = Visitor(hub.url, self._user.name)
        self._visitor.log_in(self._user.password)
        self._visitor.get("services/gpuslice/")

    def start(self) -> None:
        for _ in start_server(self._visitor, *spawn_form(self._visitor, "0.5")):
            pass

    def server(self) -> psutil.Process:
        """Its process."""
        for process in psutil.Process().children(recursive=True):
            if "jupyterhub.singleuser" in " ".join(process.cmdline()):
                return process
        raise RuntimeError("the user's server has no process")

    def own(self, path: str) -> Any:
        """A call to the user's server."""
        return self._visitor.json(f"user/{self._user.name}/gpuslice/api/v1/{path}")

    def node_is_free(self) -> bool:
        """Whether nothing of the node's pool is held."""
        pool = self._visitor.json("services/gpuslice/api/v1/pool")
        return all(device["free_percent"] == 100 for device in pool["devices"])

    def answers(self) -> bool:
        try:
            # Its page logs in anew, through the hub: a new service knows no cookie of the old one.
            self._visitor.get("services/gpuslice/")
            return bool(self._visitor.json("services/gpuslice/api/v1/pool")["devices"])
        except DemoError:
            return False

    def kill_a_rank(self) -> tuple[float, list[int]]:
        """Seconds until the cell has ended on the rank that lives; and the peers."""
        kernel = self._visitor.kernel()
        begun = threading.Event()
        ended: list[float] = []

        def run() -> None:
            kernel.run(COLLECTIVE, 120, lambda text: "begun" in text and begun.set())
            ended.append(time.monotonic())

        thread = threading.Thread(target=run)
        thread.start()
        if not begun.wait(DEADLINE_S):
            raise RuntimeError("the training did not begin")
        time.sleep(1)
        ranks = [rank["pid"] for rank in self.own("groups")["groups"][0]["ranks"]]
        start = time.monotonic()
        os.kill(ranks[1], signal.SIGKILL)
        thread.join(DEADLINE_S)
        kernel.close()
        peers = [rank["pid"] for rank in self.own("groups")["groups"][0]["ranks"]]
        return ended[0] - start, peers

    def kill_the_kernel(self, peers: list[int]) -> float:
        """Seconds until its group's lease and processes are gone."""
        children = self.server().children()
        notebook = next(
            child
            for child in children
            if child.pid not in peers and "ipykernel_launcher" in " ".join(child.cmdline())
        )
        notebook.kill()

        def gone() -> bool:
            leases = self.own("leases")["leases"]
            return not any(lease["holder"]["kind"] == "group" for lease in leases) and not any(
                map(runs, peers)
            )

        return until(gone, "the end of the group")

    def kill_the_server(self) -> tuple[float, float]:
        """Seconds until the node has its slice back, and until its kernels are gone."""
        server = self.server()
        children = [child.pid for child in server.children(recursive=True)]
        server.kill()
        free = until(self.node_is_free, "the session's slice")
        return free, free + until(lambda: not any(map(runs, children)), "the kernels' end")

    def kill_the_service(self) -> float:
        """Seconds until it answers again."""
        for process in psutil.Process().children(recursive=True):
            if "jupyter_gpuslice.hub.service" in " ".join(process.cmdline()):
                process.kill()
        return until(self.answers, "the service")

    def forgotten(self) -> None:
        """Wait until the hub has seen that the server is gone."""
        path = f"hub/api/users/{self._user.name}"
        self._visitor.call("DELETE", f"{path}/server")
        until(lambda: not self._visitor.json(path)["servers"], "the hub's notice")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(machine())
    rows: dict[str, list[float]] = {
        "the promise": [PROMISE_S],
        "rank killed in a collective: cell ended, rank back": [],
        "notebook's kernel killed: group and lease gone": [],
        "user server killed: slice free on the node": [],
        "user server killed: kernels and peers gone": [],
        "GPU service killed: answers again (JupyterHub's poll)": [],
    }
    names = list(rows)
    with DemoHub() as hub:
        session = Session(hub)
        for _ in range(rounds):
            session.start()
            seconds, peers = session.kill_a_rank()
            rows[names[1]].append(seconds)
            rows[names[2]].append(session.kill_the_kernel(peers))
            free, gone = session.kill_the_server()
            rows[names[3]].append(free)
            rows[names[4]].append(gone)
            session.forgotten()
        rows[names[5]].append(session.kill_the_service())
    show("After a kill -9", rows, names[0], "s")


if __name__ == "__main__":
    main()
