from __future__ import annotations

import pytest

from jupyter_gpuslice.devices import Device, visible

GPUS = [Device(f"GPU-{c}{c}{c}0", f"gpu {c}", "gpu", 1000, index=i) for i, c in enumerate("abc")]
MIGS = [
    Device("MIG-1", "mig", "mig", 1000, parent="GPU-ddd0", index=0),
    Device("MIG-2", "mig", "mig", 1000, parent="GPU-ddd0", index=1),
]
ALL = [*GPUS, *MIGS]


def names(environ):
    return [device.uuid for device in visible(ALL, environ)]


A, B, C = (device.uuid for device in GPUS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [A, B, C, "MIG-1", "MIG-2"]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("NoDevFiles", []),
        ("void", []),
        ("0", [A]),
        ("2,0", [A, C]),
        (" 1 , 2 ", [B, C]),
        ("0,-1,2", [A]),
        ("0,17,2", [A]),
        ("1,1", [B]),
        (A, [A]),
        (f"{C},{A}", [A, C]),
        ("GPU-b", [B]),
        ("GPU-", []),
        ("GPU-zzz", []),
        (f"GPU-zzz,{A}", []),
        ("MIG-2", ["MIG-2"]),
        ("GPU-ddd0", ["MIG-1"]),
        ("3", ["MIG-1"]),
        ("garbage", []),
    ],
)
def test_cuda_visible_devices(text, expected):
    assert names({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", [A, B, C, "MIG-1", "MIG-2"]),
        ("", [A, B, C, "MIG-1", "MIG-2"]),
        ("void", [A, B, C, "MIG-1", "MIG-2"]),  # devices came by CDI
        ("3", [A, B, C, "MIG-1", "MIG-2"]),  # an index of the host, not of the container
        ("/var/run/nvidia-container-devices", [A, B, C, "MIG-1", "MIG-2"]),
        ("none", []),
        (B, [B]),
        (f"{B},MIG-2", [B, "MIG-2"]),
        ("GPU-ddd0", ["MIG-1", "MIG-2"]),
    ],
)
def test_nvidia_visible_devices(text, expected):
    assert names({"NVIDIA_VISIBLE_DEVICES": text}) == expected


def test_both_restrict():
    assert names({"NVIDIA_VISIBLE_DEVICES": f"{A},{B}", "CUDA_VISIBLE_DEVICES": f"{B},{C}"}) == [B]
