"""The command line: `jupyter gpuslice status | doctor | broker | demo | usage`, for a hub's file of
profiles `profiles check | profiles convert`, and for a machine's administrator
`cordon | drain | uncordon | backup`.

Exit status: 0 as asked, 1 it could not be done or what was checked is wrong, 2 the command line
itself is wrong. Nothing heavy is imported before the command that needs it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import _administration
from ._servers import CliError, MachineBroker, Server, find_servers, session_server
from ._tables import describe_leases, describe_pool, describe_usage, gib, known, table
from ._version import __version__

DIALECT_NAMES = (
    "nvidia", "dra", "hami", "volcano", "kai", "runai", "koordinator", "gpushare"
)  # fmt: skip
"""Those of `hub.kube.dialects`, which is not imported for a command that needs none of it."""

Question = Callable[[Server], Any]


def _ask_all(servers: Sequence[Server], *questions: Question) -> list[tuple[Server, list[Any]]]:
    """Every server's answers. One that fails is named on stderr; CliError when all of them do."""
    answers = []
    failures = []
    for server in servers:
        try:
            answers.append((server, [question(server) for question in questions]))
        except CliError as error:
            failures.append(str(error))
        except (KeyError, TypeError):
            failures.append(f"{server.api} is not answered by the jupyter_gpuslice extension.")
    if failures and not answers:
        raise CliError("\n".join(failures))
    for failure in failures:
        print(f"note: {failure}", file=sys.stderr)
    return answers


def _pool(server: Server) -> Mapping[str, Any]:
    pool: Mapping[str, Any] = server.get("pool")
    return {**pool, "devices": list(pool["devices"])}


def _leases(server: Server) -> list[Mapping[str, Any]]:
    return list(server.get("leases")["leases"])


NO_SERVER = (
    "No Jupyter server of yours runs on this machine. (For one that runs elsewhere, ask in a "
    "terminal of its JupyterLab.)"
)


# ---- commands ------------------------------------------------------------------------------------


def show_status(args: argparse.Namespace) -> int:
    """Devices, what is free, who holds what."""
    servers = [MachineBroker(str(args.socket))] if args.socket else find_servers()
    if not servers:
        return _status_of_machine(args)
    found = []
    for server, (pool, leases) in _ask_all(servers, _pool, _leases):
        found.append((server, {"server": server.api, "pool": pool, "leases": leases}))
    if args.json:
        print(json.dumps([entry for _, entry in found], indent=2))
        return 0
    for server, entry in found:
        print(f"{server.name}\n")
        print(f"{describe_pool(entry['pool'])}\n\n{describe_leases(entry['leases'])}\n")
    return 0


def _status_of_machine(args: argparse.Namespace) -> int:
    from .devices import open_devices

    source = open_devices()
    try:
        devices = source.devices()
        uses = {use.uuid: use for use in source.sample({})}
        note = source.note
    finally:
        source.close()
    if args.json:
        report = [
            {
                **device.to_dict(),
                "used_mib": uses[device.uuid].used_mib if device.uuid in uses else None,
            }
            for device in devices
        ]
        print(json.dumps({"server": None, "devices": report, "note": note}, indent=2))
        return 0
    print(f"{NO_SERVER} These are the devices of this machine.\n")
    if not devices:
        print(f"None. {note}".strip())
        return 0
    rows = [("DEVICE", "KIND", "MEMORY", "USED", "BUSY", "UUID")]
    for device in devices:
        use = uses.get(device.uuid)
        rows.append(
            (
                device.name,
                device.kind,
                gib(device.memory_mib),
                gib(use.used_mib if use else None),
                known(use.utilization_percent if use else None, " %"),
                device.uuid,
            )
        )
    print(table(rows))
    return 0


def show_usage(args: argparse.Namespace) -> int:
    """GPU time held, busy, idle and waited."""
    servers = find_servers()
    if not servers:
        raise CliError(f"{NO_SERVER} Usage is a server's to tell.")
    answers = _ask_all(servers, lambda server: list(server.get("usage", by=args.by)["usage"]))
    if args.json:
        print(json.dumps([{"server": s.api, "usage": u} for s, [u] in answers], indent=2))
        return 0
    for server, [entries] in answers:
        print(f"{server.name}\n")
        print(describe_usage(entries, args.by) + "\n")
    return 0


def show_doctor(args: argparse.Namespace) -> int:
    """What this machine has, and how strongly it can keep slices apart."""
    from .devices import open_devices
    from .isolation.levels import LEVELS, probe, reasons
    from .isolation.levels import doctor as examine

    source = open_devices()
    try:
        seen = probe(source)
    finally:
        source.close()
    whose = "machine"
    session = session_server()
    if session is not None:
        try:
            seen, whose = seen.of_pool(_pool(session)["devices"]), "session"
        except CliError as error:
            print(f"note: {error}", file=sys.stderr)
    findings = examine(seen)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return 0
    names = ", ".join(device.name for device in seen.devices)
    print(f"Devices of this {whose}: {names or 'none'}.")
    # What several levels lack alike is said once.
    common = reasons(findings)
    for why, remedy in common.items():
        print(f"{why} {remedy}".strip())
    print("\nIsolation levels, from the strongest:\n")
    levels = {level.name: level for level in LEVELS}
    for finding in findings:
        level = levels[finding.level]
        print(f"{'yes' if finding.available else 'no ':3}  {finding.level}: {level.holds}")
        print(f"       {level.lacks}")
        if finding.why in common:
            continue
        print(f"       Here: {finding.why}")
        if finding.remedy:
            print(f"       To get it: {finding.remedy}")
    return 0


def run_demo(args: argparse.Namespace) -> int:
    """A hub with GPU profiles on this machine."""
    try:
        from .demo.main import check, serve
    except ImportError as error:
        raise CliError(
            f"The demo needs more than is installed ({error.name} is missing): "
            "pip install 'jupyter_gpuslice[demo]'"
        ) from error
    return check() if args.check else serve()


def check_profiles(args: argparse.Namespace) -> int:
    """Are these files of profiles valid? All faults of all of them are named."""
    from .hub.profiles import read_profiles

    wrong = 0
    for path in args.file:
        try:
            _, faults = read_profiles(path)
        except OSError as error:
            print(f"{path}: {error.strerror}", file=sys.stderr)
            wrong += 1
            continue
        for fault in faults:
            print(fault, file=sys.stderr)
        wrong += bool(faults)
        if not faults:
            print(f"{path}: valid")
    return 1 if wrong else 0


def convert_profiles(args: argparse.Namespace) -> int:
    """A file of profiles as KubeSpawner's own profile_list."""
    from .hub.kube import profile_list
    from .hub.kube.dialects import DIALECTS
    from .hub.kube.dialects.dialect import SettingError
    from .hub.profiles import ProfileError, load_profiles

    try:
        dialect = DIALECTS[args.dialect].of(_settings(args.settings))
        declared = load_profiles(args.file)
    except ProfileError as error:
        raise CliError(str(error)) from error
    except (SettingError, TypeError) as error:
        raise CliError(f"--settings: {error}") from error
    except OSError as error:
        raise CliError(f"{args.file}: {error.strerror}") from error
    cluster = profile_list.cluster_of(dict(args.gpu))
    made = profile_list.for_everybody(declared.all, dialect, cluster)
    if declared.policies.rules:
        note = "policies: none of them is kept, since KubeSpawner has no limits of its own."
        made = replace(made, notes=(note, *made.notes))
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    if not made.profile_list:
        raise CliError(f"Nothing of {args.file} can be said in a profile_list for everybody.")
    print(profile_list.written(made, args.to, args.file.name), end="")
    return 0


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise CliError(f'--settings {text}: write JSON, {{"sharing": "mps", "replicas": 4}}, say.')
    return settings


def _gpu(text: str) -> tuple[str, int | None]:
    """A product label, and the memory of one in MiB where it is told."""
    name, equals, mib = text.partition("=")
    if not name or (equals and not mib.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: write LABEL=MIB, A100-SXM4-80GB=81920, say")
    return name, int(mib) if mib else None


# ---- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="jupyter gpuslice",
        description="Slices of GPUs for JupyterHub and JupyterLab.",
        epilog="`jupyter gpuslice COMMAND --help` says more about each command.",
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, act: Any, about: str, more: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}. {more}".strip()
        )
        sub.set_defaults(act=act)
        return sub

    sub = command(
        "status",
        show_status,
        "show devices, what is free, and who holds what",
        "Inside a session it asks that session's server; elsewhere every Jupyter server of yours "
        "that runs on this machine, those that a hub started too, and the machine's GPU "
        "broker; with none running it lists the devices of this machine.",
    )
    sub.add_argument(
        "--socket", type=Path, metavar="PATH", help="ask the broker, or a hub's GPU service, there"
    )
    sub.add_argument("--json", action="store_true", help="print JSON, as the REST interface has it")

    sub = command(
        "doctor",
        show_doctor,
        "say what this machine has and how strongly it can keep slices apart",
        "Each isolation level with yes or no, why, and what to do about it; inside a session for "
        "the devices of that session.",
    )
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = command(
        "demo",
        run_demo,
        "run a hub with GPU profiles on this machine, for a look",
        "Everything runs on loopback, in a temporary directory, as you. It uses the machine's "
        "GPUs, and simulated ones where there are none. Ctrl-C ends it and leaves nothing behind.",
    )
    sub.add_argument(
        "--check",
        action="store_true",
        help="walk the main job by script, report each step, and stop; the exit status tells",
    )

    _administration.add_commands(command)

    groups = commands.add_parser(
        "profiles", help="work with a hub's file of profiles", description="A hub's profiles."
    )
    actions = groups.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sub = actions.add_parser(
        "check",
        help="say whether files of profiles are valid, and where they are not",
        description="Check files of profiles before a hub reads them.",
    )
    sub.add_argument("file", nargs="+", type=Path, metavar="FILE", help="a profiles.yaml")
    sub.set_defaults(act=check_profiles)
    sub = actions.add_parser(
        "convert",
        help="write a file of profiles as KubeSpawner's own profile_list",
        description="For hubs that keep KubeSpawner's spawn page, or that of "
        "jupyterhub-fancy-profiles. What it cannot say is left out and named on stderr.",
    )
    sub.add_argument("file", type=Path, metavar="FILE", help="a profiles.yaml")
    sub.add_argument(
        "--dialect",
        required=True,
        choices=(*DIALECT_NAMES,),
        help="the GPU-sharing stack of the cluster",
    )
    sub.add_argument(
        "--settings", default="{}", metavar="JSON", help="settings of the dialect, as JSON"
    )
    sub.add_argument(
        "--gpu",
        action="append",
        default=[],
        type=_gpu,
        metavar="LABEL=MIB",
        help="a GPU of the cluster: the label nvidia.com/gpu.product of its nodes and its memory; "
        "what requests by model need, and fractions where the stack counts memory",
    )
    sub.add_argument(
        "--to",
        choices=("values", "python", "objects"),
        default="values",
        help="values of Zero to JupyterHub (default), Python for jupyterhub_config.py, or the "
        "objects that the list counts on, for kubectl apply",
    )
    sub.set_defaults(act=convert_profiles)

    sub = command(
        "usage",
        show_usage,
        "show GPU time held, busy, idle and waited",
        "In GPU-hours of the last week, of the servers that `status` asks.",
    )
    sub.add_argument(
        "--by", choices=("user", "group", "day"), default="user", help="sum by this (default: user)"
    )
    sub.add_argument("--json", action="store_true", help="print JSON, as the REST interface has it")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        status = int(args.act(args))
        # now, not at the interpreter's end, where a reader that left could not be told apart
        sys.stdout.flush()
        return status
    except CliError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader of our output left (… | head): nothing is wrong, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
