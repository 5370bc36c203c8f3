"""What processes use of simulated devices, measured from the processes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from .device import ProcessUse

SETTLED_S = 2.0
"""Age from which a process counts as started: what it has by then is not its use of a device."""

_MIB = 1 << 20


_Key = tuple[int, float]
"""A process: its pid and when it was created."""


@dataclass
class _Root:
    """A holder's process at the last measurement."""

    created: float
    starts: dict[_Key, int] = field(default_factory=dict)  # bytes of each that has started
    cpu: dict[_Key, float] = field(default_factory=dict)  # seconds
    at: float | None = None


class ProcessMeter:
    """Measures the process trees of holders: CPU as compute, memory since the start as memory.

    - Utilisation is the tree's CPU time since the last measurement; 100 percent is one core busy.
      The first measurement of a process gives None. CPU time of children that ended between two
      measurements is not counted.
    - Used memory is what each process of the tree has of resident memory beyond what it had when
      it had started: at the first measurement from `SETTLED_S` after its creation (until then its
      use is 0), or at the first at all for one that became part of a holder later. So a server
      and its kernels, measured as one tree, use what they use measured one by one.
    - A holder below another holder is its own, not the other's too. One that holds several devices
      uses them in equal parts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roots: dict[int, _Root] = {}

    def measure(self, holders: Mapping[str, Sequence[int]]) -> dict[str, list[ProcessUse]]:
        """Device → use of each holder's process that is there. One process tree is one entry."""
        pids = {pid for processes in holders.values() for pid in processes}
        trees = _trees(pids) if pids else {}
        uses = {pid: self._measure(pid, tree) for pid, tree in trees.items()}
        self._roots = {pid: root for pid, root in self._roots.items() if uses.get(pid) is not None}
        shares = {pid: sum(pid in processes for processes in holders.values()) for pid in pids}
        result: dict[str, list[ProcessUse]] = {}
        for device, processes in holders.items():
            result[device] = []
            for pid in dict.fromkeys(processes):
                use = uses.get(pid)
                if use is not None:
                    used, busy = use
                    result[device].append(
                        ProcessUse(
                            pid,
                            used // shares[pid] // _MIB,
                            None if busy is None else min(100, round(busy / shares[pid])),
                        )
                    )
        return result

    def _measure(self, pid: int, tree: Iterable[psutil.Process]) -> tuple[int, float | None] | None:
        """Bytes used and percent of one core; None when the process is gone."""
        now = self._clock()
        cpu: dict[_Key, float] = {}
        resident: dict[_Key, int] = {}
        created = None
        for process in tree:
            try:
                with process.oneshot():
                    if process.status() == psutil.STATUS_ZOMBIE:
                        continue
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    resident[key] = process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            cpu[key] = times.user + times.system
            if process.pid == pid:
                created = key[1]
        if created is None:
            return None
        root = self._roots.get(pid)
        if root is None or root.created != created:
            root = self._roots[pid] = _Root(created)
        settled = time.time() - SETTLED_S
        root.starts = {
            key: root.starts.get(key, rss) for key, rss in resident.items() if key[1] <= settled
        }
        memory = sum(max(0, resident[key] - start) for key, start in root.starts.items())
        busy = None
        if root.at is not None and now > root.at:
            # A process that was born since has used all its time since; one that joined later
            # (it cannot be told from which moment) counts from now.
            began = time.time() - (now - root.at)
            spent = sum(
                seconds - root.cpu.get(key, 0.0 if key[1] >= began else seconds)
                for key, seconds in cpu.items()
            )
            busy = 100 * max(0.0, spent) / (now - root.at)
        root.cpu, root.at = cpu, now
        return memory, busy


def _trees(roots: set[int]) -> dict[int, list[psutil.Process]]:
    """Each root's processes: itself and its descendants, less those of roots below it."""
    processes: dict[int, psutil.Process] = {}
    parents: dict[int, int] = {}
    for process in psutil.process_iter(["ppid"]):
        processes[process.pid] = process
        parents[process.pid] = process.info["ppid"]
    trees: dict[int, list[psutil.Process]] = {root: [] for root in roots if root in processes}
    owners: dict[int, int | None] = {}
    for pid, process in processes.items():
        path: list[int] = []
        above = pid
        while above not in owners and above not in roots and above in parents and above not in path:
            path.append(above)
            above = parents[above]
        owner = above if above in roots else owners.get(above)
        owners.update(dict.fromkeys(path, owner))
        if owner in trees:
            trees[owner].append(process)
    return trees
