"""The environment that torchrun gives its workers, for the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..broker.lease import Slice
from ..devices.device import Device

if TYPE_CHECKING:
    from .node import Share

LOOPBACK = "lo"


def local_devices(ranks: Sequence[Sequence[Slice]], devices: Sequence[Device]) -> list[str] | None:
    """The devices that every rank of a group on one machine sees, or ``None`` for only its own.

    torchrun shows all devices to all ranks, and its scripts call ``set_device(LOCAL_RANK)``
    (Lightning also counts the devices). So where each rank has one GPU of its own, each sees all of
    the group's, in the order of the ranks: what a rank sees is then the group's lease, of the same
    user. Where that cannot be (ranks that share a GPU, MIG devices, of which CUDA sees only one,
    bundles) a rank sees its own slice alone, as device 0.
    """
    kinds = {device.uuid: device.kind for device in devices}
    uuids = [own[0].device for own in ranks if len(own) == 1]
    if len(uuids) < len(ranks) or len(set(uuids)) < len(ranks):
        return None
    return uuids if all(kinds.get(uuid) == "gpu" for uuid in uuids) else None


def torchrun_environment(
    rank: int,
    share: Share,
    *,
    alone: bool,
    cpus: int,
    interface: str,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """What ``torchrun`` sets (see its documentation, "Environment Variables").

    ``alone`` is for a rank that sees only its own device: it is described as the only worker of a
    node of its own, the one reading of torchrun's rules in which ``set_device(LOCAL_RANK)`` is
    right. ``interface`` is where the ranks listen for each other. ``MASTER_PORT`` comes later,
    when the leader has bound it.
    """
    workers = share.workers
    own = (rank - share.first, share.count, share.node, share.nodes)
    local_rank, local_world_size, node, nodes = (0, 1, rank, workers) if alone else own
    environment = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": workers,
        "LOCAL_WORLD_SIZE": local_world_size,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": workers,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": share.group,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    defaults = {
        # torchrun says 1; with the machine to itself a rank may have its share of it.
        "OMP_NUM_THREADS": max(1, cpus // share.count),
        # Nothing of theirs listens on other interfaces than the one on which they meet.
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        # What ends a rank's wait in C++ is no news for the notebook, with its stack trace.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # Abort communicators on errors, but let the process live: its variables are the user's.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 2,
    }
    environment |= {name: value for name, value in defaults.items() if name not in inherited}
    return {name: str(value) for name, value in environment.items()}
