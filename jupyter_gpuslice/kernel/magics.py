"""The ``%gpu`` and ``%%gpu`` magics."""

from __future__ import annotations

import ast
import base64
import os
import pickle
import time
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from . import arguments, frameworks, peer_values, status, texts
from .client import Client
from .errors import CellInterrupted, CellSyntaxError, GpuSliceError
from .groups import CELL, DEFAULT, GONE, Groups
from .slicefile import SliceHook
from .words import device_names, lease_words, queued_words, table


@magics_class
class GpuMagics(Magics):
    """``%gpu`` and ``%%gpu``. ``hook``: the slice hook of this kernel, if it has one."""

    hook: SliceHook | None = None

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._shell: Any = shell
        self._connected: tuple[tuple[str, str, str], Client] | None = None
        self.groups = Groups(shell, self.client, kernel_id())

    def client(self) -> Client:
        """This kernel's client, with its connection kept; anew when the address changed."""
        names = ("JUPYTER_GPUSLICE_URL", "JUPYTER_GPUSLICE_TOKEN", "JUPYTER_GPUSLICE_CERT")
        url, token, cert = (os.environ.get(name, "") for name in names)
        key = (url, token, cert)
        if self._connected is None or self._connected[0] != key:
            self._connected = key, Client.from_environment()
        return self._connected[1]

    def pool(self) -> Any:
        """The pool, for what is only nicer with it: not waited for long."""
        return self.client().call("GET", "pool", timeout=2)

    def device_names(self) -> dict[str, str]:
        """Names of the pool's devices, where the server tells them soon."""
        try:
            return device_names(self.pool())
        except GpuSliceError:
            return {}

    @no_var_expand
    @line_cell_magic
    def gpu(self, line: str, cell: str | None = None) -> Any:
        try:
            return self._gpu(line, cell)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:
            raise CellInterrupted("%gpu was interrupted.") from None

    def _gpu(self, line: str, cell: str | None) -> Any:
        words = arguments.split(line)
        if cell is not None:
            return self._cell(words, line, cell)
        if not words:
            return self._status()
        name, rest = words[0], words[1:]
        if name in ("--help", "-h"):
            name = "help"
        parser = arguments.LINE.get(name)
        if parser is None:
            if name in arguments.CELL:
                raise UsageError(f"{name} runs a cell: write %%gpu {name} … over it.")
            if arguments.looks_like_request(name):
                raise UsageError(
                    f"Write %gpu request {name} for this kernel, or %%gpu {name} over a cell."
                )
            raise _unknown(name, [*arguments.LINE, *filter(None, arguments.CELL)])
        return getattr(self, f"_do_{name}")(parser.parse_line(rest))

    gpu.__doc__ = texts.HELP

    # This kernel's own slice.

    def _status(self) -> Any:
        client = self.client()
        pool, leases = client.get("pool"), client.listed("leases")
        groups = self.groups.all()
        warning = self._refresh()
        if not warning and any(
            lease.get("needs_restart") for lease in status.own_leases(leases, kernel_id())
        ):
            warning = texts.NEEDS_RESTART
        picture = (pool, leases, groups, kernel_id(), warning)
        if getattr(self._shell, "kernel", None) is None:
            print(status.text(*picture))
        else:
            self._shell.display_pub.publish(
                {"text/plain": status.text(*picture), "text/html": status.html(*picture)},
                metadata={},
            )

    def _do_help(self, args: Any) -> None:
        print(texts.HELP)

    def _do_request(self, args: Any) -> None:
        client = self.client()
        user = frameworks.cuda_user()
        if user:
            words = texts.RESTART_FIRST.format(user=user, request=args.request)
            raise GpuSliceError("The slice cannot be put in place now.", "needs_restart", words)
        body = {
            "request": args.request,
            "holder": {"kind": "kernel", "id": kernel_id()},
            "wait": args.wait,
        }
        if args.ttl is not None:
            body["ttl"] = args.ttl
        try:
            lease = client.post("leases", body)
        except GpuSliceError as error:
            if not args.wait and error.passes:
                error.hint = f"{error.hint} {texts.ADD_WAIT}".strip()
            raise
        if lease.get("state") == "queued":
            lease = self._wait(client, lease)
        if lease.get("slices"):
            self._granted(lease)
        else:
            raise GpuSliceError(f"The request is {lease.get('state')}.", str(lease.get("state")))

    def _wait(self, client: Client, lease: dict[str, Any]) -> dict[str, Any]:
        """Follow a queued lease until it is something else. Ctrl-C leaves it in the queue."""
        told = ""
        try:
            while lease.get("state") == "queued":
                words = queued_words(lease)
                if words != told:
                    print(f"Waiting for {lease.get('request')}: {words}", flush=True)
                    told = words
                time.sleep(1)
                lease = client.get(f"leases/{lease['id']}")
        except KeyboardInterrupt:
            raise GpuSliceError(
                f"Stopped waiting. {lease.get('request')} stays in the queue and is put in place "
                "before the next cell once it is granted.",
                "queued",
                "`%gpu release` leaves the queue.",
            ) from None
        return lease

    def _do_resize(self, args: Any) -> None:
        client = self.client()
        lease = self._own(client)
        user = frameworks.cuda_user()
        if user:
            print(texts.BEFOREHAND.format(user=user), flush=True)
        self._granted(client.patch(f"leases/{lease['id']}", {"request": args.request}))

    def _do_release(self, args: Any) -> None:
        client = self.client()
        mine = status.own_leases(client.listed("leases"), kernel_id())
        if not mine:
            print("This kernel holds no GPU slice.")
            return
        user = frameworks.cuda_user()
        frameworks.give_memory_back()
        for lease in mine:
            client.delete(f"leases/{lease['id']}")
        self._settle()
        if user:
            print(texts.RELEASED_BUT.format(user=user))
        else:
            what = " and ".join(
                f"{lease.get('request')}" + (" (queued)" if lease.get("state") == "queued" else "")
                for lease in mine
            )
            print(f"Given back: {what}.")

    def _do_why(self, args: Any) -> None:
        body = {"request": args.request, "holder": {"kind": "kernel", "id": kernel_id()}}
        found = self.client().post("explain", body)
        lines = [str(found.get("message") or "")]
        if found.get("fits") and not lines[0]:
            lines = [f"{args.request} would be granted now."]
        if found.get("hint"):
            lines.append(str(found["hint"]))
        print("\n".join(line for line in lines if line))

    def _own(self, client: Client) -> dict[str, Any]:
        mine = status.own_leases(client.listed("leases"), kernel_id())
        if not mine:
            raise GpuSliceError(
                "This kernel holds no GPU slice.", "no_lease", "`%gpu request 0.5` asks for one."
            )
        return dict(mine[0])

    def _granted(self, lease: dict[str, Any]) -> None:
        warning = self._settle(lease)
        if lease.get("state") == "queued":
            print(f"{lease.get('request')} waits: {queued_words(lease)}")
            return
        print(warning or f"This kernel holds {lease_words(lease, self.device_names())}.")

    def _settle(self, lease: dict[str, Any] | None = None) -> str:
        """Put what the server has just decided in place; a sentence if that needs a restart.

        The slice file is written a moment after the answer: wait for it, but not for ever.
        """
        if self.hook is None:
            return ""
        deadline = time.monotonic() + 2
        wanted = (lease or {}).get("slices") or []
        while True:
            self.hook.refresh(quiet=True)
            if ((self.hook.file.lease or {}).get("slices") or []) == wanted:
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return self._refresh()

    def _refresh(self) -> str:
        if self.hook is None:
            return ""
        self.hook.refresh()
        return texts.NEEDS_RESTART if self.hook.restart_needed else ""

    # Peer groups.

    def _do_peers(self, args: Any) -> None:
        groups = self.groups.all()
        if not groups:
            print("No groups. `%%gpu train -n 2` over a cell makes one and runs the cell on it.")
            return
        names = self.device_names()
        for group in groups:
            print(status.group_words(group))
            print(table(status.rank_rows(group, names)))

    def _do_push(self, args: Any) -> None:
        group = self.groups.pick(args.name)
        missing = [name for name in args.names if name not in self._shell.user_ns]
        if missing:
            raise UsageError(f"There is no variable {', '.join(missing)} in this notebook.")
        values = {name: self._shell.user_ns[name] for name in args.names}
        text = base64.b64encode(_pickled(values)).decode("ascii")
        self.groups.push(group, text)
        print(f"Pushed {', '.join(args.names)} to group {group['name']}.")

    def _do_pull(self, args: Any) -> None:
        group = self.groups.pick(args.name)
        if args.rank is not None:
            _check_ranks([args.rank], int(group.get("workers") or 1))
        found = self.groups.pull(group, args.names, None if args.rank is None else [args.rank])
        for name in args.names:
            by_rank = found.get(name) or {}
            values = [_unpickled(name, by_rank[rank]) for rank in sorted(by_rank)]
            if not values:
                raise GpuSliceError(f"No rank sent {name!r}.", "no_value")
            single = args.rank is not None or int(group.get("workers") or 1) == 1
            self._shell.user_ns[name] = values[0] if single else values
        where = f"rank {args.rank}" if args.rank is not None else f"group {group['name']}"
        print(f"Pulled {', '.join(args.names)} from {where}.")

    def _do_reset(self, args: Any) -> None:
        group = self.groups.pick(args.name)
        self.groups.reset(group)
        print(f"Group {group['name']} has a new process group; its variables are kept.")

    def _do_stop(self, args: Any) -> None:
        group = self.groups.pick(args.name)
        self.groups.stop(group)
        print(f"Group {group['name']} is stopped, its slices are given back.", flush=True)
        self._refresh()  # its end may have given this kernel its own slice back

    # Cells.

    def _cell(self, words: list[str], line: str, cell: str) -> None:
        if not words:
            raise UsageError(
                "Say what for: %%gpu train -n 2, %%gpu run, or a request such as %%gpu 0.5."
            )
        name = words[0]
        if name in ("train", "run"):
            args = arguments.CELL[name].parse_line(words[1:])
            code = self._checked(line, cell)
            getattr(self, f"_{name}")(args, code)
        elif arguments.looks_like_request(name):
            args = arguments.CELL[""].parse_line(words)
            self._worker(args, self._checked(line, cell))
        elif name in arguments.LINE:
            raise UsageError(f"{name} takes no cell: write %gpu {name} on a line of its own.")
        else:
            raise _unknown(name, filter(None, arguments.CELL), "%%gpu ")

    def _train(self, args: Any, code: str) -> None:
        if args.nodes is not None and args.nodes != 1:
            raise GpuSliceError(
                "Groups across nodes are not there yet: all workers run on this server's node.",
                "not_supported",
                "Leave out --nodes.",
            )
        if args.show is not None:
            _check_ranks(args.show, args.workers)
        self._remade(
            lambda: self._made(
                name=args.name or DEFAULT,
                workers=args.workers,
                request=args.request or "auto",
                named=args.request is not None,
                backend=args.backend,
                wait=args.wait,
                fresh=args.fresh,
            ),
            lambda group: self._run_on(
                group, code, train=True, show=args.show, lend=self._lends(quiet=True)
            ),
        )

    def _run(self, args: Any, code: str) -> None:
        group = self.groups.pick(args.name)
        workers = int(group.get("workers") or 1)
        for ranks in (args.ranks, args.show):
            if ranks is not None:
                _check_ranks(ranks, workers)
        self._run_on(group, code, ranks=args.ranks, show=args.show, lend=self._lends(quiet=True))

    def _worker(self, args: Any, code: str) -> None:
        def ensure() -> tuple[dict[str, Any], bool]:
            group, made = self._made(
                name=CELL,
                workers=1,
                request=args.request,
                named=True,
                fresh=args.fresh,
                hold="cell",
                wait=True,
            )
            if made:
                print(texts.WORKER.format(request=group.get("request")), flush=True)
            return group, made

        self._remade(ensure, lambda group: self._run_on(group, code, lend=self._lends()))

    def _remade(self, ensure: Any, run: Any) -> None:
        """Run on a group that was thought to live; if it has ended meanwhile, on a new one."""
        group, made = ensure()
        try:
            run(group)
        except GpuSliceError as error:
            if made or error.reason not in GONE:
                raise
            print(f"The group {group['name']!r} had ended.", flush=True)
            run(ensure()[0])

    def _run_on(
        self,
        group: dict[str, Any],
        code: str,
        *,
        ranks: list[int] | None = None,
        train: bool = False,
        show: list[int] | None = None,
        lend: bool = False,
    ) -> None:
        shown = None if show is None else set(show)
        try:
            self.groups.execute(group, code, ranks=ranks, train=train, show=shown, lend=lend)
        finally:
            if self.hook is not None:
                # What the group took of this kernel's own slice was said when it was lent.
                self.hook.refresh(quiet=True)

    def _made(self, **shape: Any) -> tuple[dict[str, Any], bool]:
        """A group of that shape; says what became of this kernel's own slice if that was lent."""
        own = self.hook.file if self.hook is not None else None
        before = (own.lease or {}).get("slices") if own is not None else None
        group, made = self.groups.ensure(lend=self._lends, **shape)
        if made and own is not None and self.hook is not None:
            self.hook.refresh(quiet=True)
            after = (own.lease or {}).get("slices")
            if before and not own.holding:
                print(texts.GAVE_WAY, flush=True)
            elif before and after != before:
                held = lease_words(own.lease, self.device_names())
                print(f"This kernel's own slice is now {held}.")
        return group, made

    def _lends(self, quiet: bool = False) -> bool:
        """Whether this kernel's own slice may serve its group: an ``auto`` one, CUDA untouched."""
        lease = self.hook.file.lease if self.hook is not None else None
        if lease is None or lease.get("request") != "auto" or not lease.get("slices"):
            return False
        user = frameworks.cuda_user()
        if user and not quiet:
            print(
                f"This kernel keeps its own slice: {user} already uses CUDA in it. Restart the "
                "kernel to free it for the group.",
                flush=True,
            )
        return not user

    def _checked(self, line: str, cell: str) -> str:
        """The cell as it is sent, its syntax checked as IPython will read it."""
        # A first line in place of the magic's: line numbers in tracebacks are the notebook's.
        # A cell magic has to stay in the first line.
        magic = cell.lstrip().startswith("%%")
        code = cell if magic else f"# %%gpu {line}\n{cell}"
        try:
            transformed = self._shell.transform_cell(code)
            compile(transformed, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            rendered = self._shell.SyntaxTB.structured_traceback(type(error), error, None)
            raise CellSyntaxError(error, list(rendered)) from None
        except (ValueError, OverflowError) as error:
            raise UsageError(f"The cell cannot be compiled: {error}") from None
        return code


def kernel_id() -> str:
    return os.environ.get("JUPYTER_GPUSLICE_KERNEL_ID", "")


def _unknown(name: str, known: Any, prefix: str = "%gpu ") -> UsageError:
    hint = arguments.meant(name, known)
    return UsageError(f"There is no {prefix}{name}{hint or ': see %gpu help'}")


def _check_ranks(ranks: list[int], workers: int) -> None:
    wrong = [rank for rank in ranks if rank >= workers]
    if wrong:
        raise UsageError(f"There is no rank {wrong[0]}: the group has ranks 0 to {workers - 1}.")


def _pickled(values: dict[str, Any]) -> bytes:
    size = 0
    for name, value in values.items():
        try:
            size += len(peer_values.dumps(value))
        except Exception as error:
            raise GpuSliceError(
                f"The variable {name!r} cannot be pickled: {type(error).__name__}: {error}",
                "not_picklable",
            ) from None
        if size > peer_values.LIMIT:
            raise GpuSliceError(
                f"{' + '.join(values)}: too large to push at once, more than "
                f"{peer_values.LIMIT // 2**20} MiB.",
                "too_large",
                "Save what is large to a file and load that in a %%gpu run cell.",
            )
    return peer_values.dumps(values)


def _unpickled(name: str, text: str) -> Any:
    # From this user's own ranks, over the server's authenticated address.
    try:
        return pickle.loads(base64.b64decode(text))  # noqa: S301
    except Exception as error:
        raise GpuSliceError(
            f"{name!r} cannot be unpickled here: {type(error).__name__}: {error}",
            "not_picklable",
            "What it needs must be importable in this notebook, too.",
        ) from None
