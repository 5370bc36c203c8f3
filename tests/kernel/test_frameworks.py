"""The memory limit reaches PyTorch whenever it comes, and never stands in its way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TORCH = """
from . import cuda
"""
CUDA = """
_queued = []
_on = False
limits = {}
def is_initialized():
    return _on
def device_count():
    return 2
def _lazy_call(callable, **kwargs):
    if _on:
        callable()
    else:
        _queued.append(callable)
def init():
    global _on
    _on = True
    for callable in _queued:
        callable()
def set_per_process_memory_fraction(fraction, device=None):
    limits[device] = fraction
emptied = 0
def empty_cache():
    global emptied
    emptied += 1
"""


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A package that is PyTorch as far as this goes: the real one has no CUDA here."""
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text(CUDA)
    return tmp_path


def run(code: str, path: Path | None = None, **environ: str) -> str:
    env = {**os.environ, **environ}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAD = "from jupyter_gpuslice.kernel import frameworks as f; f.watch_torch();"


@pytest.mark.parametrize("before", ["", "import torch;"])
def test_the_limit_holds_from_the_first_use_of_cuda(fake_torch: Path, before: str) -> None:
    code = f"{before}{HEAD}import torch; torch.cuda.init(); print(torch.cuda.limits)"
    assert run(code, fake_torch, JUPYTER_GPUSLICE_MEMORY_FRACTION="0.25") == "{0: 0.25, 1: 0.25}"


def test_what_counts_is_the_limit_when_cuda_begins(fake_torch: Path) -> None:
    code = f"""
    {HEAD}import torch, os
    os.environ[f.FRACTION] = "0.75"
    torch.cuda.init()
    os.environ[f.FRACTION] = "0.5"
    print(torch.cuda.limits[0], f.cuda_user(), f.apply_memory_fraction(), torch.cuda.limits[0])
    del os.environ[f.FRACTION]
    f.apply_memory_fraction()
    print(torch.cuda.limits[0])
    """
    out = run(code, fake_torch, JUPYTER_GPUSLICE_MEMORY_FRACTION="0.25")
    assert out == "0.75 PyTorch True 0.5\n1.0"


@pytest.mark.parametrize("fraction", ["", "much", "-1", "7"])
def test_a_limit_that_is_none_stops_nothing(fake_torch: Path, fraction: str) -> None:
    code = f"{HEAD}import torch; torch.cuda.init(); print(torch.cuda.limits)"
    assert run(code, fake_torch, JUPYTER_GPUSLICE_MEMORY_FRACTION=fraction) == "{}"


def test_the_import_leaves_no_trace(fake_torch: Path) -> None:
    code = f"""
    {HEAD}
    import sys, torch, inspect
    print(type(torch.cuda.__loader__).__name__, type(torch.cuda.__spec__.loader).__name__)
    print(sum("Torch" in type(x).__name__ for x in sys.meta_path))
    print("def init" in inspect.getsource(torch.cuda))
    """
    assert run(code, fake_torch).split() == ["SourceFileLoader", "SourceFileLoader", "0", "True"]


def test_a_torch_that_cannot_be_limited_is_imported_all_the_same(fake_torch: Path) -> None:
    (fake_torch / "torch" / "cuda" / "__init__.py").write_text("x = 1")
    code = f"{HEAD}import torch; print(torch.cuda.x, repr(f.cuda_user()))"
    assert run(code, fake_torch, JUPYTER_GPUSLICE_MEMORY_FRACTION="0.5") == "1 ''"


def test_a_torch_that_fails_to_import_fails_in_its_own_words(fake_torch: Path) -> None:
    (fake_torch / "torch" / "cuda" / "__init__.py").write_text("raise ImportError('no driver')")
    code = f"""
    {HEAD}
    for _ in range(2):
        try:
            import torch
        except ImportError as error:
            print(error)
    """
    assert run(code, fake_torch) == "no driver\nno driver"


def test_the_real_torch() -> None:
    pytest.importorskip("torch")
    code = f"""
    {HEAD}
    import torch
    print(sum(c[0].__name__ == "_limit_when_initialised" for c in torch.cuda._queued_calls))
    print(repr(f.cuda_user()), f.apply_memory_fraction())
    """
    out = run(code, JUPYTER_GPUSLICE_MEMORY_FRACTION="0.5")
    assert out == "1\n'' False"


def test_release_drops_the_traceback_that_holds_tensors(fake_torch: Path) -> None:
    code = f"""
    {HEAD}
    import sys, torch, weakref
    torch.cuda.init()
    class Tensor: pass
    def cell():
        x = Tensor()
        global alive
        alive = weakref.ref(x)
        raise ValueError
    try:
        cell()
    except ValueError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__
    print(alive() is not None)
    f.give_memory_back()
    print(alive() is None, torch.cuda.emptied)
    """
    assert run(code, fake_torch).split() == ["True", "True", "1"]
