"""The fake library against its own mirror in Python and against pynvml's structs."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from tests.fakes import nvml as fake


@pytest.mark.parametrize("name", ["State", "Device", "Mig", "Process", "Link", "Fault"])
def test_state_layout_is_the_same_in_c_and_python(fake_nvml_library, name):
    library = ctypes.CDLL(str(fake_nvml_library))
    library.fake_sizeof.restype = ctypes.c_size_t
    assert library.fake_sizeof(name.encode()) == ctypes.sizeof(getattr(fake, name))


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("Memory", pynvml.c_nvmlMemory_t),
        ("MemoryV2", pynvml.c_nvmlMemory_v2_t),
        ("Utilization", pynvml.c_nvmlUtilization_t),
        ("ProcessInfo", pynvml.c_nvmlProcessInfo_v3_t),
        ("UtilizationSample", pynvml.c_nvmlProcessUtilizationSample_t),
        ("PciInfo", pynvml.nvmlPciInfo_t),
        ("Attributes", pynvml.c_nvmlDeviceAttributes),
    ],
)
def test_structs_are_those_of_pynvml(fake_nvml_library, name, struct):
    library = ctypes.CDLL(str(fake_nvml_library))
    library.fake_sizeof.restype = ctypes.c_size_t
    assert library.fake_sizeof(name.encode()) == ctypes.sizeof(struct)


def test_memory_version_is_pynvmls():
    assert pynvml.nvmlMemory_v2 == 0x02000028


def test_a_fault_ends_after_its_times(fake_nvml):
    fake_nvml.add()
    fake_nvml.fault("nvmlDeviceGetCount*", pynvml.NVML_ERROR_UNKNOWN, times=2)
    pynvml.nvmlInit()
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlDeviceGetCount()
    assert pynvml.nvmlDeviceGetCount() == 1
    assert fake_nvml.calls() >= 3


def test_calls_before_init_are_refused(fake_nvml):
    fake_nvml.add()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetCount()
    assert caught.value.value == pynvml.NVML_ERROR_UNINITIALIZED


def test_process_names_and_the_index(fake_nvml):
    gpu = fake_nvml.add()
    fake_nvml.add_process(gpu, 4711, 10, name="train.py")
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetProcessName(4711) == "train.py"
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByIndex(0)) == 0
