"""Open a server's pool: its grant, or the devices of the machine, and the ledger."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..broker.broker import Broker
from ..broker.lease import Slice
from ..broker.ledger import Ledger, LedgerError
from ..broker.placement import place
from ..broker.policy import Policy
from ..broker.pool import PoolDevice, granted, whole
from ..devices import FAR, DeviceSource, GrantedSource, open_devices
from ..isolation.levels import node_level
from ..request import GpuRequest
from .api import ApiError
from .runtime import BrokerRuntime
from .worker import UnansweredError, Worker

DISCOVERY_SECONDS = 60.0

_ON_THE_MACHINE = (
    "This server has what it asked the machine's broker for when it started; to ask anew, start it "
    "again with --GpuSlice.session_request=1, say."
)
_ON_THE_HUB = (
    "This session has what was chosen on the hub's spawn page; to choose anew, stop the server "
    "(File → Hub Control Panel) and start it again."
)


@dataclass(frozen=True)
class Found:
    """What discovery found: everything that has to be asked of a driver."""

    source: DeviceSource
    pool: Sequence[PoolDevice]
    isolation: str
    near: Mapping[tuple[str, str], int]
    note: str
    entitled: Mapping[str, Any] | None = None
    hub: str | None = None
    """The path of the hub's page of all GPUs, where the pool is what a hub granted."""
    elsewhere: str = ""
    """Where people may ask for more than this pool has."""

    def nearness(self, a: str, b: str) -> int:
        return 0 if a == b else self.near.get((a, b), FAR)


async def open_pool(
    ledger_path: Path,
    *,
    simulate: str,
    reserve_mib: int | None,
    grant: str,
    share: str = "",
    log: logging.Logger | logging.LoggerAdapter[Any],
) -> tuple[BrokerRuntime, Found]:
    """A runtime that is not started yet; :class:`ApiError` says in words why there is none."""
    worker = Worker("gpuslice-discovery")
    try:
        found = await worker.call(
            lambda: discover(simulate, reserve_mib, grant, share), DISCOVERY_SECONDS
        )
    except UnansweredError as error:
        raise ApiError(
            503,
            "devices_unanswered",
            f"The GPU driver does not answer ({error}).",
            "Look at `nvidia-smi` on this machine, and start the server again when it answers.",
        ) from error
    except ValueError as error:
        raise ApiError(503, "bad_setting", str(error)) from error
    except ApiError:
        raise
    except Exception as error:
        raise ApiError(
            503, "devices_failed", f"The GPUs of this machine cannot be read: {error}."
        ) from error
    finally:
        worker.close()
    try:
        ledger = _open_ledger(ledger_path, found)
        try:
            broker = Broker(
                found.pool,
                ledger,
                time.time,
                isolation=found.isolation,
                nearness=found.nearness,
                elsewhere=found.elsewhere,
            )
            # Whoever asked for these did not live to take them up.
            for lease in broker.leases():
                if not lease.processes:
                    broker.release(lease.id, "The server ended before its holder had started.")
        except BaseException:
            ledger.close()
            raise
    except LedgerError as error:
        raise ApiError.of(error) from error
    runtime = BrokerRuntime(broker, ledger, found.source, note=found.note, log=log)
    return runtime, found


def _open_ledger(path: Path, found: Found) -> Ledger:
    """The ledger at ``path``, or the next one that no other server of this user's uses.

    Two servers that share a machine's broker have slices of their own, so both may have a ledger.
    Without a broker they would grant the same devices twice: then the second has none.
    """
    number = 1
    while True:
        try:
            return Ledger.open(path.with_stem(f"{path.stem}-{number}") if number > 1 else path)
        except LedgerError as error:
            if error.reason != "ledger_locked" or found.elsewhere != _ON_THE_MACHINE:
                raise
        number += 1


def discover(simulate: str, reserve_mib: int | None, grant: str, share: str = "") -> Found:
    """Find the devices (blocks). ``ValueError`` for settings or a grant that cannot be used.

    ``share``: the request that a container was started for, where it sees more than that.
    """
    if grant:
        return _from_grant(grant)
    source = open_devices(simulate, reserve_mib)
    pool: Sequence[PoolDevice] = whole(source.devices())
    entitled, elsewhere = None, ""
    if share and pool:
        slices = _own_share(share, pool)
        pool = granted([member.device for member in pool], slices)
        entitled, elsewhere = _entitled(slices, share), _ON_THE_HUB
    near = _near(source, pool)
    return Found(source, pool, node_level(source), near, source.note, entitled, elsewhere=elsewhere)


def _own_share(text: str, pool: Sequence[PoolDevice]) -> Sequence[Slice]:
    """A container's part of the devices that it sees: those that the cluster chose for it."""
    # The model was the cluster's to heed.
    request = replace(GpuRequest.parse(text), model=None)
    capacity = {member.device.uuid: member.capacity for member in pool}
    slices = place(request, 1, pool, capacity, Policy())
    if slices is None:
        raise ApiError(
            503,
            "bad_share",
            f"This server was started for {text}, and the GPUs that it sees have no such part.",
            "Stop it and start it again; if that does not help, tell the hub's administrators.",
        )
    return slices


def _entitled(slices: Sequence[Slice], text: str) -> dict[str, Any]:
    return {
        "memory_mib": sum(slice_.memory_mib for slice_ in slices),
        "devices": len({slice_.device for slice_ in slices}),
        "text": text,
    }


def _from_grant(text: str) -> Found:
    try:
        grant = json.loads(text)
        if not isinstance(grant, dict):
            raise ValueError("it is no object")
        slices = [Slice.from_dict(slice_) for slice_ in grant["slices"]]
        source = GrantedSource(grant)
        pool = granted(source.devices(), slices)
        isolation = str(grant["isolation"])
        request = str(grant["request"])
        hub = urlsplit(str(grant["url"])).path.removesuffix("api/v1/") or None
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(
            503,
            "bad_grant",
            f"The grant that this session was started with cannot be used: {error}.",
            "Stop this server and start it again from the hub.",
        ) from error
    entitled = _entitled(slices, request)
    near = _near(source, pool)
    elsewhere = _ON_THE_HUB if hub else _ON_THE_MACHINE
    return Found(source, pool, isolation, near, source.note, entitled, hub, elsewhere)


def _near(source: DeviceSource, pool: Sequence[PoolDevice]) -> dict[tuple[str, str], int]:
    # Asked once and kept: later calls come from the event loop, where no driver may be asked.
    uuids = [member.device.uuid for member in pool]
    return {(a, b): source.nearness(a, b) for a in uuids for b in uuids if a != b}


def ledger_name(environ: Mapping[str, str] = os.environ) -> str:
    """One ledger for each session of a hub, else one for each machine: its pool is the same."""
    user = environ.get("JUPYTERHUB_USER")
    words = (
        ["hub", user, environ.get("JUPYTERHUB_SERVER_NAME", "")]
        if user
        else ["machine", socket.gethostname()]
    )
    plain = [re.sub(r"[^A-Za-z0-9_.-]", "_", word) for word in words if word]
    return "-".join(plain)[:120] + ".sqlite"
