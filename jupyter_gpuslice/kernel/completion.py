"""Tab completion for ``%gpu`` and ``%%gpu``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import arguments
from .errors import GpuSliceError
from .groups import Groups

POOL_S = 30.0
"""How long what the pool could grant is remembered."""


def completions(
    line: str,
    groups: list[str],
    variables: list[str],
    over_cell: bool,
    requests: Callable[[], list[str]] = lambda: list(arguments.REQUESTS),
) -> list[str]:
    """What may come next on ``line`` (the text before the cursor, from the magic on).

    ``groups`` and ``variables`` are names that exist, ``requests`` examples that make sense here.
    """
    words = line.split()
    if not line.endswith((" ", "\t")) and words:
        words.pop()
    words = words[1:]
    parsers = arguments.CELL if over_cell else arguments.LINE
    if not words:
        return sorted(filter(None, parsers)) + (requests() if over_cell else [])
    name = words[0]
    parser = parsers.get(name) or (
        parsers.get("") if over_cell and arguments.looks_like_request(name) else None
    )
    if parser is None:
        return []
    last = words[-1]
    if last == "--name":
        return groups
    if last == "--backend":
        return list(arguments.BACKENDS)
    if last in ("--ttl",):
        return ["30m", "2h", "8h"]
    if last in ("-n", "--workers"):
        return ["2", "4", "8"]
    if last in ("--ranks", "--show", "--rank"):
        return ["0", "0,1", "0-3"] if last != "--rank" else ["0"]
    found = [option for option in parser.options if option not in words and option != "--nodes"]
    if name in ("request", "resize", "why", "train") and not any(
        arguments.looks_like_request(word) for word in _plain(words[1:])
    ):
        found += requests()
    if name in ("push", "pull"):
        found += [variable for variable in variables if variable not in words]
    return found


def _plain(words: list[str]) -> list[str]:
    """Words that are neither options nor their values."""
    taking = ("--name", "--backend", "--ttl", "-n", "--workers", "--ranks", "--show", "--rank")
    return [
        word
        for before, word in zip(["", *words], words)  # noqa: B905 (Python 3.9)
        if before not in taking and not word.startswith("-")
    ]


class Completer:
    """Completes both magics in a shell. Never raises: nothing of it may disturb typing."""

    def __init__(self, shell: Any, groups: Groups, pool: Callable[[], Any]) -> None:
        self._shell = shell
        self._groups = groups
        self._pool = pool
        self._requests: tuple[float, list[str]] = (float("-inf"), [])

    def install(self) -> None:
        try:
            from IPython.core.completer import SimpleCompletion, context_matcher
        except ImportError:  # IPython before 8.6
            for magic in ("%gpu", "%%gpu"):
                self._shell.set_hook("complete_command", self._hook, str_key=magic)
            return

        @context_matcher()
        def gpuslice_matcher(context: Any) -> Any:
            line = context.text_until_cursor
            fragment, found = self._found(line)
            if not found:
                return {"completions": []}
            # Nothing else makes sense there: no names of Python, no files.
            return {
                "completions": [SimpleCompletion(text, type="magic") for text in found],
                "matched_fragment": fragment,
                "suppress": True,
                "ordered": True,
            }

        self._matcher = gpuslice_matcher
        self._shell.Completer.custom_matchers.append(gpuslice_matcher)

    def uninstall(self) -> None:
        matchers = getattr(self._shell.Completer, "custom_matchers", [])
        matchers[:] = [m for m in matchers if m is not getattr(self, "_matcher", None)]

    def _hook(self, shell: Any, event: Any) -> list[str]:
        # The word that is replaced begins after IPython's own delimiters, "-" among them.
        fragment, found = self._found(event.text_until_cursor)
        cut = len(fragment) - len(event.symbol)
        return [word[cut:] for word in found]

    def _possible(self) -> list[str]:
        """Requests that this session could grant; all examples where the server does not tell."""
        asked, requests = self._requests
        if time.monotonic() - asked > POOL_S:
            try:
                requests = arguments.possible_requests(self._pool())
            except GpuSliceError:
                requests = list(arguments.REQUESTS)
            self._requests = time.monotonic(), requests
        return requests

    def _found(self, before: str) -> tuple[str, list[str]]:
        """The word being typed and what it may become; none outside of our magics."""
        try:
            line = before.lstrip()
            words = line.split(None, 1)
            if len(words) == 0 or words[0] not in ("%gpu", "%%gpu") or line in ("%gpu", "%%gpu"):
                return "", []
            fragment = "" if line.endswith((" ", "\t")) else line.split()[-1]
            hidden = getattr(self._shell, "user_ns_hidden", {})
            variables = sorted(
                name
                for name in self._shell.user_ns
                if not name.startswith("_") and name not in hidden
            )
            found = completions(
                line, self._groups.names(), variables, line.startswith("%%"), self._possible
            )
            return fragment, [word for word in found if word.startswith(fragment)]
        except Exception:
            return "", []
