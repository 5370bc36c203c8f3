"""Pure parts: what is said, what is shown, what completes."""

from __future__ import annotations

import ast
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from jupyter_gpuslice import kernel
from jupyter_gpuslice.kernel import arguments, status, words
from jupyter_gpuslice.kernel.completion import completions
from jupyter_gpuslice.kernel.groups import _normal

FOLDER = Path(kernel.__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_it_needs_ipython_and_the_standard_library_only(path: Path) -> None:
    """It is loaded in environments where this package is not, also older ones."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    allowed = {*sys.stdlib_module_names, "IPython"}
    optional = {"torch", "cloudpickle", "ipykernel"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "nothing outside this folder"
            names = [node.module or ""] if node.level == 0 else []
        else:
            continue
        for name in names:
            assert name.split(".")[0] in allowed | optional, name


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0, "0 MiB"), (512, "512 MiB"), (20480, "20 GiB"), (40448, "39.5 GiB")],
)
def test_memory(value: Any, text: str) -> None:
    assert words.memory(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (-3, "0 s"),
        (40, "40 s"),
        (720, "12 min"),
        (7200, "2 h"),
        (5400, "1.5 h"),
        (345600, "4 days"),
    ],
)
def test_duration(value: Any, text: str) -> None:
    assert words.duration(value) == text


def test_nothing_is_shown_that_is_not_known() -> None:
    pool = {
        "devices": [
            {
                "uuid": "GPU-1",
                "name": "H100",
                "kind": "gpu",
                "memory_mib": None,
                "free_mib": None,
                "free_percent": None,
                "used_mib": None,
                "utilization_percent": None,
                "health": "lost",
            }
        ],
        "isolation": None,
        "queue": [],
    }
    text = status.text(pool, [], [], "k")
    html = status.html(pool, [], [], "k")
    assert text.count("unknown") >= 5
    assert "None" not in text + html
    assert "lost" in text
    assert "lost" in html


def test_of_a_kernels_leases_the_one_that_was_asked_for_counts() -> None:
    def lease(request: str, held: bool) -> dict[str, Any]:
        holder = {"kind": "kernel", "id": "k"}
        return {"request": request, "holder": holder, "slices": [{}] if held else []}

    found = status.own_leases([lease("auto", False), lease("2", False)], "k")
    assert [each["request"] for each in found] == ["2", "auto"]
    found = status.own_leases([lease("2", False), lease("auto", True)], "k")
    assert [each["request"] for each in found] == ["auto", "2"]


def test_devices_of_one_name_are_told_apart() -> None:
    """Also in HTML, where a table of one row each is all that a reader has."""
    uuids = ["GPU-sim-1a2b3c4d-0000", "GPU-sim-99999999-0000", "GPU-5e6f7a8b-0000"]
    models = ["Simulated A100", "Simulated A100", "H100"]
    devices = [
        {"uuid": uuid, "name": name, "kind": "simulated"}
        for uuid, name in zip(uuids, models, strict=True)
    ]
    names = words.device_names({"devices": devices})
    assert list(names.values()) == [
        "Simulated A100 1a2b3c4d",
        "Simulated A100 99999999",
        "H100 (simulated)",
    ]
    html = status.html({"devices": devices, "queue": []}, [], [], "k")
    assert all(name in html for name in names.values())


def test_the_queue_of_a_session_is_not_the_hubs() -> None:
    pool = {"devices": [{"uuid": "GPU-1"}], "queue": [], "hub": "/services/gpuslice/"}
    for picture in (status.text, status.html):
        assert "Nobody is waiting in this session." in picture(pool, [], [], "k")
        assert "Nobody is waiting." in picture({**pool, "hub": None}, [], [], "k")


@pytest.mark.parametrize(
    ("devices", "requests"),
    [
        ([(40960, 50)], ["auto", "0.25", "0.5", "10GiB", "10GiB/50%"]),
        ([(8000, 100), (8000, 100)], ["auto", "0.25", "0.5", "1", "2", "2x0.5"]),
        ([], []),
    ],
)
def test_only_what_could_be_granted_is_offered(devices: Any, requests: list[str]) -> None:
    pool = {"devices": [{"memory_mib": m, "compute_percent": c} for m, c in devices]}
    assert arguments.possible_requests(pool) == requests


def test_a_pool_without_devices_says_why() -> None:
    pool = {"devices": [], "queue": [], "note": "NVML is not there."}
    assert "No GPU here. NVML is not there." in status.text(pool, [], [], "k")
    assert "No GPU here. NVML is not there." in status.html(pool, [], [], "k")


def test_everything_from_outside_is_escaped() -> None:
    bad = "<script>alert('x')</script>"
    holder = {"kind": "kernel", "id": "k", "name": bad, "user": bad}
    pool = {
        "devices": [{"uuid": bad, "name": bad, "kind": "gpu", "health": bad}],
        "isolation": bad,
        "note": bad,
        "queue": [{"request": bad, "position": 1, "holder": holder}],
        "session": {"entitled": {"text": bad}},
    }
    lease = {"request": bad, "state": "queued", "holder": holder, "slices": []}
    group = {"name": bad, "workers": 2, "request": bad, "state": bad, "backend": bad}
    html = status.html(pool, [lease], [group], "k", bad)
    tags: set[str] = set()

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.add(tag)

    Parser().feed(html)
    assert "script" not in tags
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("text", "ranks"), [("0,2", [0, 2]), ("0-2", [0, 1, 2]), ("3, 0-1", [0, 1, 3]), ("1,1", [1])]
)
def test_rank_lists(text: str, ranks: list[int]) -> None:
    assert arguments.rank_list(text) == ranks


@pytest.mark.parametrize(
    "word", ["0.5", "10GiB/50%", "2x0.5", "1g.10gb", "h100:auto", "auto", "none", "mig:3g.40gb"]
)
def test_requests_are_told_from_subcommands(word: str) -> None:
    assert arguments.looks_like_request(word)
    assert not any(arguments.looks_like_request(name) for name in arguments.LINE)


def test_options_may_stand_anywhere() -> None:
    for line in ("-n 4 1 --name g", "1 --name g -n 4", "--name=g -n4 1"):
        args = arguments.CELL["train"].parse_line(line.split())
        assert (args.workers, args.request, args.name) == (4, "1", "g")


def test_an_option_is_not_guessed_from_its_beginning() -> None:
    with pytest.raises(UsageError, match="did you mean --name"):
        arguments.CELL["train"].parse_line(["-n", "2", "--nam", "g"])


@pytest.mark.parametrize(
    ("a", "b"), [("1", "1.0"), (".5", "0.50"), ("1x0.5", "0.5"), ("H100:1", "h100:1.0")]
)
def test_one_request_in_two_spellings(a: str, b: str) -> None:
    assert _normal(a) == _normal(b)
    assert _normal(a) != _normal("2x0.5")


@pytest.mark.parametrize(
    ("line", "there", "not_there"),
    [
        ("%gpu ", {"request", "help"}, {"train", ""}),
        ("%%gpu ", {"train", "run", "0.5"}, {"request"}),
        ("%gpu request ", {"--wait", "0.5"}, {"--name"}),
        ("%gpu request 0.5 ", {"--wait", "--ttl"}, {"0.5"}),
        ("%gpu request 0.5 --wait ", {"--ttl"}, {"--wait"}),
        ("%%gpu train -n ", {"2"}, {"--name"}),
        ("%%gpu train -n 2 ", {"--name", "0.5"}, {"--nodes"}),
        ("%%gpu run --name ", {"g1", "g2"}, {"--show"}),
        ("%gpu push ", {"x", "--name"}, {"0.5"}),
        ("%gpu push x ", {"y"}, {"x"}),
        ("%%gpu 0.5 ", {"--fresh"}, {"--name"}),
        ("%gpu nonsense ", set(), {"--name"}),
    ],
)
def test_what_may_come_next(line: str, there: set[str], not_there: set[str]) -> None:
    found = completions(line, ["g1", "g2"], ["x", "y"], over_cell=line.startswith("%%"))
    assert there <= set(found)
    assert not not_there & set(found)
