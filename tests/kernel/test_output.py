"""What a notebook looks like after messages of ranks; and a terminal."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from jupyter_gpuslice.kernel import output
from jupyter_gpuslice.kernel.errors import PeerError
from jupyter_gpuslice.kernel.output import Renderer


class Notebook:
    """Outputs as a front end keeps them: text appended, displays updated by their id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[list[Any]] = []
        self.kernel = object()
        self.display_pub = self
        self.ids: list[str] = []
        self._monkeypatch = monkeypatch

    def renderer(self, **options: Any) -> Renderer:
        # Not in the fixture: pytest puts its own streams in place when the test itself begins.
        self._monkeypatch.setattr("sys.stdout", _Stream(self, "stdout"))
        self._monkeypatch.setattr("sys.stderr", _Stream(self, "stderr"))
        return Renderer(self, **options)

    def text(self, name: str, text: str) -> None:
        if self.outputs and self.outputs[-1][0] == name:
            self.outputs[-1][1] += text
        else:
            self.outputs.append([name, text])

    def publish(
        self, data: Any, metadata: Any = None, transient: Any = None, update: bool = False
    ) -> None:
        display_id = (transient or {}).get("display_id")
        if update:
            for one in self.outputs:
                if one[0] == "display" and one[2] == display_id:
                    one[1] = data
            return
        if display_id:
            self.ids.append(display_id)
        self.outputs.append(["display", data, display_id])

    def clear_output(self, wait: bool = False) -> None:
        self.outputs.clear()

    @property
    def stdout(self) -> str:
        return "".join(one[1] for one in self.outputs if one[0] == "stdout")

    @property
    def displays(self) -> list[Any]:
        return [one[1] for one in self.outputs if one[0] == "display"]

    @property
    def all_text(self) -> str:
        return "\n".join(
            one[1] if one[0] != "display" else one[1].get("text/plain", "") for one in self.outputs
        )


class _Stream(io.StringIO):
    def __init__(self, notebook: Notebook, name: str) -> None:
        super().__init__()
        self._notebook, self._name = notebook, name

    def write(self, text: str) -> int:
        self._notebook.text(self._name, text)
        return len(text)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def stream(rank: int, text: str, name: str = "stdout") -> dict[str, Any]:
    return {"type": "stream", "rank": rank, "name": name, "text": text}


def test_each_line_has_its_rank_once(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    for message in (stream(0, "a\nb\n"), stream(1, "c"), stream(0, "d\n"), stream(1, "e\n")):
        renderer.message(message)
    renderer.finish()
    assert notebook.stdout == "[0] a\n[0] b\n[0] d\n[1] ce\n"
    assert notebook.displays == []


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_whole_however_they_are_cut(notebook: Notebook, seed: int) -> None:
    rng = random.Random(seed)
    texts = {rank: "".join(f"rank {rank} line {n}\n" for n in range(20)) for rank in range(3)}
    renderer = notebook.renderer()
    rest = dict(texts)
    while any(rest.values()):
        rank = rng.choice([r for r in rest if rest[r]])
        cut = rng.randint(1, 30)
        renderer.message(stream(rank, rest[rank][:cut]))
        rest[rank] = rest[rank][cut:]
    renderer.finish()
    lines = notebook.stdout.splitlines()
    for rank in texts:
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {line}" for line in texts[rank].splitlines()]
    assert len(lines) == 60


def test_progress_bars_of_ranks_live_in_one_display(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REFRESH_S", 0)
    renderer = notebook.renderer()
    for step in range(5):
        for rank in (1, 0):
            renderer.message(stream(rank, f"\r{step * 25}%|bar", "stderr"))
    assert len(notebook.displays) == 1
    assert notebook.displays[0]["text/plain"] == "[0] 100%|bar\n[1] 100%|bar"
    renderer.message(stream(0, "\n", "stderr"))
    renderer.message(stream(0, "after\n"))
    renderer.message(stream(1, "\r100%|done\n", "stderr"))
    renderer.finish()
    assert notebook.displays == [{"text/plain": "[0] 100%|bar\n[1] 100%|done"}]
    assert notebook.stdout == "[0] after\n"
    assert notebook.all_text.count("100%") == 2, "a bar is not written a second time"


def test_the_next_bars_stand_below_what_was_written_since(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "REFRESH_S", 0)
    renderer = notebook.renderer()
    for epoch in range(2):
        renderer.message(stream(0, f"\repoch {epoch} 50%"))
        renderer.message(stream(0, f"\repoch {epoch} 100%\n"))
        renderer.message(stream(0, f"loss {epoch}\n"))
    renderer.finish()
    shown = [one[1] if one[0] == "stdout" else one[1]["text/plain"] for one in notebook.outputs]
    assert shown == ["[0] epoch 0 100%", "[0] loss 0\n", "[0] epoch 1 100%", "[0] loss 1\n"]


def test_text_without_an_end_is_shown_when_nothing_comes(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    renderer.message(stream(0, "working"))
    assert notebook.outputs == []
    renderer.idle()
    assert notebook.displays == [{"text/plain": "[0] working"}]
    renderer.message(stream(0, "... done\n"))
    renderer.finish()
    assert notebook.displays == [{"text/plain": "[0] working... done"}]
    assert notebook.stdout == ""


def test_text_without_an_end_is_shown_also_while_others_talk(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = notebook.renderer()
    renderer.message(stream(0, "dots"))
    renderer.message(stream(1, "line\n"))
    assert notebook.displays == [], "it may be the half of a line that was cut"
    monkeypatch.setattr(output, "UNFINISHED_S", 0)
    renderer.message(stream(1, "line\n"))
    assert notebook.displays == [{"text/plain": "[0] dots"}]


def test_a_bar_that_wipes_itself_away_leaves_nothing(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    renderer.message(stream(0, "\r 50%"))
    renderer.message(stream(0, "\r        \r"))
    renderer.message(stream(0, "next\n"))
    renderer.finish()
    assert "50%" not in notebook.all_text
    assert "next" in notebook.all_text


def test_windows_line_ends_and_cursor_moves(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    renderer.message(stream(0, "a\r\nb\x1b[A\x1b[K\n\x1b[31mred\x1b[0m\n"))
    renderer.finish()
    assert notebook.stdout == "[0] a\n[0] b\n[0] \x1b[31mred\x1b[0m\n"


def test_an_endless_line_does_not_grow_for_ever(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    for _ in range(20):
        renderer.message(stream(0, "x" * 10_000))
    renderer.finish()
    assert notebook.all_text.count("x") == 200_000
    assert max(map(len, notebook.stdout.splitlines())) <= output.LONGEST_LINE + 4


def test_displays_get_ids_of_their_own_for_each_rank(notebook: Notebook) -> None:
    renderer = notebook.renderer(prefix="g1")
    for rank in (0, 1):
        renderer.message(
            {
                "type": "display",
                "rank": rank,
                "data": {"image/png": f"png{rank}", "text/plain": "<Figure>"},
                "metadata": {},
                "transient": {"display_id": "same"},
                "update": False,
            }
        )
    renderer.message(
        {
            "type": "display",
            "rank": 1,
            "data": {"image/png": "new"},
            "transient": {"display_id": "same"},
            "update": True,
        }
    )
    assert [data["image/png"] for data in notebook.displays] == ["png0", "new"]
    assert len(set(notebook.ids)) == 2
    assert notebook.stdout == "[0]\n[1]\n"


def test_a_ranks_clear_replaces_its_own_display_only(notebook: Notebook) -> None:
    renderer = notebook.renderer()

    def show(rank: int, what: str) -> None:
        renderer.message({"type": "display", "rank": rank, "data": {"image/png": what}})

    show(0, "a0")
    show(1, "b0")
    for step in (1, 2):
        renderer.message({"type": "clear", "rank": 0, "wait": True})
        show(0, f"a{step}")
    assert [data["image/png"] for data in notebook.displays] == ["a2", "b0"]


def test_results_are_lines_or_displays(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    html = {"text/html": "<b>3</b>", "text/plain": "3"}
    renderer.message({"type": "result", "rank": 1, "data": html})
    renderer.message({"type": "result", "rank": 0, "data": {"text/plain": "1\n2"}})
    renderer.finish()
    assert notebook.stdout == "[0] 1\n[0] 2\n[1]\n"
    assert notebook.displays == [html]


def test_only_the_ranks_that_are_asked_for_are_shown_but_all_errors(notebook: Notebook) -> None:
    renderer = notebook.renderer(show={0})
    renderer.message(stream(0, "a\n"))
    renderer.message(stream(1, "b\n"))
    renderer.message({"type": "result", "rank": 1, "data": {"text/plain": "7"}})
    renderer.message({"type": "error", "rank": 1, "ename": "E", "evalue": "v", "traceback": []})
    renderer.finish()
    assert notebook.stdout == "[0] a\n"
    assert [error["rank"] for error in renderer.errors] == [1]


def test_a_single_worker_is_shown_as_a_kernel_is(notebook: Notebook) -> None:
    renderer = notebook.renderer(label=False)
    renderer.message(stream(0, "\r10%"))
    renderer.message(stream(0, "\r20%\nplain\n"))
    renderer.finish()
    assert notebook.stdout == "\r10%\r20%\nplain\n"


def test_unknown_messages_are_passed_over(notebook: Notebook) -> None:
    renderer = notebook.renderer()
    renderer.message({"type": "weather", "text": "sun"})
    renderer.message({})
    renderer.finish()
    assert notebook.outputs == []


def test_a_terminal_gets_one_rewritten_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "REFRESH_S", 0)

    class Shell:
        kernel = None

    renderer = Renderer(Shell())
    renderer.message(stream(0, "\r10%"))
    renderer.message(stream(1, "\r20%"))
    renderer.message(stream(0, "\r90%\n"))
    renderer.message(stream(1, "\r100%\n"))
    renderer.message({"type": "result", "rank": 0, "data": {"text/html": "x", "text/plain": "3"}})
    renderer.finish()
    screen: list[str] = [""]
    for part in out.getvalue().replace("\r\x1b[K", "\r").split("\n"):
        screen[-1] = part.split("\r")[-1]
        screen.append("")
    assert [line for line in screen if line] == ["[0] 90%", "[1] 100%", "[0] 3"]


def test_a_log_gets_whole_lines_only(capsys: pytest.CaptureFixture[str]) -> None:
    class Shell:
        kernel = None

    renderer = Renderer(Shell())
    for step in range(3):
        renderer.message(stream(0, f"\r{step}"))
        renderer.idle()
    renderer.message(stream(0, "\n"))
    renderer.finish()
    assert capsys.readouterr().out == "[0] 2\n"


def _error(rank: int, ename: str = "ValueError", evalue: str = "bad") -> dict[str, Any]:
    trace = ["Traceback", f"{ename}: {evalue}"]
    return {"rank": rank, "ename": ename, "evalue": evalue, "traceback": trace}


def test_a_failure_shows_one_traceback_and_names_the_others() -> None:
    error = PeerError([_error(1), _error(0), _error(2, "RuntimeError", "peer gone")])
    text = "\n".join(error._render_traceback_())
    assert text.count("Traceback") == 1
    assert text.startswith("rank 1 failed:\nTraceback\nValueError: bad")
    assert "The same on rank 0." in text
    assert "rank 2: RuntimeError: peer gone" in text
    assert str(PeerError([_error(1)])) == "rank 1: ValueError: bad"


def test_the_servers_words_about_a_rank_are_told_once() -> None:
    words = "Rank 2 was killed (signal 9)."
    error = PeerError([{"rank": 2, "ename": "RankDied", "evalue": words, "traceback": [words]}])
    assert error._render_traceback_() == [f"RankDied: {words}"]
