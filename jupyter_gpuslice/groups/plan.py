"""What is asked for when a group is made."""

from __future__ import annotations

import os
import re
from typing import Any

from ..broker.explain import Refused
from ..request import GpuRequest
from .backend import BACKENDS
from .body import fields, flag, text

MOST_WORKERS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_FIELDS = (
    "name", "workers", "request", "backend", "kernel", "kernel_name", "cwd", "lend", "wait", "hold",
)  # fmt: skip


class Plan:
    """The JSON body of the call, checked."""

    name: str
    workers: int
    request: GpuRequest
    backend: str
    kernel: str | None
    kernel_name: str | None
    cwd: str | None
    lend: bool
    wait: bool
    hold: str
    """``group``: the slices are the group's for its life; ``cell``: while a cell runs."""

    @classmethod
    def parse(cls, body: Any, caller: Any) -> Plan:
        """:class:`Refused` or ``RequestError`` says what is wrong with it."""
        body = fields(body, _FIELDS)
        plan = cls()
        plan.name = text(body, "name") or "default"
        if not _NAME.fullmatch(plan.name):
            raise Refused(
                "bad_request",
                f"{plan.name[:40]!r} cannot be a group's name.",
                "Use letters, digits, '.', '_' and '-', up to 63.",
            )
        workers = body.get("workers", 1)
        if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
            raise Refused("bad_request", f"'workers' is a number from 1 to {MOST_WORKERS}.")
        plan.workers = workers
        plan.request = GpuRequest.parse(text(body, "request") or "auto")
        plan.backend = text(body, "backend") or "auto"
        if plan.backend not in BACKENDS:
            raise Refused("bad_request", f"A backend is one of {', '.join(BACKENDS)}.")
        own = getattr(caller, "kernel", None)
        plan.kernel = text(body, "kernel") or own
        if own is not None and not caller.stands_for(plan.kernel):
            raise Refused("not_owner", "A kernel may only make groups of its own.")
        plan.kernel_name = text(body, "kernel_name")
        plan.cwd = text(body, "cwd")
        if plan.cwd is not None and not os.path.isdir(plan.cwd):
            raise Refused("bad_request", "'cwd' is no folder on this server.")
        plan.lend = flag(body, "lend")
        plan.wait = flag(body, "wait")
        plan.hold = text(body, "hold") or "group"
        if plan.hold not in ("group", "cell"):
            raise Refused("bad_request", "'hold' is group or cell.")
        return plan
