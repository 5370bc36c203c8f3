"""The peer groups of this kernel's notebook: made on first use, warm after."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import texts
from .client import Client, Stream
from .errors import CellInterrupted, GpuSliceError, PeerError
from .output import Renderer
from .status import own_leases

DEFAULT = "train"
"""The group's name where none is given."""
CELL = "cell"
"""The name of the worker that runs ``%%gpu 0.5`` cells."""
IDLE_S = 0.1
END_S = 0.5
INTERRUPT_S = 30.0
"""How long an interrupted cell may take to end on all ranks: stuck ones are restarted meanwhile."""

GONE = ("not_found", "http_404", "http_410", "gone")
"""Reasons that tell that a group has ended."""


class Groups:
    """The groups of one kernel, by name. ``client`` is asked for the client at each use."""

    def __init__(self, shell: Any, client: Callable[[], Client], kernel_id: str) -> None:
        self._shell = shell
        self._client = client
        self._kernel_id = kernel_id
        self._known: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, str] = {}

    def all(self) -> list[dict[str, Any]]:
        """The groups that this kernel may see and that live, by name; asks the server."""
        groups = [
            group
            for group in self._client().listed("groups")
            if group.get("state") != "stopped" and group.get("kernel") in (self._kernel_id, None)
        ]
        self._known = {str(group.get("name")): group for group in groups}
        return sorted(groups, key=lambda group: str(group.get("name")))

    def names(self) -> list[str]:
        """The names known from the last look: no call to the server."""
        return sorted(self._known)

    def get(self, name: str) -> dict[str, Any] | None:
        """A group by name, from what is known, else asked for; ``None`` if there is none."""
        if name not in self._known:
            self.all()
        return self._known.get(name)

    def pick(self, name: str | None) -> dict[str, Any]:
        """The group that is meant: the named one, else the default, else the only one."""
        if name is not None:
            group = self.get(name)
            if group is not None:
                return group
            raise _no_group(f"There is no group {name!r}.", self.names())
        group = self.get(DEFAULT)
        if group is not None:
            return group
        groups = self.all()
        if len(groups) == 1:
            return groups[0]
        if not groups:
            raise _no_group("This notebook has no group now.", [])
        raise _no_group("There are several groups: which one is meant?", self.names())

    def ensure(
        self,
        name: str,
        workers: int,
        request: str,
        *,
        named: bool,
        backend: str = "auto",
        lend: Callable[[], bool] = lambda: False,
        wait: bool = False,
        fresh: bool = False,
        hold: str = "group",
    ) -> tuple[dict[str, Any], bool]:
        """The group of that name and shape, and whether it was made just now.

        ``named``: the request was written out, so that a group of another request is not meant.
        One that has another shape keeps what it holds, and is an error unless ``fresh``.
        """
        group = self.get(name)
        if group is not None and not fresh:
            self._check(group, workers, request if named else None, backend)
            return group, False
        if group is not None:
            print(f"Stopping group {name!r}: its variables go with it.", flush=True)
            self.stop(group)
        body = {
            "name": name,
            "workers": workers,
            "request": request,
            "backend": backend,
            "kernel": self._kernel_id,
            "lend": lend(),
            "wait": wait,
            "cwd": os.getcwd(),
            "hold": hold,
        }
        many = f"{workers} workers" if workers > 1 else "a worker"
        print(f"Asking for {many} with {request}{' each' if workers > 1 else ''}…", flush=True)
        # Starting takes as long as the slowest rank; its own deadline is the server's.
        try:
            group = self._client().post("groups", body, timeout=None)
        except GpuSliceError as error:
            if "would_fit" in error.details:
                error.hint = " ".join(filter(None, [error.hint, *self._advice(error, wait)]))
            raise
        self._known[name] = group
        self._asked[name] = request
        return group, True

    def _advice(self, error: GpuSliceError, wait: bool) -> list[str]:
        """What this kernel can do about a refusal of slices."""
        advice = []
        for lease in own_leases(self._client().listed("leases"), self._kernel_id):
            if lease.get("slices") and lease.get("request") != "auto":
                advice.append(texts.OWN_LEASE.format(request=lease.get("request")))
        if error.passes and not wait:
            advice.append(texts.ADD_WAIT)
        return advice

    def _check(
        self, group: dict[str, Any], workers: int, request: str | None, backend: str
    ) -> None:
        name, has = group["name"], group.get("workers")
        differs = []
        if has != workers:
            differs.append(f"{has} worker{'s' if has != 1 else ''}, not {workers}")
        if request is not None and not self._same(group, request):
            differs.append(f"slices of {group.get('request')}, not {request}")
        if backend != "auto" and group.get("backend") not in (backend, "auto", None):
            differs.append(f"the backend {group.get('backend')}, not {backend}")
        if differs:
            beside = "" if name == CELL else ", or --name for another group beside it"
            raise GpuSliceError(
                f"The group {name!r} has {' and '.join(differs)}.",
                "other_shape",
                f"Add --fresh to make it anew (its variables are lost){beside}; "
                f"`%gpu stop --name {name}` ends it.",
            )

    def _same(self, group: dict[str, Any], request: str) -> bool:
        has = str(group.get("request"))
        return request == self._asked.get(group["name"]) or _normal(request) == _normal(has)

    def execute(
        self,
        group: dict[str, Any],
        code: str,
        *,
        ranks: list[int] | None = None,
        train: bool = False,
        show: set[int] | None = None,
        lend: bool = False,
    ) -> Renderer:
        """Run code on the ranks and render what they say until all are done.

        ``lend``: this kernel's own ``auto`` slice may serve the cell.
        :class:`PeerError` if a rank failed, ``CellInterrupted`` after an interrupt.
        """
        body: dict[str, Any] = {"code": code, "train": train, "lend": lend}
        return self._follow(group, body, ranks, show)

    def push(self, group: dict[str, Any], pickled: str) -> None:
        """Put the variables of a base64 pickle of a dict on every rank."""
        self._move(group, {"push": pickled})

    def pull(
        self, group: dict[str, Any], names: list[str], ranks: list[int] | None
    ) -> dict[str, dict[int, str]]:
        """Variables by name and rank, as base64 pickles."""
        return self._move(group, {"pull": names}, ranks).values

    def _move(
        self, group: dict[str, Any], body: dict[str, Any], ranks: list[int] | None = None
    ) -> Renderer:
        try:
            return self._follow(group, body, ranks)
        except PeerError as error:
            # No code of the user's ran: the words say it all.
            first = error.errors[0]
            raise GpuSliceError(
                f"Rank {first['rank']}: {first.get('evalue')}", "not_moved"
            ) from None

    def _follow(
        self,
        group: dict[str, Any],
        body: dict[str, Any],
        ranks: list[int] | None = None,
        show: set[int] | None = None,
    ) -> Renderer:
        if ranks is not None:
            body["ranks"] = ranks
        labelled = int(group.get("workers") or 1) > 1
        renderer = Renderer(self._shell, label=labelled, show=show, prefix=str(group["id"]))
        try:
            stream = self._client().stream("POST", f"groups/{group['id']}/execute", body)
        except GpuSliceError as error:
            if error.reason in GONE:
                self._known.pop(str(group.get("name")), None)
            raise
        interrupted = self._read(group, stream, renderer)
        stopped = [e for e in renderer.errors if e.get("ename") == "KeyboardInterrupt"]
        failed = [e for e in renderer.errors if e.get("ename") != "KeyboardInterrupt"]
        if interrupted or (stopped and not failed):
            for one in failed:
                print(f"[{one['rank']}] {one.get('ename')}: {one.get('evalue')}")
            where = stopped[0].get("traceback") or () if stopped else ()
            raise CellInterrupted(interrupted or _STOPPED, where[:-1])
        if failed and str(failed[0].get("ename")).islower():
            # A reason of the server's, not the class of an exception.
            raise GpuSliceError(str(failed[0].get("evalue")), str(failed[0].get("ename")))
        if failed:
            raise PeerError(failed, labelled=labelled)
        if renderer.done is None:
            raise GpuSliceError(
                f"The group {group['name']!r} stopped answering in the middle of the cell.",
                "broken_off",
                "`%gpu peers` shows what is left of it.",
            )
        if renderer.done.get("ok") is False:
            raise GpuSliceError(_unwell(renderer.done), "rank_failed", "See `%gpu peers`.")
        return renderer

    def _read(self, group: dict[str, Any], stream: Stream, renderer: Renderer) -> str:
        """Render the stream to its end. Not empty: it was interrupted, and how that went."""
        deadline = None
        try:
            while True:
                try:
                    if not self._step(stream, renderer):
                        renderer.finish()
                        return "" if deadline is None else _STOPPED
                    if deadline is not None and time.monotonic() > deadline:
                        return _GAVE_UP
                except KeyboardInterrupt:
                    if deadline is not None:
                        return _GAVE_UP
                    deadline = time.monotonic() + INTERRUPT_S
                    # The call returns when the cell has ended: the stream is read meanwhile.
                    threading.Thread(
                        target=self._interrupt, args=(group, renderer), daemon=True
                    ).start()
        except GpuSliceError as error:
            renderer.finish()
            if deadline is None:
                raise
            return str(error)
        finally:
            stream.close()

    @staticmethod
    def _step(stream: Stream, renderer: Renderer) -> bool:
        """One message; false at the end."""
        try:
            message = stream.next(IDLE_S)
        except TimeoutError:
            renderer.idle()
            return True
        if message is None:
            return False
        if isinstance(message, dict):
            renderer.message(message)
        if renderer.done is None:
            return True
        with suppress(TimeoutError):
            # Read to the very end, which is there at once: the connection serves the next cell.
            while stream.next(END_S) is not None:
                pass
        return False

    def _interrupt(self, group: dict[str, Any], renderer: Renderer) -> None:
        try:
            self._client().post(f"groups/{group['id']}/interrupt", timeout=INTERRUPT_S)
        except GpuSliceError as error:
            if renderer.done is None:
                print(f"The ranks could not be interrupted: {error}", flush=True)

    def reset(self, group: dict[str, Any]) -> None:
        """Re-make the process group; the ranks keep their Python state."""
        self._client().post(f"groups/{group['id']}/reset", timeout=None)

    def stop(self, group: dict[str, Any]) -> None:
        """End a group: its ranks, their variables, its lease."""
        self._known.pop(str(group.get("name")), None)
        try:
            self._client().delete(f"groups/{group['id']}")
        except GpuSliceError as error:
            if error.reason not in GONE:
                raise


_STOPPED = "the cell was interrupted on all its ranks."
_GAVE_UP = (
    "some ranks have not ended yet; they are left behind. `%gpu peers` shows them, "
    "`%gpu stop` ends the group."
)


def _no_group(message: str, names: list[str]) -> GpuSliceError:
    if names:
        hint = f"There is {', '.join(names)}: choose with --name."
    else:
        hint = (
            "`%%gpu train -n 2` over a cell makes one and runs the cell on it. Groups end with "
            "their notebook's kernel, also when it is restarted."
        )
    return GpuSliceError(message, "no_group", hint)


def _unwell(done: dict[str, Any]) -> str:
    ranks = done.get("ranks")
    bad = [f"{rank} {how}" for rank, how in ranks.items() if how != "ok"] if ranks else []
    return f"The cell did not end well: rank {', '.join(bad)}." if bad else "The cell failed."


def _normal(request: str) -> str:
    """A request in one spelling, as far as that takes no grammar: ``1``, ``1.0`` and ``1x1``."""
    text = "".join(request.lower().split())
    model, colon, amount = text.rpartition(":")
    if amount.startswith("1x"):
        amount = amount[2:]
    try:
        amount = f"{float(amount):g}"
    except ValueError:
        pass
    return f"{model}{colon}{amount}"
