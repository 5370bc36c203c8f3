"""The panel in a real kernel, fed by a real HTTP server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpuslice.widgets.feed import Feed, Picture

KERNEL_ID = "11112222-3333"


def pool(used: int | None, name: str = "A100") -> dict[str, Any]:
    return {
        "devices": [
            {
                "uuid": "SIM-1",
                "name": name,
                "kind": "simulated",
                "memory_mib": 40960,
                "free_mib": 20480,
                "compute_percent": 100,
                "free_percent": 50,
                "used_mib": used,
                "utilization_percent": None,
                "health": "ok",
                "leases": ["l1"],
            }
        ],
        "isolation": "simulated",
        "queue": [],
        "note": "",
        "session": {
            "entitled": {"memory_mib": 40960, "devices": 1, "text": "1 GPU"},
            "held": {"memory_mib": 20480, "percent": 50},
            "used": {"memory_mib": used, "percent": None},
        },
    }


LEASE = {
    "id": "l1",
    "request": "0.5",
    "state": "active",
    "holder": {"kind": "kernel", "id": KERNEL_ID, "user": "u", "name": ""},
    "slices": [
        {
            "device": "SIM-1",
            "memory_mib": 20480,
            "compute_percent": 50,
            "compute_cap_percent": 50,
        }
    ],
    "used": {"memory_mib": 7, "utilization_percent": None},
    "expires": None,
}


class Ticker:
    """A server whose pool moves every 100 ms; keeps the viewers it has."""

    def __init__(self, little: Any) -> None:
        self.little = little
        self.viewers = 0
        self.number = 0
        self.drop = threading.Event()
        self.stop = threading.Event()
        self.name = "A100"
        self.leases: list[Any] = [LEASE]
        little.on("GET", "pool", self._pool)
        little.on("GET", "leases", lambda handler: handler.answer({"leases": self.leases}))
        little.on("GET", "groups", lambda handler: handler.answer({"groups": []}))
        little.on("DELETE", "leases/l1", self._delete)

    def _pool(self, handler: Any) -> None:
        if "follow=1" not in handler.path:
            handler.answer(pool(1))
            return
        self.viewers += 1
        try:
            handler.start_lines()
            while not self.stop.is_set() and not self.drop.is_set():
                self.number += 1
                handler.line(pool(1000 + self.number, self.name))
                time.sleep(0.1)
            if self.drop.is_set():
                handler.connection.shutdown(2)
        except OSError:
            pass
        finally:
            self.viewers -= 1
            handler.close_connection = True

    def _delete(self, handler: Any) -> None:
        self.leases = []
        handler.answer({**LEASE, "state": "released", "slices": []})


@pytest.fixture
def ticker(little: Any) -> Iterator[Ticker]:
    ticker = Ticker(little)
    yield ticker
    ticker.stop.set()


@pytest.fixture
def notebook(kernel: Callable[..., Any], ticker: Ticker) -> Any:
    return kernel(
        {
            "JUPYTER_GPUSLICE_URL": ticker.little.url,
            "JUPYTER_GPUSLICE_TOKEN": "t",
            "JUPYTER_GPUSLICE_KERNEL_ID": KERNEL_ID,
        }
    )


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pictures(said: Any) -> list[tuple[int, str]]:
    """Places and values of the updates of the picture among all messages."""
    found = []
    for place, message in enumerate(said.all):
        if message["msg_type"] == "comm_msg":
            value = message["content"]["data"].get("state", {}).get("value", "")
            if "gpuslice-bar" in value:
                found.append((place, value))
    return found


MAKE = "from jupyter_gpuslice.widgets import GpuPanel; panel = GpuPanel(); panel"


@pytest.mark.slow
@pytest.mark.parametrize(
    "busy",
    [
        "import time; time.sleep(3)",
        "import time; t = time.time()\nwhile time.time() < t + 3: sum(range(1000))",
    ],
)
def test_it_moves_while_the_kernel_is_busy(notebook: Any, ticker: Ticker, busy: str) -> None:
    made = notebook.run(MAKE)
    assert made.errors == []
    assert any(
        "application/vnd.jupyter.widget-view+json" in c["data"] for c in made.of("execute_result")
    )
    said = notebook.run(busy)
    shown = pictures(said)
    assert len({value for _, value in shown}) >= 5
    assert "simulated" in shown[-1][1]
    assert "7 MiB" in shown[-1][1]
    # Nothing of it lands in the cell, or in any other.
    for message in said.all:
        assert message["msg_type"] not in ("display_data", "error", "stream"), message
    notebook.run("panel.close()")
    until(lambda: ticker.viewers == 0)
    after = notebook.run("import time; time.sleep(0.5)")
    assert pictures(after) == []


@pytest.mark.slow
def test_panels_share_one_viewer_and_it_comes_back(notebook: Any, ticker: Ticker) -> None:
    notebook.run("from jupyter_gpuslice.widgets import GpuPanel; ps = [GpuPanel() for _ in '123']")
    until(lambda: ticker.viewers == 1)
    notebook.run("ps[0].close(); ps[1].close()")
    assert ticker.viewers == 1
    ticker.drop.set()
    until(lambda: ticker.viewers == 0)
    ticker.drop.clear()
    until(lambda: ticker.viewers == 1)
    assert pictures(notebook.run("import time; time.sleep(2)"))
    notebook.close()
    until(lambda: ticker.viewers == 0)


@pytest.mark.slow
def test_what_comes_from_outside_is_escaped(notebook: Any, ticker: Ticker) -> None:
    ticker.name = "<img src=x onerror=alert(1)>"
    notebook.run(MAKE)
    said = notebook.run("import time; time.sleep(1)")
    _, value = pictures(said)[-1]
    assert "<img" not in value
    assert "&lt;img" in value


@pytest.mark.slow
def test_release_says_in_the_panel_what_it_did(notebook: Any, ticker: Ticker) -> None:
    notebook.run(MAKE)
    said = notebook.run("panel._release.click(); print(panel._said.value)")
    assert "Given back: 0.5." in said.stdout
    assert said.stdout.count("Given back") == 1, "not in the cell as well"
    assert ticker.leases == []
    said = notebook.run(
        "panel._amount.value = '<b>'; panel._resize.click(); print(panel._said.value)"
    )
    assert "&lt;b&gt;" in said.stdout or "no such thing" in said.stdout
    assert said.errors == []


@pytest.mark.slow
def test_without_a_server_it_says_so(kernel: Callable[..., Any]) -> None:
    one = kernel({"JUPYTER_GPUSLICE_URL": ""})
    said = one.run(f"{MAKE}\nimport time; time.sleep(1); print(panel._picture.value)")
    assert "not started under the GPU slice extension" in said.stdout
    assert said.errors == []


def test_ipywidgets_is_imported_only_when_a_widget_is_asked_for() -> None:
    code = (
        "import sys, jupyter_gpuslice.widgets as w; a = 'ipywidgets' in sys.modules;"
        "w.GpuPanel; print(a, 'ipywidgets' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True"]


def test_a_feed_without_a_server_tries_on_and_tells(little: Any) -> None:
    from jupyter_gpuslice.kernel.client import Client

    url = little.url
    told: list[Picture] = []
    feed = Feed(lambda: Client(url, "t"))
    feed.subscribe(told.append)
    until(lambda: bool(told))
    assert "no such thing" in told[0].problem
    ticker = Ticker(little)
    until(lambda: told[-1].pool is not None)
    assert told[-1].problem == ""
    feed.unsubscribe(told.append)
    until(lambda: ticker.viewers == 0)
    until(lambda: not any(t.name == "gpuslice-feed" for t in threading.enumerate()))
