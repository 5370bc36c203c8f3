"""The magics in kernels of a real server with simulated devices."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def ok(said: Any) -> str:
    assert said.errors == [], said.errors
    return said.stdout


def trace(said: Any) -> str:
    assert len(said.errors) == 1
    text = "\n".join(said.errors[0]["traceback"])
    assert "/kernel/" not in text, "never a traceback of ours"
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def picture(said: Any) -> dict[str, str]:
    (display,) = said.of("display_data")
    return display["data"]


# Without a server of ours


def test_a_kernel_that_was_not_started_under_the_extension_says_so(
    kernel: Callable[..., Any],
) -> None:
    one = kernel({"JUPYTER_GPUSLICE_URL": ""})
    assert ok(one.run("%load_ext jupyter_gpuslice")) == ""
    for line in ("%gpu", "%gpu request 1", "%gpu peers", "%%gpu run\n1", "%%gpu 0.5\n1"):
        text = trace(one.run(line))
        assert "was not started under the GPU slice extension" in text
        assert "Install jupyter_gpuslice where your Jupyter Server runs" in text
    assert "Over a cell" in ok(one.run("%gpu help"))


def test_a_server_that_is_gone_is_told(kernel: Callable[..., Any], tmp_path: Path) -> None:
    url = f"http+unix://{str(tmp_path / 'gone.sock').replace('/', '%2F')}/gpuslice/api/v1"
    one = kernel({"JUPYTER_GPUSLICE_URL": url})
    one.run("%load_ext jupyter_gpuslice")
    assert "cannot be reached" in trace(one.run("%gpu"))


# Words for what cannot be meant


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%gpu reqest 0.5", "did you mean request?"),
        ("%gpu request", "Usage: %gpu request"),
        ("%gpu request 0.5 --wiat", "did you mean --wait?"),
        ("%gpu request 0.5 0.6", "one word too many"),
        ("%gpu 0.5", "%gpu request 0.5"),
        ("%gpu train -n 2", "write %%gpu train"),
        ("%gpu push 1x", "no name of a variable"),
        ("%gpu pull x --rank one", "ranks count from 0"),
        ("%gpu stop --name 'a b'", "no name of a group"),
        ("%gpu push 'x", "cannot be read"),
        ("%%gpu trian -n 2\n1", "did you mean train?"),
        ("%%gpu train\n1", "-n/--workers"),
        ("%%gpu train -n 0\n1", "1 to 1024 workers"),
        ("%%gpu train -n 2 --backend mpi\n1", "invalid choice"),
        ("%%gpu train -n 2 --show 5\n1", "ranks 0 to 1"),
        ("%%gpu run --ranks 2-0\n1", "counts backwards"),
        ("%%gpu release\n1", "takes no cell"),
        ("%%gpu\n1", "Say what for"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(
    notebook_for_words: Any, cell: str, words: str
) -> None:
    said = notebook_for_words.run(cell)
    assert words in said.stderr
    assert said.stderr.startswith("UsageError: ")
    assert "Traceback" not in said.stderr
    # The cell has failed: what comes after it in Run All does not run.
    assert said.status == "error"


@pytest.fixture(scope="module")
def notebook_for_words(jupyter: Any) -> Any:
    one = jupyter.kernel()
    ok(one.run("%gpu release"))  # what it holds by itself is wanted by other tests
    yield one
    one.close()


def test_a_request_that_is_none_is_refused_in_the_grammars_words(notebook: Any) -> None:
    text = trace(notebook.run("%gpu request 1.5"))
    assert "2x0.75" in text
    assert "Valid requests" in text


def test_several_nodes_are_refused_in_words(notebook: Any) -> None:
    text = trace(notebook.run("%%gpu train -n 2 --nodes 2\n1"))
    assert "Groups across nodes are not there yet" in text


def test_bad_syntax_is_found_before_anything_is_sent(notebook: Any) -> None:
    said = notebook.run("%%gpu train -n 2\nx = 1\nfor x in:\n  pass")
    text = trace(said)
    assert "SyntaxError" in text
    assert "for x in:" in text
    assert ":3" in text or "line 3" in text, "counted as in the notebook"
    assert said.stdout == ""
    assert ok(notebook.run("%gpu peers")).startswith("No groups")


# This kernel's own slice


def test_status_is_rich_and_says_what_is_simulated(notebook: Any) -> None:
    said = notebook.run("%gpu")
    ok(said)
    data = picture(said)
    assert "This kernel: Simulated A100-40GB" in data["text/plain"]
    assert "Isolation: simulated devices" in data["text/plain"]
    assert "simulated" in data["text/html"]
    assert "var(--jp-" in data["text/html"]
    assert "None" not in data["text/plain"]


def test_request_resize_release(notebook: Any, jupyter: Any) -> None:
    assert "holds 0.5 of Simulated A100-40GB" in ok(notebook.run("%gpu request 0.5 --ttl 2h"))
    visible = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    uuids = [d["uuid"] for d in jupyter.api("GET", "gpuslice/api/v1/pool")["devices"]]
    assert ok(notebook.run(visible)).strip() in uuids
    assert "ends in 2 h" in picture(notebook.run("%gpu"))["text/plain"]
    assert "Resize it, or release it first" in trace(notebook.run("%gpu request 0.25"))
    assert "holds 0.75" in ok(notebook.run("%gpu resize 0.75"))
    assert ok(notebook.run("%gpu release")) == "Given back: 0.75.\n"
    assert ok(notebook.run(visible)).strip() == ""
    assert ok(notebook.run("%gpu release")) == "This kernel holds no GPU slice.\n"
    assert "asks for one" in trace(notebook.run("%gpu resize 1"))


def test_why(notebook: Any, jupyter: Any) -> None:
    assert "Would fit now" in ok(notebook.run("%gpu why 3"))
    assert "0.5 fits now" in ok(notebook.run("%gpu why 0.5"))
    other = jupyter.kernel()
    try:
        ok(other.run("%gpu request 0.5"))
        assert ok(notebook.run("%gpu why 2")).count("position 1") == 1
    finally:
        other.close()


def test_a_refusal_says_what_would_fit_and_how_to_wait(notebook: Any, jupyter: Any) -> None:
    ok(notebook.run("%gpu release"))
    other = jupyter.kernel()
    try:
        ok(other.run("%gpu request 2"))
        text = trace(notebook.run("%gpu request 0.5"))
        assert "Add --wait to queue for it" in text
        # It waits, with its place, and is granted when the other gives back.
        waiting = notebook.start("%gpu request 0.5 --wait")
        time.sleep(1.5)
        ok(other.run("%gpu release"))
        said = notebook.wait(waiting)
        assert "Waiting for 0.5: place 1 in the queue" in ok(said)
        assert "This kernel holds 0.5" in said.stdout
    finally:
        other.close()


def test_an_interrupted_wait_stays_in_the_queue_and_its_grant_is_told(
    notebook: Any, jupyter: Any
) -> None:
    ok(notebook.run("%gpu release"))
    other = jupyter.kernel()
    try:
        ok(other.run("%gpu request 2"))
        waiting = notebook.start("%gpu request 0.5 --wait")
        time.sleep(1.5)
        notebook.interrupt()
        text = trace(notebook.wait(waiting))
        assert "stays in the queue" in text
        assert "waits for 0.5: place 1" in picture(notebook.run("%gpu"))["text/plain"]
        ok(other.run("%gpu release"))
    finally:
        other.close()
    said = ok(notebook.run("print('cell')"))
    assert re.fullmatch(
        r"GPU slice granted: 0\.5 of Simulated A100-40GB \w{8} \(.*\)\.\ncell\n", said
    )


CUDA = """
import sys, types
torch = types.ModuleType("torch"); torch.cuda = types.ModuleType("torch.cuda")
torch.cuda.is_initialized = lambda: True
torch.cuda.empty_cache = lambda: None
torch.cuda.device_count = lambda: 1
torch.cuda.set_per_process_memory_fraction = lambda f, d=None: print("limit", f)
sys.modules["torch"] = torch
"""


def test_after_cuda_began_a_restart_is_asked_for_beforehand(notebook: Any) -> None:
    ok(notebook.run("%gpu request 0.5"))
    ok(notebook.run(CUDA))
    text = trace(notebook.run("%gpu request 0.25"))
    assert "PyTorch already uses CUDA in this kernel" in text
    assert "Restart the kernel" in text
    said = ok(notebook.run("%gpu resize 0.25"))
    assert said.index("already uses CUDA") < said.index("holds 0.25")
    assert "stays on the device until the kernel restarts" in ok(notebook.run("%gpu release"))


# Peer groups


@pytest.fixture(scope="module")
def trained(jupyter: Any) -> Any:
    """A notebook with a warm group of two ranks."""
    one = jupyter.kernel()
    ok(one.run("%gpu release"))
    first = one.run("%%gpu train -n 2 0.25\nimport os\nrank = int(os.environ['RANK'])")
    assert first.errors == [], (first.errors, jupyter.log[-3000:])
    one.first = first
    yield one
    one.close()


def test_the_first_use_makes_the_group_and_says_so(trained: Any) -> None:
    assert "Asking for 2 workers with 0.25 each" in trained.first.stdout


def test_output_of_ranks_is_labelled_and_results_are_in_order(trained: Any) -> None:
    said = trained.run("%%gpu run\nprint('hello')\nrank * 10")
    lines = ok(said).splitlines()
    assert sorted(lines[:2]) == ["[0] hello", "[1] hello"]
    assert lines[2:] == ["[0] 0", "[1] 10"]


def test_the_process_group_is_there(trained: Any) -> None:
    code = "import torch.distributed as d\nx = [None] * 2\nd.all_gather_object(x, rank)\nx"
    assert ok(trained.run(f"%%gpu train -n 2\n{code}")).splitlines() == ["[0] [0, 1]", "[1] [0, 1]"]


def test_output_arrives_while_the_cell_runs(trained: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cell = trained.start(
        f"%%gpu run\nimport os, time\nprint('early', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\nprint('late')"
    )
    seen = ""
    deadline = time.monotonic() + 30
    while seen.count("early") < 2:
        assert time.monotonic() < deadline
        message = trained.client.get_iopub_msg(timeout=30)
        if message["msg_type"] == "stream":
            seen += message["content"]["text"]
    assert "late" not in seen
    gate.touch()
    assert trained.wait(cell).stdout.count("late") == 2


def test_some_ranks_and_some_shown(trained: Any) -> None:
    assert ok(trained.run("%%gpu run --ranks 1\nrank")) == "[1] 1\n"
    assert ok(trained.run("%%gpu run --show 0\nprint('x')")) == "[0] x\n"
    assert "ranks 0 to 1" in trained.run("%%gpu run --ranks 0,7\n1").stderr


def test_a_failing_rank_fails_the_cell_with_its_traceback_once(trained: Any) -> None:
    said = trained.run("%%gpu run\nif rank == 1:\n    raise ValueError('bad luck')\nprint('fine')")
    text = trace(said)
    assert said.errors[0]["ename"] == "PeerError"
    assert said.errors[0]["evalue"] == "rank 1: ValueError: bad luck"
    assert text.startswith("rank 1 failed:")
    assert text.count("Traceback") == 1
    assert "----> 3" in text, "lines are counted as in the notebook"
    assert "bad luck" not in said.stdout + said.stderr
    assert ok(trained.run("%%gpu run\nrank")) == "[0] 0\n[1] 1\n"


@pytest.mark.parametrize(
    "busy",
    [
        "import time; time.sleep(600)",
        "while True: pass",
        "import torch.distributed as d\n"
        "d.barrier() if rank == 0 else __import__('time').sleep(600)",
    ],
)
def test_an_interrupt_ends_the_cell_and_the_next_one_works(trained: Any, busy: str) -> None:
    cell = trained.start(f"%%gpu run\n{busy}")
    time.sleep(1.5)
    start = time.monotonic()
    trained.interrupt()
    said = trained.wait(cell)
    assert time.monotonic() - start < 15
    assert "KeyboardInterrupt" in trace(said)
    assert ok(trained.run("%%gpu run\n'rank' in dir()")).count("\n") == 2


def test_push_and_pull(trained: Any) -> None:
    ok(trained.run("%%gpu train -n 2\nrank = __import__('torch').distributed.get_rank()"))
    ok(trained.run("a, b = {'k': [1, 2]}, 'text'"))
    assert "Pushed a, b" in ok(trained.run("%gpu push a b"))
    ok(trained.run("%%gpu run\nc = (a['k'], b, rank)"))
    ok(trained.run("%gpu pull c"))
    assert ok(trained.run("print(c)")) == "[([1, 2], 'text', 0), ([1, 2], 'text', 1)]\n"
    ok(trained.run("%gpu pull c --rank 1"))
    assert ok(trained.run("print(c)")) == "([1, 2], 'text', 1)\n"
    assert "no variable 'nothing'" in trace(trained.run("%gpu pull nothing"))
    assert "There is no variable nothing" in trained.run("%gpu push nothing").stderr
    assert "cannot be pickled" in trace(trained.run("f = (i for i in [])\n%gpu push f"))
    assert "ranks 0 to 1" in trained.run("%gpu pull c --rank 9").stderr


def test_push_and_pull_of_megabytes(trained: Any) -> None:
    ok(trained.run("big = b'x' * (5 << 20)"))
    assert "Pushed big" in ok(trained.run("%gpu push big"))
    assert "5242880" in ok(trained.run("%%gpu run --ranks 0\nprint(len(big))"))
    ok(trained.run("%gpu pull big --rank 0"))
    ok(trained.run("huge = b'x' * (65 << 20)"))
    assert "64 MiB" in trace(trained.run("%gpu push huge"))


def test_rich_displays_of_ranks_do_not_overwrite_each_other(trained: Any) -> None:
    said = trained.run(
        "%%gpu run\nfrom IPython.display import HTML, display\n"
        "h = display(HTML(f'<b>{rank}</b>'), display_id='same')\nh.update(HTML(f'<i>{rank}</i>'))"
    )
    ok(said)
    first = {d["transient"]["display_id"]: d["data"]["text/html"] for d in said.of("display_data")}
    later = {
        d["transient"]["display_id"]: d["data"]["text/html"] for d in said.of("update_display_data")
    }
    assert sorted(first.values()) == ["<b>0</b>", "<b>1</b>"]
    assert {key: value.replace("b>", "i>") for key, value in first.items()} == later


def test_progress_bars_stay_in_one_display(trained: Any) -> None:
    said = trained.run(
        "%%gpu run\nimport sys, time\nfor i in range(5):\n"
        "    sys.stderr.write(f'\\r{i + 1}/5'); sys.stderr.flush(); time.sleep(0.1)\n"
        "sys.stderr.write('\\n');"
    )
    assert ok(said) == ""
    assert said.stderr == ""
    assert len(said.of("display_data")) == 1
    final = said.of("update_display_data")[-1]["data"]["text/plain"]
    assert final == "[0] 5/5\n[1] 5/5"


def test_another_shape_is_refused_and_fresh_makes_it(trained: Any) -> None:
    text = trace(trained.run("%%gpu train -n 1 0.25\n1"))
    assert "has 2 workers, not 1" in text
    assert "--fresh" in text
    text = trace(trained.run("%%gpu train -n 2 0.3\n1"))
    assert "slices of 0.25, not 0.3" in text
    assert ok(trained.run("%%gpu train -n 2 .25\nrank")).endswith("[0] 0\n[1] 1\n")
    said = ok(trained.run("%%gpu train -n 2 0.25 --fresh\n'rank' in dir()"))
    assert "its variables go with it" in said
    assert said.endswith("[0] False\n[1] False\n")
    ok(trained.run("%%gpu run\nimport os\nrank = int(os.environ['RANK'])"))


def test_peers_reset(trained: Any) -> None:
    said = ok(trained.run("%gpu peers"))
    assert said.startswith("train: 2 workers of 0.25")
    assert len(re.findall(r"^[01] +idle +\d+ +Simulated", said, re.M)) == 2
    assert "new process group" in ok(trained.run("%gpu reset"))
    assert ok(trained.run("%%gpu run\nrank")) == "[0] 0\n[1] 1\n"
    assert "There is train" in trace(trained.run("%gpu stop --name other"))


def test_completion_in_the_kernel(trained: Any) -> None:
    def complete(code: str) -> list[str]:
        reply = trained.client.complete(code, len(code), reply=True, timeout=30)
        start = reply["content"]["cursor_start"]
        return [code[:start] + match for match in reply["content"]["matches"]]

    assert complete("%gpu re") == ["%gpu release", "%gpu request", "%gpu reset", "%gpu resize"]
    assert complete("%%gpu t") == ["%%gpu train"]
    assert complete("%%gpu train -n 2 --b") == ["%%gpu train -n 2 --backend"]
    assert complete("%gpu stop --name t") == ["%gpu stop --name train"]
    assert complete("x = 1\n%gpu pe") == ["x = 1\n%gpu peers"]
    trained.run("weights = 1")
    assert complete("%gpu push wei") == ["%gpu push weights"]
    assert "%%gpu 0.5" in complete("%%gpu ")
    assert "%gpu why 2x0.5" in complete("%gpu why 2")
    assert complete("impor") == ["import"]


def test_a_warm_cell_is_fast(trained: Any) -> None:
    ok(trained.run("%%gpu run\npass"))
    said = trained.run(
        "import time, statistics\nts = []\nfor _ in range(30):\n    t = time.perf_counter()\n"
        "    get_ipython().run_cell_magic('gpu', 'run', 'pass')\n"
        "    ts.append(time.perf_counter() - t)\nprint(ts)"
    )
    times = [float(text) for text in re.findall(r"[\d.]+(?:e-\d+)?", ok(said))]
    # The goal is 25 ms; a machine that is busy with other tests gets more.
    assert statistics.quantiles(times, n=4)[0] < 0.1


def test_stop_gives_back_and_the_next_cell_starts_anew(trained: Any, jupyter: Any) -> None:
    assert "is stopped" in ok(trained.run("%gpu stop"))
    assert jupyter.api("GET", "gpuslice/api/v1/groups")["groups"] == []
    assert "This notebook has no group now" in trace(trained.run("%%gpu run\n1"))
    ok(trained.run("%%gpu train -n 1 0.25\nx = 1"))
    (group,) = jupyter.api("GET", "gpuslice/api/v1/groups")["groups"]
    jupyter.api("DELETE", f"gpuslice/api/v1/groups/{group['id']}")
    said = ok(trained.run("%%gpu train -n 1 0.25\n'x' in dir()"))
    assert "had ended" in said
    assert said.endswith("False\n")
    ok(trained.run("%gpu stop"))


def test_an_auto_slice_gives_way_to_the_group_and_comes_back(notebook: Any, jupyter: Any) -> None:
    assert "This kernel: Simulated" in picture(notebook.run("%gpu"))["text/plain"]
    said = ok(notebook.run("%%gpu train -n 2\n1"))
    assert "gave way to the group" in said
    assert said.endswith("[0] 1\n[1] 1\n")
    assert "waits for auto" in picture(notebook.run("%gpu"))["text/plain"]
    # Told at once, and not above the next cell, whatever that is about.
    assert "GPU slice granted: Simulated A100-40GB" in ok(notebook.run("%gpu stop"))
    assert ok(notebook.run("1")) == ""


def test_a_refused_group_says_what_this_kernel_itself_holds_and_no_wait_in_vain(
    notebook: Any,
) -> None:
    ok(notebook.run("%gpu request 1"))
    text = trace(notebook.run("%%gpu train -n 2 1\n1"))
    assert "This kernel itself holds 1: `%gpu release`" in text
    assert "1 worker as asked for" in text and "Add --wait" in text
    ok(notebook.run("%gpu release"))
    for cell in ("%%gpu train -n 9 1\n1", "%gpu request 3", "%%gpu train -n 2 h100:1\n1"):
        text = trace(notebook.run(cell))
        assert "never be granted here" in text
        assert "--wait" not in text and "itself holds" not in text


def test_a_restart_that_ends_groups_is_told(notebook: Any) -> None:
    ok(notebook.run("%%gpu train -n 2 0.25\n1"))
    notebook.restart()
    text = trace(notebook.run("%%gpu run\n1"))
    assert "has no group now" in text and "also when it is restarted" in text


def test_a_cell_with_a_slice_runs_in_a_warm_worker_that_keeps_its_names(notebook: Any) -> None:
    said = ok(notebook.run("%%gpu 0.5\nz = 4\nz"))
    assert "runs in a worker of its own" in said
    assert "%gpu pull x --name cell" in said
    assert said.endswith("\n4\n"), "without a rank before it"
    assert ok(notebook.run("%%gpu 0.5\nz + 1")) == "5\n"
    assert ok(notebook.run("%gpu pull z --name cell\nprint(z)")).endswith("4\n")
    assert "slices of 0.5, not 0.25" in trace(notebook.run("%%gpu 0.25\n1"))
    failed = notebook.run("%%gpu 0.5\n1 / 0")
    assert "rank" not in trace(failed)
    assert failed.errors[0]["evalue"] == "ZeroDivisionError: division by zero"
    ok(notebook.run("%gpu stop --name cell"))


def test_a_cell_holds_its_slice_only_while_it_runs(notebook: Any, jupyter: Any) -> None:
    def leases(kind: str) -> list[tuple[str, list[int]]]:
        found = jupyter.api("GET", "gpuslice/api/v1/leases")["leases"]
        return [
            (lease["state"], [part["compute_percent"] for part in lease["slices"]])
            for lease in found
            if lease["holder"]["kind"] == kind
        ]

    devices = "import os; print(bool(os.environ['CUDA_VISIBLE_DEVICES']))"
    assert ok(notebook.run(f"%%gpu 2\n{devices}")).endswith("True\n")
    assert leases("group") == [("parked", [])]
    # What the cell took of the kernel's own slice is back at once, and lent again next time.
    assert leases("kernel") == [("active", [100])]
    cell = notebook.start("%%gpu 2\nimport time; time.sleep(2)")
    deadline = time.monotonic() + 30
    while leases("group") != [("active", [100, 100])]:
        assert time.monotonic() < deadline, leases("group")
        time.sleep(0.05)
    ok(notebook.wait(cell))
    assert leases("group") == [("parked", [])]
    ok(notebook.run("%gpu stop --name cell"))
    assert leases("group") == []


def test_a_cell_waits_for_its_slice_and_an_interrupt_leaves_the_queue(
    notebook: Any, jupyter: Any
) -> None:
    ok(notebook.run("%%gpu 2\n1"))
    other = jupyter.kernel()
    try:
        ok(other.run("%gpu request 1"))
        cell = notebook.start("%%gpu 2\nprint('ran')")
        time.sleep(3)
        notebook.interrupt()
        said = notebook.wait(cell)
        assert "place 1 in the queue" in said.stdout
        assert "ran" not in said.stdout
        assert "KeyboardInterrupt" in trace(said)
        assert jupyter.api("GET", "gpuslice/api/v1/pool")["queue"] == []
        ok(other.run("%gpu release"))
        assert ok(notebook.run("%%gpu 2\nprint('ran')")).endswith("ran\n")
    finally:
        other.close()
        notebook.run("%gpu stop --name cell")
