"""Slurm: a request as ``--gres``, and BatchSpawner's jobs with it.

Sources: slurm.schedmd.com/gres.html (types, MPS, sharding); batchspawner 1.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchspawner import SlurmSpawner
from traitlets import Dict

from ..request import GpuRequest
from .availability import Availability, Offer
from .kube.patch import CannotExpressError
from .spawner import GpuSliceSpawner, GpuSpawnError

SHARE_VARIABLE = "JUPYTER_GPUSLICE_SHARE"


@dataclass(frozen=True)
class Slurm:
    """What ``gres.conf`` offers besides whole GPUs.

    ``shards``: how many shards there are of each GPU (nothing keeps them apart); ``mps``: whether
    there is MPS (of compute, 100 of each GPU); ``types``: what a model is called there, where it is
    not called by its own name.
    """

    shards: int = 0
    mps: bool = False
    types: Mapping[str, str] = field(default_factory=dict)

    def gres(self, request: GpuRequest) -> str:
        """The value of ``--gres``; :class:`CannotExpressError` with what could be had."""
        if request.kind == "none":
            return ""
        if request.kind == "auto":
            raise CannotExpressError("auto is for kernels: a server asks for an amount.", ["1"])
        if request.kind == "mig":
            if request.count > 1:
                raise CannotExpressError(
                    "A process sees one MIG device only, so one server cannot use several.",
                    [str(request.profile)],
                )
            return f"gpu:{request.profile}:1"
        if request.whole:
            return f"gpu:{self._type(request)}{request.count}"
        return self._part(request)

    def _part(self, request: GpuRequest) -> str:
        model = f"{request.model}:" if request.model else ""
        parts = [f"{model}0.5"] if self.shards > 1 or self.mps else []
        whole = f"{model}{request.count}"
        if request.memory_mib is not None:
            raise CannotExpressError("Slurm shares GPUs, not their memory.", [*parts, whole])
        if request.count > 1:
            raise CannotExpressError("Slurm gives a job a part of one GPU.", [*parts, whole])
        fraction = request.fraction or 0
        if self.mps:
            return f"mps:{self._type(request)}{int(fraction * 100)}"
        shards = int(fraction * self.shards)
        if shards < 1:
            said = (
                f"This cluster shares a GPU in {self.shards} parts: {request} is less than one."
                if self.shards
                else "This cluster gives out whole GPUs only."
            )
            raise CannotExpressError(said, [*parts, whole])
        return f"shard:{self._type(request)}{shards}"

    def _type(self, request: GpuRequest) -> str:
        if request.model is None:
            return ""
        return f"{self.types.get(request.model, request.model)}:"


class GpuSliceSlurmSpawner(GpuSliceSpawner, SlurmSpawner):  # type: ignore[misc]
    """Servers are jobs of Slurm, which places and queues them."""

    slurm = Dict(
        help="""
        What the cluster's gres.conf offers: {"shards": 4}, {"mps": True}, and
        {"types": {"a100": "nvidia_a100-sxm4-80gb"}} where a model is called otherwise there.
        """,
    ).tag(config=True)

    async def availability(self, requests: Sequence[str]) -> Availability:
        parsed = [GpuRequest.parse(text) for text in requests]
        note = "Slurm's queue decides when the server starts."
        return Availability({str(each): self._offer(each) for each in parsed}, note=note)

    def _offer(self, request: GpuRequest) -> Offer:
        try:
            Slurm(**self.slurm).gres(request)
        except CannotExpressError as error:
            return Offer(never=True, message=f"{error.message} {error.hint}".strip())
        return Offer()

    async def start(self) -> Any:
        # BatchSpawner puts all of the user's options into the script: only checked ones may come
        # so far.
        self._chosen = chosen = self.within_limits(await self.select_for_start())
        try:
            Slurm(**self.slurm).gres(chosen.request)
        except CannotExpressError as error:
            raise GpuSpawnError(409, "cannot_express", error.message, error.hint) from error
        return await super().start()

    def get_req_subvars(self) -> dict[str, Any]:
        found: dict[str, Any] = super().get_req_subvars()
        if self._chosen is not None:
            gres = Slurm(**self.slurm).gres(self._chosen.request)
            found["gres"] = ",".join(filter(None, [found.get("gres", ""), gres]))
            if self._chosen.ttl is not None:
                found["runtime"] = time_limit(self._chosen.ttl)
        return found

    def get_env(self) -> dict[str, str]:
        env: dict[str, str] = super().get_env()
        chosen = self._chosen
        if chosen is not None:
            env |= chosen.profile.environment
            if chosen.request.fraction is not None and not chosen.request.whole:
                env[SHARE_VARIABLE] = str(chosen.request)
        return env

    def clear_state(self) -> None:
        super().clear_state()
        self._chosen = None


def time_limit(seconds: float) -> str:
    """A time as ``sbatch --time`` takes it: ``days-hours:minutes:seconds``."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
