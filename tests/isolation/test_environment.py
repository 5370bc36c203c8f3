from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest

from jupyter_gpuslice.broker.lease import Slice
from jupyter_gpuslice.devices import Device, SimulatedSource
from jupyter_gpuslice.isolation.environment import (
    FRACTION_VARIABLE,
    installed_torch,
    memory_fraction,
    slice_environment,
)
from jupyter_gpuslice.isolation.levels import LEVELS

A = Device("GPU-a", "NVIDIA A100", "gpu", 80_000, reserve_mib=1000)
B = Device("GPU-b", "NVIDIA L4", "gpu", 20_000, reserve_mib=1000)
M = Device("MIG-m", "NVIDIA A100 MIG 1g.10gb", "mig", 9856, profile="1g.10gb", parent="GPU-c")
S = SimulatedSource("a100-80gb").devices()[0]


def part(device, memory_mib):
    return Slice(device.uuid, memory_mib, 50, 50)


LIMITS = (
    FRACTION_VARIABLE,
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "CUPY_GPU_MEMORY_LIMIT",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


@pytest.mark.parametrize(
    ("slices", "devices", "cuda", "nvidia", "fraction", "cupy_mib"),
    [
        ([part(A, 40_000)], [A, B], "GPU-a", "GPU-a", "0.5000", 40_000),
        ([part(A, 79_000)], [A, B], "GPU-a", "GPU-a", "0.9875", 79_000),
        ([part(A, 80_000)], [A], "GPU-a", "GPU-a", "1.0000", 80_000),
        ([part(B, 5000), part(A, 5000)], [A, B], "GPU-b,GPU-a", "GPU-b,GPU-a", "0.0625", 5000),
        ([part(A, 100), part(A, 100)], [A], "GPU-a", "GPU-a", "0.0012", 100),
        ([part(M, 9344)], [M], "MIG-m", "MIG-m", "0.9480", 9344),
        ([part(S, 40_704)], [S], S.uuid, "none", "0.4968", 40_704),
        ([part(A, 1)], [A], "GPU-a", "GPU-a", "0.0001", 1),
    ],
)
def test_a_slice(slices, devices, cuda, nvidia, fraction, cupy_mib):
    assert slice_environment(slices, devices, "framework") == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": cuda,
        "NVIDIA_VISIBLE_DEVICES": nvidia,
        FRACTION_VARIABLE: fraction,
        "XLA_CLIENT_MEM_FRACTION": fraction,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "CUPY_GPU_MEMORY_LIMIT": str(cupy_mib * 1024**2),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "PYTORCH_ALLOC_CONF": None,
        "PYTORCH_CUDA_ALLOC_CONF": None,
    }


def test_no_slice_hides_the_devices_and_takes_the_limits_back():
    env = slice_environment([], [A, B], "framework")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert {env[name] for name in LIMITS} == {None}


def test_where_there_are_no_devices_nothing_is_touched():
    assert slice_environment([], [], "watch") == {}


def test_every_call_names_the_same_variables():
    calls = [
        slice_environment(slices, [A, S], level.name, torch=torch)
        for slices in ([], [part(A, 1000)], [part(S, 1000)])
        for level in LEVELS
        for torch in (None, (2, 5), (2, 10))
    ]
    assert len({frozenset(call) for call in calls}) == 1


def test_watch_limits_nothing():
    env = slice_environment([part(A, 40_000)], [A], "watch", torch=(2, 12))
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert {env[name] for name in LIMITS} == {None}


def test_what_a_user_set_comes_back_without_a_slice():
    mine = {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".3",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "CUPY_GPU_MEMORY_LIMIT": "90%",
        "HOME": "/root",
    }
    env = slice_environment([], [A], "framework", environ=mine)
    assert {name: env[name] for name in mine if name in env} == {
        name: value for name, value in mine.items() if name != "HOME"
    }
    assert "HOME" not in env
    limited = slice_environment([part(A, 8000)], [A], "framework", environ=mine)
    assert limited["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.1000"
    assert limited["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("torch", [None, (1, 13), (2, 5), (2, 9)])
def test_an_older_torch_is_not_told_what_it_does_not_know(torch):
    env = slice_environment([part(A, 40_000)], [A], "framework", torch=torch)
    assert env["PYTORCH_ALLOC_CONF"] is None
    assert env["PYTORCH_CUDA_ALLOC_CONF"] is None
    assert env[FRACTION_VARIABLE] == "0.5000"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "per_process_memory_fraction:0.5000"),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            "max_split_size_mb:64,per_process_memory_fraction:0.5000",
        ),
        (
            {
                "PYTORCH_ALLOC_CONF": "expandable_segments:True,",
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
            },
            "expandable_segments:True,per_process_memory_fraction:0.5000",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.9, backend:native"},
            "backend:native,per_process_memory_fraction:0.5000",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:4],backend:native"},
            "roundup_power2_divisions:[256:1,512:2,>:4],backend:native,"
            "per_process_memory_fraction:0.5000",
        ),
    ],
)
def test_a_newer_torch_is_told_beside_what_the_user_set(before, after):
    env = slice_environment([part(A, 40_000)], [A], "framework", environ=before, torch=(2, 10))
    assert env["PYTORCH_ALLOC_CONF"] == env["PYTORCH_CUDA_ALLOC_CONF"] == after


def test_fractions_never_say_more_than_the_slice():
    for memory in range(8, 80_000, 977):
        text = memory_fraction([part(A, memory)], [A])
        assert 0 <= Fraction(memory, A.memory_mib) - Fraction(text) < Fraction(1, 10_000)


def packages(prefix, python, *names):
    folder = prefix / "lib" / python / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).mkdir()


def test_torch_is_found_by_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    python = tmp_path / "env" / "bin" / "python"
    assert installed_torch(python) is None
    packages(tmp_path / "env", "python3.11", "torchvision-0.20.0.dist-info")
    assert installed_torch(python) is None
    packages(tmp_path / "env", "python3.11", "torch-2.13.0+cpu.dist-info")
    assert installed_torch(python) == (2, 13)
    packages(tmp_path / "home" / ".local", "python3.11", "torch-2.4.1.dist-info")
    assert installed_torch(str(python)) == (2, 4)


def test_the_torch_here_takes_its_settings():
    """Not only this module's idea of it: the installed torch must start with what we set."""
    torch = pytest.importorskip("torch")
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert installed_torch(sys.executable) == version
    env = slice_environment([part(S, 40_000)], [S], "simulated", torch=version)
    code = "import torch; assert not torch.cuda.is_available(); print(torch.zeros(3).sum().item())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "0.0"
