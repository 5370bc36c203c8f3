"""The two ways to run the demo: for a person until Ctrl-C, and for a script as a check."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any, NoReturn

from ..devices import open_devices
from .check import Walk
from .hub import SIMULATED, DemoError, DemoHub

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def choose_devices() -> tuple[str, str]:
    """What to simulate (empty: nothing, the machine has GPUs) and the sentence that says so."""
    source = open_devices()
    try:
        found = source.devices()
        note = source.note
    finally:
        source.close()
    if found:
        return "", f"{len(found)} of this machine: {', '.join(d.name for d in found)}"
    return SIMULATED, f"simulated ({SIMULATED}). {note}".strip()


def serve() -> int:
    """Run the demo until Ctrl-C. Returns the exit status."""
    catch_signals()
    simulate, about = choose_devices()
    print("Starting a JupyterHub on this machine …", flush=True)
    hub = DemoHub(simulate)
    try:
        with hub:
            print(_welcome(hub, about), flush=True)
            while hub.running():
                time.sleep(1)
            print(f"The hub ended by itself. Its last words:\n{hub.log_tail()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("\nEverything is stopped and removed.")
        return 0
    except DemoError as error:
        print(error, file=sys.stderr)
        return 1


def check() -> int:
    """Walk the main job by script and report each step. Returns the exit status."""
    catch_signals()
    simulate, about = choose_devices()
    print(f"devices: {about}", flush=True)
    hub = DemoHub(simulate)
    try:
        with hub:
            try:
                Walk(hub, print_step).run()
            except DemoError:
                print(f"\nThe hub's last words:\n{hub.log_tail()}\n", file=sys.stderr)
                raise
    except DemoError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    print("✓ the demo stopped and left nothing behind")
    return 0


def print_step(text: str, done: bool) -> None:
    """One line of the report: a step that is done, or what it says on its way."""
    print(f"✓ {text}" if done else f"    {text}", flush=True)


def catch_signals() -> None:
    """Ctrl-C, `kill` and a closed terminal all end the demo in order, and only once."""
    for signum in ENDING:
        signal.signal(signum, _interrupt)


def _interrupt(signum: int, frame: Any) -> NoReturn:
    # a second Ctrl-C must not cut the stopping short: that has deadlines of its own
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _welcome(hub: DemoHub, about: str) -> str:
    logins = "\n".join(f"               {user.name:<6} {user.password}" for user in hub.users)
    return f"""
  open       {hub.url}
  log in as  {logins.strip()}
  devices    {about}

  Pick a profile and start: example.ipynb opens by itself. All users share these devices;
  admin sees who holds them (Services → gpuslice).
  Everything runs on loopback, as you, in {hub.root}; Ctrl-C stops and removes all of it.
"""
