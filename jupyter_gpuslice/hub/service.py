"""The hub's service: the broker of this machine's GPUs. Run by JupyterHub, never by hand.

``python -m jupyter_gpuslice.hub.service``; `jupyter_gpuslice.hub.configure` sets it up.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from ..broker.ledger import Ledger, LedgerError
from ..devices import open_devices
from ..devices.process import Process
from ..server.address import broker_socket
from ..server.watch import ProcessWatch
from ..workstation.peer import PeerDoor, listen
from .door import hub_routes
from .forward import forward_routes
from .handlers import MOST_BODY, NoLedger, routes
from .link import SECRET_VARIABLE, SETTINGS_VARIABLE
from .node import Machine, Node
from .upkeep import ServiceError, greeting, locked, look_after, more_files, patiently

log = logging.getLogger("jupyter_gpuslice.hub")

AGAIN_SECONDS = 5.0
TOKEN_SECONDS = 30
"""How long the hub's word on a token is remembered."""


@dataclass(frozen=True)
class Settings:
    """What `configure` tells the service by its environment."""

    secret: str
    hub: Process
    ledger: str
    simulate: str = ""
    reserve_mib: int | None = None
    broker: str = ""
    """The Unix socket of the machine's broker, where that has the pool."""
    kube: Mapping[str, Any] | None = None
    """Where pods are spawned: `KubeSettings`. The cluster has the pool then."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        try:
            given = json.loads(environ[SETTINGS_VARIABLE])
            secret = environ[SECRET_VARIABLE]
            hub = Process.from_dict(given.pop("hub"))
            return cls(secret=secret, hub=hub, **given)
        except (KeyError, TypeError, ValueError) as error:
            raise ServiceError(
                "This service is started by JupyterHub: write "
                "`from jupyter_gpuslice.hub import configure` and "
                "`configure(c, profiles=...)` in jupyterhub_config.py."
            ) from error


async def serve(settings: Settings, environ: Mapping[str, str]) -> None:
    """Serve until the hub says stop or is gone."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    more_files()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)

    def hub_gone(process: Process) -> None:
        # A hub that is killed leaves its services running, and the next hub starts its own.
        log.warning("The hub is gone, and so is its GPU service.")
        done.set()

    watch = ProcessWatch(hub_gone)
    watch.only([settings.hub])
    address = environ["JUPYTERHUB_SERVICE_URL"]
    sockets = await patiently(lambda: _bind(address), _busy, done)
    if settings.broker or settings.kube is not None:
        # Others have the pool.
        other = _serve_broker if settings.broker else _serve_cluster
        await other(settings, sockets, environ, done)
        watch.close()
        return
    check_alone(settings, broker_socket(""))
    ledger = await _ledger(settings.ledger, sockets, done)
    if ledger is None:
        return
    source = await asyncio.to_thread(open_devices, settings.simulate, settings.reserve_mib)
    prefix = environ["JUPYTERHUB_SERVICE_PREFIX"]
    api = f"{address.rstrip('/')}{prefix}api/v1/"
    machine = await asyncio.to_thread(Machine.look, source)
    node = Node.of(machine, source, ledger, api, hub_began=_began(settings.hub))
    await node.start()
    HubOAuth.instance(cache_max_age=TOKEN_SECONDS)
    app = Application(
        hub_routes(prefix, node, settings.secret),  # type: ignore[arg-type]
        cookie_secret=os.urandom(32),
    )
    server = HTTPServer(app, max_body_size=MOST_BODY)
    server.add_sockets(sockets)
    operators = HTTPServer(Application(routes("/", node, PeerDoor)), max_body_size=MOST_BODY)
    try:
        operators.add_socket(listen(Path(settings.ledger).with_suffix(".sock"), mode=0o600))
    except ServiceError as error:
        log.warning("Commands such as `jupyter gpuslice drain` do not work here: %s", error)
    looking = asyncio.create_task(look_after(node))
    log.info("%s", greeting(node))
    await done.wait()
    looking.cancel()
    for each in (server, operators):
        each.stop()
        await asyncio.wait_for(each.close_all_connections(), 5)
    await node.stop()
    watch.close()


async def _serve_broker(
    settings: Settings,
    sockets: list[socket.socket],
    environ: Mapping[str, str],
    done: asyncio.Event,
) -> None:
    """Serve what the machine's broker has, until the hub says stop or is gone."""
    prefix = environ["JUPYTERHUB_SERVICE_PREFIX"]
    url = f"{environ['JUPYTERHUB_SERVICE_URL'].rstrip('/')}{prefix}api/v1/"
    HubOAuth.instance(cache_max_age=TOKEN_SECONDS)
    more_files()
    server = HTTPServer(
        Application(
            forward_routes(prefix, settings.broker, settings.secret, url),  # type: ignore[arg-type]
            cookie_secret=os.urandom(32),
        ),
        max_body_size=MOST_BODY,
    )
    server.add_sockets(sockets)
    log.info("The GPUs are those of the broker at %s.", settings.broker)
    await done.wait()
    server.stop()
    await asyncio.wait_for(server.close_all_connections(), 5)


def check_alone(settings: Settings, broker: str) -> None:
    """:class:`ServiceError` where ``broker`` grants the devices that this service would grant.

    Two brokers know nothing of each other: they would grant the same device twice.
    """
    if broker and not settings.simulate:
        raise ServiceError(
            f"The GPUs of this machine are shared by the broker at {broker}. Let the hub take "
            f"them from it: configure(c, ..., broker={broker!r}); or stop that broker and remove "
            "its socket."
        )


async def _serve_cluster(
    settings: Settings,
    sockets: list[socket.socket],
    environ: Mapping[str, str],
    done: asyncio.Event,
) -> None:
    """Serve what a cluster granted, until the hub says stop or is gone."""
    from .kube.service import ClusterNode, KubeSettings  # needs the extra `kube`

    node = ClusterNode(KubeSettings(**(settings.kube or {})))
    await node.start()
    HubOAuth.instance(cache_max_age=TOKEN_SECONDS)
    routes_ = hub_routes(environ["JUPYTERHUB_SERVICE_PREFIX"], node, settings.secret)
    app = Application(routes_, cookie_secret=os.urandom(32))  # type: ignore[arg-type]
    server = HTTPServer(app, max_body_size=MOST_BODY)
    server.add_sockets(sockets)
    await done.wait()
    server.stop()
    await asyncio.wait_for(server.close_all_connections(), 5)
    await node.stop()


async def _ledger(path: str, sockets: list[socket.socket], done: asyncio.Event) -> Ledger | None:
    """The ledger; None if the service is stopped before there is one.

    JupyterHub ends when a service of its own does, and then nobody could log in, not even for a
    server without a GPU. While the ledger cannot be used every call is therefore answered, with a
    refusal in words, and the ledger is tried again.
    """
    try:
        return await patiently(lambda: Ledger.open(path), locked, done)
    except ServiceError as error:
        log.critical("No GPU is granted: %s", error)
    stand_in = HTTPServer(Application([(r".*", NoLedger)]), max_body_size=MOST_BODY)
    stand_in.add_sockets([each.dup() for each in sockets])
    try:
        while not done.is_set():
            try:
                ledger = Ledger.open(path)
            except (OSError, LedgerError):
                await asyncio.wait([asyncio.ensure_future(done.wait())], timeout=AGAIN_SECONDS)
            else:
                log.warning("The ledger can be used now.")
                return ledger
    finally:
        stand_in.stop()
        await stand_in.close_all_connections()
    return None


def _began(process: Process) -> float:
    """When a process started, in seconds since the epoch; 0 is unknown."""
    try:
        return psutil.Process(process.pid).create_time()
    except psutil.Error:
        return 0.0


def _bind(address: str) -> list[socket.socket]:
    parts = urlsplit(address)
    return bind_sockets(parts.port or 80, parts.hostname)


def _busy(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            "Another program listens on the port of the GPU service. "
            "Give it another one: configure(c, ..., port=8079)."
        )
    return ""


def main() -> int:
    logging.basicConfig(
        level=logging.INFO, format="[%(levelname).1s %(asctime)s gpuslice] %(message)s"
    )
    logging.getLogger("tornado.access").setLevel(logging.WARNING)
    try:
        settings = Settings.from_environ(os.environ)
        # Children of the service (there are none now) have no use for these.
        for name in (SECRET_VARIABLE, SETTINGS_VARIABLE):
            os.environ.pop(name, None)
        asyncio.run(serve(settings, os.environ))
    except ServiceError as error:
        log.critical("%s", error)
        return 1
    except ValueError as error:
        log.critical("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
