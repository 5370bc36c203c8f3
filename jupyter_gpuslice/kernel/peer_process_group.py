"""The default process group of ``torch.distributed`` in a peer.

It is made before a cell runs, again and again under fresh keys: each re-making is a *generation*,
and within one the cell's own ``init_process_group`` calls are counted, so that no rank ever reads
what an earlier process group left in the store. torch is imported only when it is needed.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

_C10D = "torch.distributed.distributed_c10d"
_STORE_WAIT = timedelta(seconds=300)
_CONNECT_WAIT = timedelta(seconds=5)
"""How long gloo may take to connect ranks that have all said that they are there."""


class NoTorchError(Exception):
    """torch is not in this environment, or cannot be imported."""


class ProcessGroups:
    """What one rank knows of its group: who it is, where the store is, which generation runs."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.backend = "gloo"
        self.generation = 0
        self.count = 0
        """How many process groups this rank has made in this generation."""
        self.address: tuple[str, int] | None = None
        self._daemon: Any = None
        self._client: Any = None

    # Asked by the server, on the main thread

    def probe(self) -> dict[str, Any]:
        """What this environment can do (imports torch)."""
        try:
            torch = _torch()
        except NoTorchError as error:
            return {"torch": None, "error": str(error)}
        dist = torch.distributed
        available = dist.is_available()
        return {
            "torch": torch.__version__,
            "nccl": available and dist.is_nccl_available(),
            "gloo": available and dist.is_gloo_available(),
            "cuda": torch.cuda.device_count(),
        }

    def open_store(self) -> int:
        """Bind the rendezvous store in this rank (the leader); returns its port.

        The port is bound before anybody is told of it, on the loopback address alone: c10d by
        itself would listen on every interface.
        """
        dist = _torch().distributed
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(512)
            port = listener.getsockname()[1]
            # The store owns the descriptor from here on.
            self._daemon = dist.TCPStore(
                "127.0.0.1",
                port,
                is_master=True,
                timeout=_STORE_WAIT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        finally:
            listener.close()
        return port

    def meet(self, host: str, port: int) -> None:
        """Learn where the store is; ``env://`` code finds it there from now on."""
        self.address = (host, port)
        self._client = None
        os.environ["MASTER_ADDR"] = host
        os.environ["MASTER_PORT"] = str(port)

    def join(self, generation: int, backend: str) -> None:
        """Make the default process group of a new generation, in place of whatever is there."""
        torch = _torch()
        self.leave()
        self.generation, self.count, self.backend = generation, 0, backend
        if backend == "nccl":
            # torchrun's ranks choose their device themselves; one that forgets to would share
            # GPU 0 with all others, which NCCL refuses.
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        self._make(sys.modules[_C10D].init_process_group.__wrapped__, {"backend": backend})

    def leave(self) -> None:
        """Destroy the default process group, if there is one, also one that is broken."""
        c10d = sys.modules.get(_C10D)
        if c10d is None or not hasattr(c10d, "_world"):
            return
        if c10d.is_initialized():
            try:
                self.abort()
                c10d.destroy_process_group()
            except Exception:
                # What is broken cannot always be destroyed in order: forget it then.
                c10d._update_default_pg(None)
        # A making that failed half way has counted already, and ranks that count differently wait
        # at different places of the store.
        c10d._world.pg_map.clear()
        c10d._world.pg_names.clear()
        c10d._world.pg_group_ranks.clear()
        c10d._world.group_count = 0

    # Asked from any thread

    def state(self) -> dict[str, Any]:
        c10d = sys.modules.get(_C10D)
        there = c10d is not None and bool(getattr(c10d, "is_initialized", bool)())
        return {"initialized": there, "generation": self.generation, "count": self.count}

    def abort(self) -> None:
        """Abort NCCL's communicators (gloo has no abort that frees anybody)."""
        c10d = sys.modules.get(_C10D)
        if c10d is None or not c10d.is_initialized():
            return
        for group in list(c10d._world.pg_map):
            for backend in {id(b): b for b in _backends(group)}.values():
                if "NCCL" in type(backend).__name__ and hasattr(backend, "abort"):
                    backend.abort()

    def forget_client(self) -> None:
        """The connection to the store has been cut: the next process group gets a new one."""
        self._client = None

    # A cell's own call

    def user_init(self, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """``init_process_group`` as a cell calls it."""
        asked = inspect.signature(original).bind(*args, **kwargs).arguments
        c10d = sys.modules[_C10D]
        if c10d.is_initialized():
            words = self._differences(asked, c10d.get_backend())
            if words:
                _say(
                    f"the process group is there already: {'; '.join(words)}. "
                    "It stays as it is; destroy_process_group() first makes room for another."
                )
            return
        if asked.get("store") is not None or asked.get("init_method") not in (None, "env://"):
            original(*args, **kwargs)
            self.count += 1
            return
        words = self._differences(asked, asked.get("backend"))
        if words:
            _say(f"{'; '.join(words)}.")
        names = ("timeout", "pg_options", "device_id")
        kept: dict[str, Any] = {name: asked[name] for name in names if name in asked}
        self._make(original, {"backend": asked.get("backend") or self.backend, **kept})

    def _make(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        if self.address is None:
            raise RuntimeError(
                "This peer group has no rendezvous yet: run the cell with %%gpu train."
            )
        dist = _torch().distributed
        client = self._client
        if client is None:
            # The leader, too, is a client of its own store: a connection can then be cut
            # without harm to the store.
            client = self._client = dist.TCPStore(
                *self.address, is_master=False, timeout=_STORE_WAIT, wait_for_workers=False
            )
        store = dist.PrefixStore(f"gpuslice/{self.generation}/{self.count}", client)
        self.count += 1
        ours = {"store": store, "rank": self.rank, "world_size": self.world_size}
        if arguments["backend"] != "gloo":
            original(**ours, **arguments)
            return
        # gloo waits for a rank that does not connect for as long as for a collective, half an
        # hour, and nothing wakes it: there is no connection yet that could be cut. So it starts
        # when all are there and gets little time for this alone.
        if store.add("here", 1) == self.world_size:
            store.set("all", "1")
        store.wait(["all"], _STORE_WAIT)
        c10d = sys.modules[_C10D]
        original(**ours, **{**arguments, "timeout": _CONNECT_WAIT})
        c10d._set_pg_timeout(arguments.get("timeout") or c10d.default_pg_timeout)

    def _differences(self, asked: Mapping[str, Any], backend: Any) -> list[str]:
        words = []
        for name, own in (("rank", self.rank), ("world_size", self.world_size)):
            if asked.get(name, -1) not in (-1, own):
                words.append(f"{name} is {own}, not {asked[name]}")
        wanted = asked.get("backend")
        if wanted is not None and str(wanted).lower() != str(backend).lower():
            words.append(f"its backend is {backend}, not {wanted}")
        return words


def watch_import(groups: ProcessGroups) -> None:
    """Have a cell's ``init_process_group`` go through ``groups``, whenever torch comes."""
    if _C10D in sys.modules:
        _patch(sys.modules[_C10D], groups)
    else:
        sys.meta_path.insert(0, _AfterImport(groups))


def _patch(c10d: ModuleType, groups: ProcessGroups) -> None:
    original = getattr(c10d, "init_process_group", None)
    if original is None or hasattr(original, "_gpuslice"):
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        groups.user_init(original, args, kwargs)

    init_process_group._gpuslice = True  # type: ignore[attr-defined]
    c10d.init_process_group = init_process_group  # type: ignore[attr-defined]
    package = sys.modules.get("torch.distributed")
    if package is not None and hasattr(package, "init_process_group"):
        package.init_process_group = init_process_group  # type: ignore[attr-defined]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Patches c10d when it has just been imported, then is gone."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if name != _C10D or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _patch(module, self._groups)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        if error.name == "torch":
            raise NoTorchError("PyTorch is not installed in this kernel's environment.") from None
        raise NoTorchError(f"PyTorch cannot be imported: {error}") from None
    except OSError as error:
        raise NoTorchError(f"PyTorch cannot be imported: {error}") from None
    return torch


def _backends(group: Any) -> list[Any]:
    found = []
    for device in getattr(group, "_device_types", ()):
        try:
            found.append(group._get_backend(device))
        except RuntimeError:
            continue
    return found


def _say(text: str) -> None:
    print(f"jupyter_gpuslice: {text}", file=sys.stderr)
