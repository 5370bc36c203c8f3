"""A cell whose ranks do not end, on a server that says nothing more."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.slow

GROUP = {
    "id": "g1",
    "name": "train",
    "state": "ready",
    "workers": 2,
    "request": "0.5",
    "backend": "gloo",
    "lease": "l",
    "kernel": "k",
    "ranks": [],
}


@pytest.fixture
def stuck(little: Any) -> Iterator[Any]:
    """The server's cell goes on until it is let go; ``left``: the kernel has gone away."""
    little.let_go = threading.Event()
    little.left = threading.Event()
    little.interrupts = 0
    little.started = threading.Event()

    def execute(handler: Any) -> None:
        handler.start_lines()
        handler.line({"type": "started", "ranks": [0, 1]})
        little.started.set()
        try:
            while not little.let_go.wait(0.05):
                handler.line({"type": "stream", "rank": 0, "name": "stdout", "text": "."})
            handler.line({"type": "stream", "rank": 0, "name": "stdout", "text": "end\n"})
            handler.line({"type": "done", "ok": False, "ranks": {}, "seconds": 1})
            handler.end_lines()
        except OSError:
            little.left.set()
            handler.close_connection = True

    def interrupt(handler: Any) -> None:
        little.interrupts += 1
        handler.answer(GROUP)

    little.on("GET", "groups", lambda handler: handler.answer({"groups": [GROUP]}))
    little.on("POST", "groups/g1/execute", execute)
    little.on("POST", "groups/g1/interrupt", interrupt)
    yield little
    little.let_go.set()


@pytest.fixture
def one(kernel: Callable[..., Any], stuck: Any) -> Any:
    kernel_ = kernel({"JUPYTER_GPUSLICE_URL": stuck.url, "JUPYTER_GPUSLICE_KERNEL_ID": "k"})
    kernel_.run("%load_ext jupyter_gpuslice")
    return kernel_


def plain(said: Any) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(said.errors[0]["traceback"]))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def seen(one: Any, text: str) -> None:
    """Wait until the notebook shows ``text``: the cell's answer is being read."""
    deadline = time.monotonic() + 20
    while True:
        message = one.client.get_iopub_msg(timeout=max(deadline - time.monotonic(), 0.01))
        if text in str(message["content"].get("data", "")):
            return


def test_an_interrupt_before_the_answer_leaves_and_the_server_hears(one: Any, stuck: Any) -> None:
    held = threading.Event()

    def silent(handler: Any) -> None:
        held.set()
        # Readable once the other end has closed.
        if not handler.connection.recv(1):
            stuck.left.set()
        handler.close_connection = True

    stuck.on("POST", "groups/g1/execute", silent)
    cell = one.start("%%gpu run\n1")
    assert held.wait(20)
    time.sleep(0.3)
    one.interrupt()
    said = one.wait(cell, 20)
    assert plain(said) == "KeyboardInterrupt: %gpu was interrupted."
    assert stuck.left.wait(20)


def test_the_first_interrupt_reads_on_to_the_end(one: Any, stuck: Any) -> None:
    cell = one.start("%%gpu run\n1")
    assert stuck.started.wait(20)
    seen(one, "[0] .")
    one.interrupt()
    until(lambda: stuck.interrupts == 1)
    time.sleep(0.5)
    stuck.let_go.set()
    said = one.wait(cell)
    assert plain(said) == "KeyboardInterrupt: the cell was interrupted on all its ranks."
    shown = said.of("update_display_data") or said.of("display_data")
    assert shown[-1]["data"]["text/plain"].endswith("end"), "what came after it is shown"


def test_the_second_interrupt_gives_up_with_words_and_lets_the_server_know(
    one: Any, stuck: Any
) -> None:
    cell = one.start("%%gpu run\n1")
    assert stuck.started.wait(20)
    seen(one, "[0] .")
    one.interrupt()
    until(lambda: stuck.interrupts == 1)
    time.sleep(0.3)
    one.interrupt()
    said = one.wait(cell, 20)
    assert "some ranks have not ended yet" in plain(said)
    assert "%gpu stop" in plain(said)
    assert stuck.left.wait(20)
    assert one.run("print('next')").stdout == "next\n"


def test_a_stream_that_breaks_off_fails_the_cell(one: Any, stuck: Any) -> None:
    def broken(handler: Any) -> None:
        handler.start_lines()
        handler.line({"type": "stream", "rank": 0, "name": "stdout", "text": "half"})
        handler.connection.shutdown(2)
        handler.close_connection = True

    stuck.on("POST", "groups/g1/execute", broken)
    said = one.run("%%gpu run\n1")
    assert "cannot be reached" in plain(said)
    assert said.stdout == "[0] half\n"

    def short(handler: Any) -> None:
        handler.start_lines()
        handler.end_lines()

    stuck.on("POST", "groups/g1/execute", short)
    assert "stopped answering in the middle" in plain(one.run("%%gpu run\n1"))
