"""systemd-run and systemctl for machines that systemd did not boot.

They do to processes what the real ones do, as far as SystemdSpawner uses it, and keep what they
know in a folder. A unit's properties are checked by the real systemd-analyze where there is one.
Control groups are not made: what a unit may open is told by its properties, not enforced.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMANDS = ("systemd-run", "systemctl")
STATE_VARIABLE = "GPUSLICE_FAKE_SYSTEMD"


def install(folder: Path) -> dict[str, str]:
    """Put both into ``folder``; what has to be in the environment of who uses them."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for command in COMMANDS:
        program = programs / command
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -E {__file__} {command} "$@"\n')
        program.chmod(0o755)
    units = folder / "units"
    units.mkdir()
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", STATE_VARIABLE: str(units)}


class Unit:
    def __init__(self, name: str) -> None:
        self.name = name.removesuffix(".service")
        self.file = Path(os.environ[STATE_VARIABLE]) / f"{self.name}.json"

    def read(self) -> dict[str, Any]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def main_pid(self) -> int:
        pid = int(self.read().get("pid", 0))
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return 0
        return 0 if state == "Z" else pid


def systemd_run(arguments: list[str]) -> int:
    name, folder, properties = "", "/", []
    who: dict[str, int] = {}
    while arguments and arguments[0].startswith("--"):
        option, _, value = arguments.pop(0).partition("=")
        if option in ("--unit", "--working-directory"):
            value = value or arguments.pop(0)
        if option == "--unit":
            name = value
        elif option == "--working-directory":
            folder = value
        elif option == "--property":
            properties.append(value)
        elif option in ("--uid", "--gid"):
            who[option] = int(value)
        else:
            return _fail(f"unrecognized option '{option}'")
    if not arguments or not os.path.isabs(arguments[0]):
        return _fail(f"Executable path is not absolute: {arguments[:1]}")
    unit = Unit(name)
    if unit.main_pid():
        return _fail(f"Unit {name}.service already exists.")
    wrong = _check(properties, arguments)
    if wrong:
        return _fail(wrong)
    environ = {"PATH": os.defpath}
    for each in properties:
        if each.startswith("EnvironmentFile="):
            for line in Path(each.partition("=")[2]).read_text().splitlines():
                key, _, value = line.partition("=")
                environ[key] = "".join(shlex.split(value))
    environ = {key: value for key, value in environ.items() if key != STATE_VARIABLE}
    log = unit.file.with_suffix(".log").open("wb")
    process = subprocess.Popen(
        arguments,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=who.get("--uid") if os.geteuid() == 0 else None,
        group=who.get("--gid") if os.geteuid() == 0 else None,
    )
    unit.file.write_text(json.dumps({"pid": process.pid, "properties": properties}))
    return 0


def _check(properties: list[str], command: list[str]) -> str:
    """What the real systemd finds wrong with a unit that has these properties."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "unit.service"
        told = [each for each in properties if each.startswith("Description=")]
        service = [each for each in properties if each not in told]
        lines = ["[Unit]", *told, "[Service]", f"ExecStart={command[0]}", *service, ""]
        unit.write_text("\n".join(lines))
        found = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
        return "\n".join(line for line in found.stderr.splitlines() if str(unit) in line)


def systemctl(arguments: list[str]) -> int:
    command, options = arguments[0], [each for each in arguments[1:] if each.startswith("--")]
    if command == "--version":
        print("systemd 252 (252.38-1~deb12u1)")
        return 0
    unit = Unit(next(each for each in arguments[1:] if not each.startswith("--")))
    pid = unit.main_pid()
    if command == "is-active":
        print("active" if pid else "inactive")
        return 0 if pid else 3
    if command == "is-failed":
        return 1
    if command == "show":
        (wanted,) = [each.partition("=")[2] for each in options if each.startswith("--property=")]
        if wanted == "MainPID":
            print(pid)
            return 0
        for each in unit.read().get("properties", []):
            name, _, value = each.partition("=")
            if name == wanted:
                print(value)
        return 0
    if command == "stop":
        for number in (signal.SIGTERM, signal.SIGKILL):
            if pid:
                os.killpg(pid, number)
            deadline = time.monotonic() + 10
            while unit.main_pid() and time.monotonic() < deadline:
                time.sleep(0.05)
            if not unit.main_pid():
                break
        unit.file.unlink(missing_ok=True)
        return 0
    return 0 if command == "reset-failed" else _fail(f"Unknown command verb {command}.")


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    commands = {"systemd-run": systemd_run, "systemctl": systemctl}
    sys.exit(commands[sys.argv[1]](sys.argv[2:]))
