"""Kernels that something in the session starts outside its server: papermill, nbclient, an editor.

They take their lease from the session's broker like the server's own, over HTTP.
"""

from __future__ import annotations

import re
from typing import Any

from ..devices.process import Process
from .api import ApiError, Caller
from .kernels import Kernels, Launch

_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
MOST = 256


class Visitors:
    """Checks what is said over HTTP, and hands it to the server's kernels."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._own: set[str] = set()

    async def prepare(self, caller: Caller, body: Any) -> dict[str, Any]:
        """``POST kernels {id, requests, name, adapts}`` → ``{env, path}``; once more: a restart."""
        if not isinstance(body, dict):
            raise _bad("The body of this call is a JSON object.")
        kernel_id = body.get("id")
        if not isinstance(kernel_id, str) or not _ID.fullmatch(kernel_id):
            raise _bad("'id' is the kernel's id: 8 to 64 letters, digits, '-' or '_'.")
        # One whose process has died is gone, and its id may come again: that is a restart.
        self._own = {id_ for id_ in self._own if self._kernels.get(id_) is not None}
        if kernel_id in self._own:
            self._check(caller, kernel_id)
        elif self._kernels.get(kernel_id) is not None:
            raise ApiError(403, "not_owner", "That kernel is the server's own.")
        elif len(self._own) >= MOST:
            raise ApiError(409, "too_many", f"There are {MOST} such kernels already.")
        name = body.get("name", "")
        wishes = body.get("requests", [])
        if not isinstance(name, str) or not isinstance(wishes, list):
            raise _bad("'name' is a text and 'requests' a list.")
        pairs = [w for w in wishes[:8] if isinstance(w, list) and len(w) == 2]
        await self._kernels.known(3.0)
        await self._kernels.buried(kernel_id)
        self._own.add(kernel_id)
        env = self._kernels.prepare(
            kernel_id,
            Launch(
                wishes=[(str(source)[:80], text) for source, text in pairs],
                name=name[:200],
                adapts=body.get("adapts") is True,
                parent=caller.kernel,
            ),
        )
        return {"env": env, "path": self._kernels.kernel_path}

    def launched(self, caller: Caller, kernel_id: str, body: Any) -> None:
        """``PATCH kernels/{id} {pid}``: its process runs."""
        self._check(caller, kernel_id)
        pid = body.get("pid") if isinstance(body, dict) else None
        if isinstance(pid, bool) or not isinstance(pid, int) or pid <= 1:
            raise _bad("'pid' is the number of the kernel's process.")
        try:
            process = Process.of(pid)
        except ProcessLookupError:
            process = Process(pid, "ended")
        self._kernels.launched(kernel_id, process)

    async def ended(self, caller: Caller, kernel_id: str) -> None:
        """``DELETE kernels/{id}``."""
        self._check(caller, kernel_id)
        self._own.discard(kernel_id)
        await self._kernels.ended(kernel_id)

    def _check(self, caller: Caller, kernel_id: str) -> None:
        if kernel_id not in self._own or self._kernels.get(kernel_id) is None:
            self._own.discard(kernel_id)
            raise ApiError(404, "not_found", "There is no such kernel.")
        if not caller.stands_for(kernel_id):
            raise ApiError(403, "not_owner", "That kernel is not the caller's.")


def _bad(message: str) -> ApiError:
    return ApiError(400, "bad_request", message)
