"""The ranks of a group that run on this server: their lease, their environment, their kernels."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..broker.explain import Refused
from ..broker.lease import Slice
from ..devices.device import Device
from ..isolation.environment import installed_torch, slice_environment
from .lease import GroupLease
from .members import Launcher, Member, StartFailedError
from .torchrun import LOOPBACK, local_devices, torchrun_environment

ALONE = "127.0.0.1"
"""Where the ranks of a group on one node meet."""


@dataclass(frozen=True)
class Share:
    """Which ranks of a group a node has: ``count`` from ``first`` on, of ``workers`` in all."""

    group: str
    workers: int
    first: int
    count: int
    node: int = 0
    nodes: int = 1

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def shares(group: str, workers: int, nodes: int) -> list[Share]:
    """The ranks in order, over ``nodes``; the first ones have one more where it is uneven."""
    least, more = divmod(workers, nodes)
    found, first = [], 0
    for node in range(nodes):
        count = least + (node < more)
        found.append(Share(group, workers, first, count, node, nodes))
        first += count
    return found


class LocalNode:
    """Starts and ends a share of a group's ranks here.

    ``serverapp`` gives the kernelspecs, ``runtime`` the broker (``None`` where there is no pool).
    ``address`` is where ranks on other nodes reach the ones here, ``interface`` the network
    interface that has it.
    """

    name = ""
    """For people: the node is the one that they are on."""

    def __init__(
        self,
        serverapp: Any,
        runtime: Any,
        launcher: Launcher,
        lease: GroupLease,
        share: Share,
        kernel_name: str,
        cwd: str | None,
        address: str = ALONE,
        interface: str = LOOPBACK,
    ) -> None:
        self.share = share
        self.lease = lease
        self.address = address
        self.members: dict[int, Member] = {}
        self._serverapp = serverapp
        self._runtime = runtime
        self._launcher = launcher
        self._kernel_name = kernel_name
        self._cwd = cwd
        self._interface = interface
        self._torch: tuple[int, int] | None = None
        self._looked = False
        self._slices: dict[int, tuple[Slice, ...]] = {}

    @property
    def ranks(self) -> range:
        return self.share.ranks

    @property
    def lease_id(self) -> str | None:
        return self.lease.id

    def slices(self) -> dict[int, tuple[Slice, ...]]:
        """What each rank has, as far as it has been told."""
        return dict(self._slices)

    def take_up(self) -> None:
        """What the lease holds is the ranks' from now on."""
        self._slices = dict(zip(self.ranks, self.lease.slices(), strict=True))

    def lay_down(self) -> None:
        """The ranks have nothing from now on."""
        self._slices = dict.fromkeys(self.ranks, ())

    async def spawn(self, ranks: Sequence[int], instead_of: str | None) -> list[Member]:
        """Start these ranks, or none of them: :class:`StartFailedError` or :class:`Refused`.

        ``instead_of`` names a lease that may give way where all ranks had died, and their lease
        with them.
        """
        if not self._looked:
            self._torch = await asyncio.to_thread(self._installed_torch)
            self._looked = True
        if self._slices and len(ranks) == self.share.count:
            await self.lease.anew(instead_of)
            self.take_up()
        elif not self._slices:
            self.take_up()
        starting = [
            self._launcher.spawn(rank, self._kernel_name, self._environment(rank), self._cwd)
            for rank in ranks
        ]
        results = await asyncio.gather(*starting, return_exceptions=True)
        spawned = [result for result in results if isinstance(result, Member)]
        for member in spawned:
            member.node = self
        self.members |= {member.rank: member for member in spawned}
        try:
            raise_first(results)
            # In the order of the ranks: what each uses is told by it.
            self.lease.activate([self.members[rank].process for rank in sorted(self.members)])
            raise_first(await asyncio.gather(*(m.ready() for m in spawned), return_exceptions=True))
        except BaseException:
            await asyncio.gather(*(self.end(m, now=True) for m in spawned))
            raise
        return spawned

    async def end(self, member: Member, *, now: bool = False) -> None:
        """End a rank with everything it started; it is gone when this returns."""
        if self.members.get(member.rank) is member:
            del self.members[member.rank]
        await self._launcher.end(member, now=now)

    async def close(self, why: str) -> None:
        """Give the lease back; to be called when all ranks have ended."""
        await self.lease.release(why)

    def slice_environment(self, rank: int) -> dict[str, str | None]:
        """What a rank's slice means in its environment (``None``: unset)."""
        environment = slice_environment(
            self._slices[rank],
            self._devices(),
            self.lease.isolation,
            environ=os.environ,
            torch=self._torch,
        )
        visible = self._visible()
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        return environment

    def _visible(self) -> Sequence[str] | None:
        """What every rank sees, where all see the same."""
        return local_devices([self._slices[rank] for rank in self.ranks], self._devices())

    def _devices(self) -> Sequence[Device]:
        return [member.device for member in self._runtime.broker.pool] if self._runtime else []

    def _environment(self, rank: int) -> dict[str, str]:
        # Simulated devices are nothing that CUDA could see: such ranks are as on a CPU.
        kinds = {device.uuid: device.kind for device in self._devices()}
        held = {slice_.device for own in self._slices.values() for slice_ in own}
        real = any(kinds.get(uuid) != "simulated" for uuid in held)
        environment: dict[str, str | None] = dict(os.environ)
        environment |= self.slice_environment(rank)
        environment |= torchrun_environment(
            rank,
            self.share,
            alone=real and self._visible() is None,
            cpus=len(os.sched_getaffinity(0)),
            interface=self._interface,
            inherited=os.environ,
        )
        environment["JUPYTER_GPUSLICE_RANK"] = str(rank)
        environment["JUPYTER_GPUSLICE_GROUP"] = self.share.group
        environment["JUPYTER_GPUSLICE_LEASE"] = self.lease.id
        return {name: value for name, value in environment.items() if value is not None}

    def _installed_torch(self) -> tuple[int, int] | None:
        try:
            specs = self._serverapp.kernel_spec_manager
            argv = specs.get_kernel_spec(self._kernel_name).argv
        except Exception:
            return None  # told in words when the kernel is started
        return installed_torch(argv[0]) if argv and os.path.isabs(argv[0]) else None


def raise_first(results: Sequence[Any]) -> None:
    """Of several failures the one that says most: what nobody expected, or else the first."""
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, (StartFailedError, Refused)):
            raise error
    if errors:
        raise errors[0]
