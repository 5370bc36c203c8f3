"""A slice that changes is in place before the next cell."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpuslice import kernel as kernel_side
from jupyter_gpuslice.kernel import frameworks
from jupyter_gpuslice.kernel.slicefile import SliceFile, SliceHook, put_in_place

DEVICE = "SIM-0123456789abcdef"


def content(
    state: str | None, device: str = DEVICE, fraction: str = "0.2500", **more: Any
) -> dict[str, Any]:
    slices = [
        {
            "device": device,
            "memory_mib": 20480,
            "compute_percent": 25,
            "compute_cap_percent": 25,
        }
    ]
    holding = state in ("granted", "active")
    lease = {"id": "l", "request": "0.25", "state": state, "slices": slices if holding else []}
    return {
        "version": 1,
        "lease": lease if state else None,
        "env": {
            "CUDA_VISIBLE_DEVICES": device if holding else "",
            "JUPYTER_GPUSLICE_MEMORY_FRACTION": fraction if holding else None,
        },
        "message": "",
        **more,
    }


class Server:
    """Writes the file as the server does: replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "slice.json"

    def write(self, body: Any) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(body if isinstance(body, str) else json.dumps(body))
        os.replace(fresh, self.path)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_an_unchanged_file_is_read_once(server: Server) -> None:
    server.write(content("queued"))
    file = SliceFile(str(server.path))
    assert file.changed()
    assert not file.changed()
    server.write(content("queued"))
    assert file.changed()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_file_that_cannot_be_read_changes_nothing(server: Server, text: str) -> None:
    server.write(content("granted"))
    file = SliceFile(str(server.path))
    assert file.changed()
    server.write(text)
    assert not file.changed()
    assert file.holding
    server.path.unlink()
    assert not file.changed()


def test_variables_are_set_and_unset() -> None:
    os.environ["GONE"] = "x"
    put_in_place({"GONE": None, "NEVER": None, "THERE": "1"})
    assert "GONE" not in os.environ
    assert os.environ["THERE"] == "1"


def test_a_grant_is_told_once_and_put_in_place(server: Server) -> None:
    said: list[str] = []
    server.write(content("queued"))
    hook = SliceHook(str(server.path), said.append)
    hook.before_cell()
    assert said == []
    server.write(content("granted"))
    hook.before_cell()
    hook.before_cell()
    assert said == ["GPU slice granted: 0.25 of SIM-01234567… (20 GiB, 25 % compute)."]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == DEVICE
    server.write(content(None, message="The GPU slice of this kernel is expired. Its time ended."))
    hook.before_cell()
    assert said[1:] == ["The GPU slice of this kernel is expired. Its time ended."]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert "JUPYTER_GPUSLICE_MEMORY_FRACTION" not in os.environ


def test_what_the_server_had_to_say_at_the_start_is_told_with_the_first_cell(
    server: Server,
) -> None:
    said: list[str] = []
    server.write(content(None, message="This kernel starts without a GPU: too large."))
    hook = SliceHook(str(server.path), said.append)
    assert said == []
    hook.before_cell()
    hook.before_cell()
    assert said == ["This kernel starts without a GPU: too large."]


def test_after_cuda_began_a_move_needs_a_restart_and_is_told_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[bool] = []
    monkeypatch.setattr(frameworks, "cuda_user", lambda: "PyTorch")
    monkeypatch.setattr(frameworks, "apply_memory_fraction", lambda: applied.append(True))
    said: list[str] = []
    server.write(content("granted"))
    hook = SliceHook(str(server.path), said.append)
    server.write(content("granted", device="SIM-other"))
    hook.before_cell()
    hook.before_cell()
    assert len(said) == 1
    assert "PyTorch already uses CUDA" in said[0]
    assert "Restart the kernel" in said[0]
    assert hook.restart_needed
    assert applied == [], "a limit for another device is not put on this one"


def test_after_cuda_began_the_limit_on_the_same_device_is_applied(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[str] = []
    monkeypatch.setattr(frameworks, "cuda_user", lambda: "PyTorch")
    monkeypatch.setattr(
        frameworks, "apply_memory_fraction", lambda: applied.append(os.environ[frameworks.FRACTION])
    )
    server.write(content("granted"))
    hook = SliceHook(str(server.path), lambda text: None)
    server.write(content("granted", fraction="0.5000"))
    hook.before_cell()
    assert applied == ["0.5000"]
    assert not hook.restart_needed


def _top_level(folder: Path) -> Path:
    """The kernel side alone, under the name by which other environments' kernels load it."""
    top = folder / "path"
    top.mkdir()
    (top / "jupyter_gpuslice_kernel").symlink_to(Path(kernel_side.__file__).parent)
    return top


def test_in_a_real_kernel(kernel: Callable[..., Any], server: Server, tmp_path: Path) -> None:
    server.write(content("queued"))
    one = kernel({"JUPYTER_GPUSLICE_SLICE": str(server.path)}, _top_level(tmp_path))
    # Under both names, and twice.
    loaded = one.run(
        "%load_ext jupyter_gpuslice_kernel\n%load_ext jupyter_gpuslice\n"
        "%reload_ext jupyter_gpuslice_kernel"
    )
    assert loaded.errors == []
    assert loaded.stderr == ""
    look = "import os; print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    assert one.run(look).stdout == "''\n"
    server.write(content("granted"))
    said = one.run(look).stdout
    assert said.count("GPU slice granted") == 1
    assert said.endswith(f"'{DEVICE}'\n")
    assert (
        one.run(
            "import subprocess; print(subprocess.run('env', capture_output=True, "
            "text=True).stdout.count('SIM-0123'))"
        ).stdout
        == "1\n"
    )
    assert one.run("%unload_ext jupyter_gpuslice_kernel").errors == []
    server.write(content(None))
    assert one.run(look).stdout == f"'{DEVICE}'\n", "no longer looked at"
    assert "not found" in one.run("%gpu").stderr


def test_without_a_change_a_cell_costs_next_to_nothing(server: Server) -> None:
    server.write(content("granted"))
    hook = SliceHook(str(server.path))
    start = time.perf_counter()
    for _ in range(1000):
        hook.before_cell()
    assert (time.perf_counter() - start) / 1000 < 0.001
