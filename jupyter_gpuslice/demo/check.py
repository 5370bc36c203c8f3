"""The main job, walked from the login page to the last free MiB, checked at each step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import nbformat
import requests

from .hub import DemoError, DemoHub
from .visitor import Form, Kernel, Visitor, forms_of

SPAWN_SECONDS = 90
KERNEL_SECONDS = 60
TRAIN_SECONDS = 240
RELEASE_SECONDS = 15
WORKERS = 2
REQUEST = "0.5"

# What the check asks of every rank after the training: exact, so a hash and not a rounded number.
DIGEST = """%%gpu run
import hashlib
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().cpu().numpy().tobytes())
print("weights-of-rank", rank, digest.hexdigest())
"""

Report = Callable[[str, bool], None]


def cell_of_example(start: str) -> str:
    """The source of the example notebook's first cell that starts with `start`."""
    text = files(__package__).joinpath("example.ipynb").read_text(encoding="utf-8")
    for cell in nbformat.reads(text, as_version=4).cells:
        if cell.cell_type == "code" and cell.source.startswith(start):
            return str(cell.source)
    raise DemoError(f"The example notebook has no cell that starts with {start!r}.")


class Walk:
    """One walk through a running demo as its first user. DemoError at the first thing amiss.

    report(text, done) is called with each finished step (done) and with what is said on the way.
    """

    def __init__(self, hub: DemoHub, report: Report) -> None:
        self._hub = hub
        self._report = report
        self._user = hub.users[0]
        self._visitor = Visitor(hub.url, self._user.name)

    def run(self) -> None:
        try:
            self._log_in()
            self._start_server()
            kernel = self._visitor.kernel()
            try:
                self._look(kernel)
                self._train(kernel)
                self._compare_weights(kernel)
                self._read_allocation()
                self._clean_run(kernel, cell_of_example("%gpu stop"), KERNEL_SECONDS)
            finally:
                kernel.close()
            self._stop_server()
            self._pool_is_free()
        finally:
            self._visitor.close()

    # ---- the hub -----------------------------------------------------------------------------

    def _log_in(self) -> None:
        self._visitor.log_in(self._user.password)
        # the service has a login of its own, through the hub's, which its page goes through
        self._visitor.get("services/gpuslice/")
        self._done(f"logged in as {self._user.name} at {self._hub.url}")

    def _start_server(self) -> None:
        page, form = spawn_form(self._visitor, REQUEST)
        self._done(f"spawn page: chose {REQUEST} of a GPU")
        began = time.monotonic()
        for event in start_server(self._visitor, page, form):
            self._say(f"{event.get('progress', 0):3} % {event.get('message', '')}")
        self._done(f"server started in {time.monotonic() - began:.1f} s, JupyterLab answers")

    def _stop_server(self) -> None:
        path = f"hub/api/users/{self._user.name}"
        self._visitor.call("DELETE", f"{path}/server")
        self._until(
            lambda: not self._visitor.json(path)["servers"], SPAWN_SECONDS, "the server to stop"
        )
        self._done("server stopped")

    def _pool_is_free(self) -> None:
        began = time.monotonic()
        self._until(self._all_free, RELEASE_SECONDS, "all devices to be free in the hub's pool")
        self._done(f"release: all devices free again, {time.monotonic() - began:.1f} s after")

    def _all_free(self) -> bool:
        devices = self._service("pool")["devices"]
        if not devices:
            raise DemoError("The hub's pool has no devices.")
        return all(device["free_percent"] == 100 and not device["leases"] for device in devices)

    def _service(self, call: str) -> Any:
        """A call to the hub's GPU service, as its own page in the browser makes it."""
        return self._visitor.json(f"services/gpuslice/api/v1/{call}")

    # ---- the session -------------------------------------------------------------------------

    def _look(self, kernel: Kernel) -> None:
        text = self._clean_run(kernel, cell_of_example("%gpu"), KERNEL_SECONDS)
        if not text.strip():
            raise DemoError("%gpu said nothing.")
        for line in text.strip().splitlines():
            self._say(line)
        self._done("%gpu shows the kernel's slice")

    def _train(self, kernel: Kernel) -> None:
        text = self._clean_run(kernel, cell_of_example("%%gpu train"), TRAIN_SECONDS)
        for line in text.strip().splitlines():
            self._say(line)
        spoken = text.count("epoch  1")
        if spoken != WORKERS:
            raise DemoError(f"{WORKERS} ranks were to report their first epoch, {spoken} did.")
        self._done(f"per-rank output: {WORKERS} ranks trained")
        losses = [float(number) for number in re.findall(r"loss ([0-9.]+)", text)]
        if not losses[-1] < losses[0] / 2:
            raise DemoError(f"The loss did not fall: from {losses[0]} to {losses[-1]}.")
        self._done(f"loss: from {losses[0]:.4f} to {losses[-1]:.4f}")

    def _compare_weights(self, kernel: Kernel) -> None:
        text = self._clean_run(kernel, DIGEST, KERNEL_SECONDS)
        digests = dict(re.findall(r"weights-of-rank (\d+) ([0-9a-f]{64})", text))
        if len(digests) != WORKERS or len(set(digests.values())) != 1:
            raise DemoError(f"The ranks do not hold equal weights: {digests or text!r}")
        self._done(f"all ranks hold equal weights ({next(iter(digests.values()))[:12]}…)")

    def _read_allocation(self) -> None:
        api = f"user/{self._user.name}/gpuslice/api/v1"
        leases = self._visitor.json(f"{api}/leases")["leases"]
        groups = [lease for lease in leases if lease["holder"]["kind"] == "group"]
        if len(groups) != 1 or len(groups[0]["slices"]) != WORKERS:
            raise DemoError(f"The group's lease is not one of {WORKERS} slices: {groups}")
        memory = [part["memory_mib"] for part in groups[0]["slices"]]
        session = self._session_lease()
        if sum(memory) > sum(part["memory_mib"] for part in session["slices"]):
            raise DemoError(f"The workers hold {memory} MiB, more than the session has.")
        self._done(
            f"allocation: the session holds {session['request']}, "
            f"its {WORKERS} workers {' and '.join(f'{mib} MiB' for mib in memory)}"
        )

    def _session_lease(self) -> Any:
        mine = [
            lease
            for lease in self._service("leases")["leases"]
            if lease["holder"]["user"] == self._user.name and lease["slices"]
        ]
        if len(mine) != 1:
            raise DemoError(f"The hub's service knows {len(mine)} leases of this session, not 1.")
        return mine[0]

    # ---- helpers -----------------------------------------------------------------------------

    def _clean_run(self, kernel: Kernel, code: str, seconds: float) -> str:
        result = kernel.run(code, seconds)
        if result.error:
            first = code.splitlines()[0]
            raise DemoError(f"The cell {first!r} failed: {result.error}\n{result.text}")
        return result.text

    def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        self._hub.wait_until(done, seconds, what)

    def _done(self, text: str) -> None:
        self._report(text, True)

    def _say(self, text: str) -> None:
        self._report(text, False)


def spawn_form(visitor: Visitor, request: str) -> tuple[requests.Response, Form]:
    """The spawn page and its form, with the choice made that stands for `request`."""
    page = visitor.get("hub/spawn")
    form = next((f for f in forms_of(page.text) if "choice" in f.choices), None)
    if form is None:
        raise DemoError("The spawn page offers no profiles.")
    choose(form, request)
    return page, form


def start_server(visitor: Visitor, page: requests.Response, form: Form) -> Iterator[dict[str, Any]]:
    """Send the form; the events of the start, until JupyterLab answers."""
    visitor.submit(page, form)
    yield from visitor.progress(SPAWN_SECONDS)
    visitor.get(f"user/{visitor.name}/lab")


def choose(form: Form, request: str) -> None:
    """Pick the first choice of a spawn form that stands for `request`, in whatever profile.

    DemoError if it is not to be had.
    """
    for value in form.choices.get("choice", []):
        if value.partition("/")[2] == request:
            form.values["choice"] = value
            return
    raise DemoError(f"The spawn page offers no {request} now, only {form.choices}.")
