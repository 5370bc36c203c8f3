from __future__ import annotations

import pytest

from jupyter_gpuslice.devices import Device, SimulatedSource, matches
from jupyter_gpuslice.devices.models import MODELS, nominal_gb


@pytest.mark.parametrize(
    ("model", "name", "mib", "expected"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB", 81920, True),
        ("a100", "NVIDIA A100-PCIE-40GB", 40960, True),
        ("A100", "NVIDIA A100-PCIE-40GB", 40960, True),
        ("a100-80gb", "NVIDIA A100-SXM4-80GB", 81920, True),
        ("a100-80gb", "NVIDIA A100-PCIE-40GB", 40960, False),
        ("a100-sxm4", "NVIDIA A100-SXM4-80GB", 81920, True),
        ("a100", "NVIDIA H100 80GB HBM3", 81559, False),
        ("h100", "NVIDIA H100 80GB HBM3", 81559, True),
        ("h100-80gb", "NVIDIA H100 PCIe", 81559, True),
        ("h100-94gb", "NVIDIA H100 NVL", 95830, True),
        ("h100-80gb", "NVIDIA H100 NVL", 95830, False),
        ("h100", "NVIDIA GH100X", 81559, False),
        ("h200", "NVIDIA GH200 480GB", 97871, False),
        ("a10", "NVIDIA A100-SXM4-80GB", 81920, False),
        ("a10", "NVIDIA A10G", 23028, False),
        ("a10-24gb", "NVIDIA A10", 23028, True),
        ("l40s-48gb", "NVIDIA L40S", 46068, True),
        ("t4-16gb", "Tesla T4", 15360, True),
        ("rtx4090", "NVIDIA GeForce RTX 4090", 24564, True),
        ("rtx-4090", "NVIDIA GeForce RTX 4090", 24564, True),
        ("geforce", "NVIDIA GeForce RTX 4090", 24564, True),
        ("b200-180gb", "NVIDIA B200", 183359, True),
        ("h200-141gb", "NVIDIA H200", 143771, True),
    ],
)
def test_matches(model, name, mib, expected):
    assert matches(model, Device("GPU-1", name, "gpu", mib)) is expected


def test_a_mig_device_is_of_its_gpus_model():
    mig = Device("MIG-1", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "mig", 40192, profile="3g.40gb")
    assert matches("a100", mig)
    assert matches("a100-80gb", mig)
    assert not matches("a100-40gb", mig)


@pytest.mark.parametrize("model", MODELS)
def test_simulated_models_match_their_own_name(model):
    (device,) = SimulatedSource(model).devices()
    assert matches(model, device)
    assert matches(model.rpartition("-")[0], device)
    others = [other for other in MODELS if matches(other, device)]
    assert others == [model]


def test_nominal_sizes():
    assert [nominal_gb(mib) for mib in (81559, 81920, 23034, 500 * 1024)] == [80, 80, 24, 500]
