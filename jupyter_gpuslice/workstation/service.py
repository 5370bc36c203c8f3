"""``jupyter gpuslice broker``: the machine's pool at a Unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tornado.web import Application

from ..broker.ledger import Ledger
from ..devices import open_devices
from ..hub.choice import Profiles
from ..hub.handlers import MOST_BODY, routes
from ..hub.node import Machine
from ..hub.profiles import ProfileError, load_profiles
from ..hub.upkeep import ServiceError, greeting, locked, look_after, more_files, patiently
from ..server.address import SOCKET
from .node import Workstation, anything
from .peer import PeerDoor, PeerServer, listen

log = logging.getLogger("jupyter_gpuslice.broker")

LEDGER = "/var/lib/jupyter-gpuslice/ledger.sqlite"


@dataclass(frozen=True)
class Settings:
    """What the command line says, with what root need not say."""

    socket: Path
    ledger: Path
    profiles: Path | None = None
    simulate: str = ""
    reserve_mib: int | None = None

    @classmethod
    def of(
        cls,
        socket: Path | None,
        ledger: Path | None,
        profiles: Path | None,
        simulate: str,
        reserve_mib: int | None,
    ) -> Settings:
        """:class:`ServiceError` where something has to be said."""
        if os.geteuid() != 0 and (socket is None or ledger is None):
            raise ServiceError(
                "The broker of a machine runs as root, as a service of the system. As another "
                "account it can free only what that account's own processes hold; for that, name "
                "--socket and --ledger."
            )
        if reserve_mib is not None and reserve_mib < 0:
            raise ServiceError("--reserve-mib is a number of MiB, 0 or more.")
        at = (socket or Path(SOCKET)).absolute()
        return cls(at, (ledger or Path(LEDGER)).absolute(), profiles, simulate, reserve_mib)


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM. :class:`ServiceError` says why it cannot."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("tornado.access").setLevel(logging.WARNING)
    profiles = _profiles(settings.profiles)
    try:
        asyncio.run(serve(settings, profiles))
    except ValueError as error:
        raise ServiceError(str(error)) from error
    return 0


def _profiles(path: Path | None) -> Profiles | None:
    if path is None:
        return None
    try:
        declared = load_profiles(path)
    except OSError as error:
        raise ServiceError(f"{path}: {error.strerror}.") from error
    except ProfileError as error:
        raise ServiceError(str(error)) from error
    terms = (rule.terms for rule in declared.policies.rules)
    if any(profile.idle for profile in declared.all) or any(said.get("idle") for said in terms):
        log.warning(
            "%s: nobody stops an idle server that a user has started, so `idle` is not kept here. "
            "c.ServerApp.shutdown_no_activity_timeout in /etc/jupyter is its like.",
            path,
        )
    return declared


async def serve(settings: Settings, profiles: Profiles | None) -> None:
    """Own the machine's devices, and answer at the socket."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    more_files()
    # The ledger first: its lock keeps a second broker from taking the first one's socket.
    ledger = await patiently(lambda: Ledger.open(settings.ledger), locked, done)
    source = await asyncio.to_thread(open_devices, settings.simulate, settings.reserve_mib)
    machine = await asyncio.to_thread(Machine.look, source)
    if machine.devices and all(d.reserve_mib >= d.memory_mib for d in machine.devices):
        raise ServiceError("--reserve-mib keeps all memory of every GPU, so none could be granted.")
    # What a hub asked for before is a hub's to ask about: see `Node.forget`.
    node = Workstation.of(machine, source, ledger, "", hub_began=0.0)
    node.profiles = profiles or anything(len(machine.devices))
    await node.start()
    server = PeerServer(Application(routes("/", node, PeerDoor)), max_body_size=MOST_BODY)
    server.add_socket(listen(settings.socket, mode=0o666))
    looking = asyncio.create_task(look_after(node))
    log.info("%s", greeting(node))
    log.info("Listening at %s.", settings.socket)
    began = time.monotonic()
    await done.wait()
    log.info("Stopped after %.0f s. Sessions keep what they hold.", time.monotonic() - began)
    looking.cancel()
    # The socket stays, so that servers see that there is a broker which does not answer now.
    server.stop()
    await asyncio.wait_for(server.close_all_connections(), 5)
    await node.stop()
