"""Makes a kernel a rank of a peer group.

The server asks a peer for things in messages of its own (``gpuslice_peer_request``), on the shell
channel for what needs the main thread (the process group, variables) and on the control channel
for what must work while a cell runs. Each is answered with ``gpuslice_peer_reply``.
"""

from __future__ import annotations

import os
import traceback
import warnings
from typing import Any

from . import peer_sockets, peer_values
from .frameworks import cuda_user, watch_torch
from .peer_process_group import ProcessGroups, watch_import

REQUEST = "gpuslice_peer_request"
REPLY = "gpuslice_peer_reply"


class Peer:
    """One rank, in its kernel."""

    def __init__(self, shell: Any, groups: ProcessGroups) -> None:
        self._shell = shell
        self._groups = groups

    # Shell channel

    def probe(self, content: dict[str, Any]) -> dict[str, Any]:
        return self._groups.probe()

    def open_store(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"port": self._groups.open_store()}

    def meet(self, content: dict[str, Any]) -> dict[str, Any]:
        self._groups.meet(content["host"], content["port"])
        return {}

    def join(self, content: dict[str, Any]) -> dict[str, Any]:
        self._groups.join(content["generation"], content["backend"])
        return {}

    def push(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"names": peer_values.push(self._shell.user_ns, content["pickle"])}

    def pull(self, content: dict[str, Any]) -> dict[str, Any]:
        return {"values": peer_values.pull(self._shell.user_ns, content["names"])}

    def hold(self, content: dict[str, Any]) -> dict[str, Any]:
        """Another slice from now on, or none; tells what uses the device, if anything does."""
        for name, value in content.get("environment", {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        return {"cuda": cuda_user()}

    # Control channel

    def state(self, content: dict[str, Any]) -> dict[str, Any]:
        return self._groups.state()

    def free(self, content: dict[str, Any]) -> dict[str, Any]:
        """End what blocks this rank in a collective; its Python state stays."""
        address = self._groups.address
        port = address[1] if address else None
        count = peer_sockets.shut_down(content["pids"], port)
        self._groups.abort()
        self._groups.forget_client()
        return {"connections": count}

    def handler(self, operations: tuple[str, ...]) -> Any:
        """A message handler of ipykernel's for these operations."""
        calls = {name: getattr(self, name) for name in operations}

        def handle(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
            content = parent["content"]
            try:
                reply = {"status": "ok", **calls[content["operation"]](content)}
            except BaseException as error:
                # Also KeyboardInterrupt: whoever asked waits for an answer.
                reply = {
                    "status": "error",
                    "ename": type(error).__name__,
                    "evalue": str(error),
                    "traceback": traceback.format_exc().splitlines(),
                }
            self._shell.kernel.session.send(stream, REPLY, reply, parent, ident=ident)

        return handle


def _not_here(line: str, cell: str | None = None) -> None:
    from IPython.core.error import UsageError

    raise UsageError("%gpu works in the notebook; this cell runs on a rank of a peer group.")


def install() -> None:
    """Make the kernel that this runs in a peer; its rank stands in the environment."""
    from IPython import get_ipython

    shell = get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or not hasattr(kernel, "shell_handlers"):
        raise RuntimeError("A peer group needs kernels of IPython (ipykernel).")
    if REQUEST in kernel.shell_handlers:
        return
    groups = ProcessGroups(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    peer = Peer(shell, groups)
    kernel.shell_handlers[REQUEST] = peer.handler(
        ("probe", "open_store", "meet", "join", "push", "pull", "hold")
    )
    kernel.control_handlers[REQUEST] = peer.handler(("state", "free"))
    shell.register_magic_function(_not_here, "line_cell", "gpu")
    watch_import(groups)
    watch_torch()
    # A script's sys.exit() is its end, not a way to close a shell.
    warnings.filterwarnings("ignore", message="To exit: use")
