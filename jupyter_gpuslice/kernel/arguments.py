"""What can be written after ``%gpu`` and ``%%gpu``: parsers whose errors help."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

REQUESTS = {
    "auto": (1, 0, 0),
    "0.25": (1, 0, 25),
    "0.5": (1, 0, 50),
    "1": (1, 0, 100),
    "2": (2, 0, 100),
    "10GiB": (1, 10240, 0),
    "10GiB/50%": (1, 10240, 50),
    "2x0.5": (2, 0, 50),
}
"""Examples to complete to, and what each takes: devices, and of each MiB and percent."""
BACKENDS = ("auto", "nccl", "gloo")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,29}")


class SubcommandParser(MagicArgumentParser):
    """Parses one subcommand; an error is a ``UsageError`` with what may have been meant."""

    def __init__(self, usage: str) -> None:
        super().__init__(usage=usage, add_help=False)
        self.allow_abbrev = False

    @property
    def options(self) -> list[str]:
        return sorted(option for action in self._actions for option in action.option_strings)

    def parse_line(self, words: list[str]) -> argparse.Namespace:
        namespace, rest = self.parse_known_args(words)
        unknown = [word for word in rest if word.startswith("-")] or rest
        if unknown:
            word = unknown[0]
            if word.startswith("-"):
                self.error(f"unknown option {word}{meant(word, self.options)}")
            self.error(f"{word!r} is one word too many")
        return namespace

    def error(self, message: str) -> Any:
        message = message[:1].upper() + message[1:]
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message}{end}\nUsage: {self.usage}")


def meant(word: str, known: Iterable[str]) -> str:
    """``": did you mean request?"``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else ""


def split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"The line cannot be read: {error}.") from None


def possible_requests(pool: Mapping[str, Any]) -> list[str]:
    """The examples that the pool could ever grant."""
    return [
        text
        for text, (count, memory, percent) in REQUESTS.items()
        if sum(
            device.get("memory_mib", 0) >= memory and device.get("compute_percent", 0) >= percent
            for device in pool.get("devices") or ()
        )
        >= count
    ]


def looks_like_request(word: str) -> bool:
    """Every request but two holds a digit; no subcommand does. What it means, the server knows."""
    return word in ("auto", "none") or ":" in word or any(c.isdigit() for c in word)


def rank_list(text: str) -> list[int]:
    """``0,2`` or ``0-2`` or both."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks: write 0,2 or 0-2")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} counts backwards")
        ranks.update(range(first, last + 1))
    return sorted(ranks)


def group_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a group: up to 30 letters, digits, '-', '_' and '.'"
        )
    return text


def _workers(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers") from None
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError("a group has 1 to 1024 workers")
    return number


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no rank: ranks count from 0")
    return int(text)


def _variable(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a variable")
    return text


def _with_name(parser: SubcommandParser) -> SubcommandParser:
    parser.add_argument("--name", type=group_name, default=None)
    return parser


def _line_parsers() -> dict[str, SubcommandParser]:
    request = SubcommandParser("%gpu request 0.5 [--wait] [--ttl 2h]")
    request.add_argument("request")
    request.add_argument("--wait", action="store_true")
    request.add_argument("--ttl", default=None)
    resize = SubcommandParser("%gpu resize 0.75")
    resize.add_argument("request")
    why = SubcommandParser("%gpu why 2")
    why.add_argument("request")
    push = _with_name(SubcommandParser("%gpu push x y [--name g]"))
    push.add_argument("names", nargs="+", type=_variable, metavar="variable")
    pull = _with_name(SubcommandParser("%gpu pull x y [--rank 0] [--name g]"))
    pull.add_argument("names", nargs="+", type=_variable, metavar="variable")
    pull.add_argument("--rank", type=_rank, default=None)
    return {
        "request": request,
        "resize": resize,
        "release": SubcommandParser("%gpu release"),
        "why": why,
        "peers": SubcommandParser("%gpu peers"),
        "push": push,
        "pull": pull,
        "reset": _with_name(SubcommandParser("%gpu reset [--name g]")),
        "stop": _with_name(SubcommandParser("%gpu stop [--name g]")),
        "help": SubcommandParser("%gpu help"),
    }


def _cell_parsers() -> dict[str, SubcommandParser]:
    train = SubcommandParser(
        "%%gpu train -n 4 [request] [--name g] [--backend auto|nccl|gloo] [--show 0,2] [--wait] "
        "[--fresh]"
    )
    train.add_argument("request", nargs="?", default=None)
    train.add_argument("-n", "--workers", type=_workers, required=True)
    train.add_argument("--backend", choices=BACKENDS, default="auto")
    train.add_argument("--wait", action="store_true")
    train.add_argument("--fresh", action="store_true")
    train.add_argument("--nodes", type=int, default=None)
    run = SubcommandParser("%%gpu run [--ranks 0,2|0-2] [--name g] [--show 0,2]")
    run.add_argument("--ranks", type=rank_list, default=None)
    for parser in (_with_name(train), _with_name(run)):
        parser.add_argument("--show", type=rank_list, default=None)
    cell = SubcommandParser("%%gpu 0.5 [--fresh]")
    cell.add_argument("request")
    cell.add_argument("--fresh", action="store_true")
    return {"train": train, "run": run, "": cell}


LINE = _line_parsers()
"""Subcommands of ``%gpu``."""
CELL = _cell_parsers()
"""Subcommands of ``%%gpu``; ``""`` is the one that begins with a request."""
