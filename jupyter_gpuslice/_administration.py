"""What a machine's administrator does: run its broker, take devices out of service, back up."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._servers import CliError, MachineBroker
from ._tables import describe_pool
from .server.address import SOCKET

LEDGER = "/var/lib/jupyter-gpuslice/ledger.sqlite"


def run_broker(args: argparse.Namespace) -> int:
    """Share this machine's GPUs among its accounts."""
    from .hub.upkeep import ServiceError
    from .workstation.service import Settings, run

    try:
        return run(
            Settings.of(
                socket=args.socket,
                ledger=args.ledger,
                profiles=args.profiles,
                simulate=args.simulate,
                reserve_mib=args.reserve_mib,
            )
        )
    except ServiceError as error:
        raise CliError(str(error)) from error


def cordon(args: argparse.Namespace) -> int:
    """Grant nothing new on some devices, or on all."""
    return _operate(args, {"cordoned": True, "why": args.why})


def uncordon(args: argparse.Namespace) -> int:
    """Put devices back into service."""
    return _operate(args, {"cordoned": False})


def drain(args: argparse.Namespace) -> int:
    """Cordon, and end what is held there after a while."""
    return _operate(args, {"cordoned": True, "why": args.why, "within": args.within})


def _operate(args: argparse.Namespace, body: dict[str, Any]) -> int:
    broker = MachineBroker(args.socket)
    pool = broker.get("pool")
    devices = [_device_of(pool["devices"], text) for text in args.device]
    if devices and args.all:
        raise CliError("Which devices? Name some of them or say --all, not both.")
    if not devices and not args.all:
        raise CliError("Which devices? Name them by UUID or number, or say --all.")
    answer = broker.patch("pool", {**body, "devices": devices or None})
    print(describe_pool(answer))
    return 0


def _device_of(devices: Sequence[Mapping[str, Any]], text: str) -> str:
    """The UUID of the device that a person means: by its beginning, or by its line from 0."""
    if text.isdecimal() and int(text) < len(devices):
        return str(devices[int(text)]["uuid"])
    # Nothing, such as a shell's variable that is not set, is the beginning of everything.
    found = [str(d["uuid"]) for d in devices if text and d["uuid"].startswith(text)]
    if len(found) != 1:
        there = ", ".join(f"{n} ({device['uuid']})" for n, device in enumerate(devices)) or "none"
        which = "No device is" if not found else "More than one device is"
        raise CliError(f"{which} called {text!r}. There are: {there}.")
    return found[0]


def back_up(args: argparse.Namespace) -> int:
    """Copy a ledger as it is now."""
    from .broker.ledger import LedgerError, backup

    try:
        backup(args.ledger, args.file)
    except LedgerError as error:
        raise CliError(f"{error.message} {error.hint}".strip()) from error
    print(f"{args.file}: a copy of {args.ledger}")
    return 0


def add_commands(command: Any) -> None:
    """Add the commands; ``command(name, act, about, more)`` makes the parser of one."""
    sub = command(
        "broker",
        run_broker,
        "share this machine's GPUs among its accounts, without a hub",
        "It listens on a Unix socket and knows its callers by their accounts. Every JupyterLab of "
        "this machine asks it for its slice. Run it as root, as a service of the system: the "
        "documentation has the unit file.",
    )
    sub.add_argument("--socket", type=Path, metavar="PATH", help=f"default for root: {SOCKET}")
    sub.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help=f"the record of who holds what, on a local disk; default for root: {LEDGER}",
    )
    sub.add_argument(
        "--profiles",
        type=Path,
        metavar="FILE",
        help="who may have what: the same file as a hub's (default: everybody may have all)",
    )
    sub.add_argument(
        "--simulate", default="", metavar="DEVICES", help="where there is no GPU: a100-80gb:2, say"
    )
    sub.add_argument(
        "--reserve-mib", type=int, metavar="MIB", help="what is never granted of each device"
    )

    def operation(name: str, act: Any, about: str, more: str) -> argparse.ArgumentParser:
        sub = command(name, act, about, more)
        sub.add_argument("device", nargs="*", help="a UUID, its beginning, or a number from 0")
        sub.add_argument("--all", action="store_true", help="all devices of the machine")
        sub.add_argument(
            "--socket", type=Path, default=SOCKET, metavar="PATH", help=f"default: {SOCKET}"
        )
        return sub

    why: dict[str, Any] = {
        "default": "",
        "metavar": "TEXT",
        "help": "shown to everybody, such as 'new driver'",
    }
    sub = operation(
        "cordon",
        cordon,
        "grant nothing new on devices, for a machine's administrator",
        "What is held there stays. It lasts until `uncordon`, also through restarts.",
    )
    sub.add_argument("--why", **why)
    sub = operation(
        "drain",
        drain,
        "cordon devices, and end what is held there after a while",
        "The holders are told at once when their time ends.",
    )
    sub.add_argument("--within", default="15m", metavar="TIME", help="90s, 30m, 2h (default: 15m)")
    sub.add_argument("--why", **why)
    operation("uncordon", uncordon, "put devices back into service", "")
    sub = command(
        "backup",
        back_up,
        "copy the record of who holds what, also while a broker uses it",
        "To go back to a copy, stop the broker or hub, put it in the ledger's place, and start.",
    )
    sub.add_argument("file", type=Path, metavar="FILE", help="the copy: a file not there yet")
    sub.add_argument(
        "--ledger", type=Path, default=LEDGER, metavar="FILE", help=f"default: {LEDGER}"
    )
