"""A machine with GPUs for tests: an NVML library in C whose state is a file that tests write.

    def test_two_gpus(fake_nvml):                  # the fixture, see tests/fakes/nvml/fixtures.py
        gpu = fake_nvml.add("NVIDIA A100-SXM4-80GB", 81920)
        fake_nvml.add_process(gpu, pid=4711, used_mib=1000)
        source = NvmlSource()                      # unmodified pynvml, this process
        subprocess.run(..., env={**os.environ, **fake_nvml.env})   # and in others

Everything may be changed while processes look at it.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from ctypes import c_char, c_int32, c_uint32, c_uint64
from pathlib import Path

STATE_VARIABLE = "GPUSLICE_FAKE_NVML"
MAGIC = 0x4E564D4C
MAX_DEVICES, MAX_MIGS, MAX_PROCESSES, MAX_LINKS, MAX_FAULTS = 16, 8, 32, 18, 32
NOT_AVAILABLE = 0xFFFF_FFFF_FFFF_FFFF
NO_INSTANCE = 0xFFFF_FFFF
MIB = 1 << 20
MIG_UNKNOWN = 2  # a board that has no MIG

SINGLE_SWITCH, MULTIPLE_SWITCHES, HOST_BRIDGE, NUMA_NODE, SYSTEM = 10, 20, 30, 40, 50
SAME_BOARD = 0


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", c_uint32),
        ("type", c_uint32),
        ("instance", c_uint32),
        ("sm", c_uint32),
        ("used", c_uint64),
        ("name", c_char * 64),
    ]


class Link(ctypes.Structure):
    _fields_ = [
        ("active", c_uint32),
        ("remote_type", c_uint32),
        ("remote", c_int32),
        ("pad", c_uint32),
    ]


class Mig(ctypes.Structure):
    _fields_ = [
        ("present", c_uint32),
        ("instance", c_uint32),
        ("slices", c_uint32),
        ("pad", c_uint32),
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("total", c_uint64),
        ("reserved", c_uint64),
        ("used", c_uint64),
    ]


class Device(ctypes.Structure):
    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("total", c_uint64),
        ("reserved", c_uint64),
        ("used", c_uint64),
        ("gpu_utilization", c_uint32),
        ("memory_utilization", c_uint32),
        ("lost", c_uint32),
        ("mig_mode", c_uint32),
        ("bus", c_uint32),
        ("numa", c_int32),
        ("processes", c_uint32),
        ("samples", c_uint32),
        ("links", Link * MAX_LINKS),
        ("migs", Mig * MAX_MIGS),
        ("process", Process * MAX_PROCESSES),
    ]


class Fault(ctypes.Structure):
    _fields_ = [
        ("call", c_char * 64),
        ("device", c_int32),
        ("error", c_int32),
        ("slow_ms", c_uint32),
        ("hang", c_uint32),
        ("active", c_uint32),
        ("remaining", c_uint32),
    ]


class State(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint32),
        ("devices", c_uint32),
        ("driver", c_char * 80),
        ("topology", c_uint32 * MAX_DEVICES * MAX_DEVICES),
        ("p2p_nvlink", c_int32 * MAX_DEVICES * MAX_DEVICES),
        ("fault", Fault * MAX_FAULTS),
        ("calls", c_uint64),
        ("device", Device * MAX_DEVICES),
    ]


def build(folder: Path) -> Path:
    """Compile the library into ``folder``; the file's name is the one that pynvml loads."""
    library = folder / "libnvidia-ml.so.1"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    subprocess.run(["gcc", *flags, soname, "-o", str(library), str(source)], check=True)
    return library


class FakeNvml:
    """The state file: a machine that the library shows. Devices are named by their index."""

    def __init__(self, path: Path, library: Path, driver: str = "580.82.07") -> None:
        self.path = path
        self.library = library
        path.write_bytes(b"\0" * ctypes.sizeof(State))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = State.from_buffer(self._map)
        self.state.driver = driver.encode()
        for row in range(MAX_DEVICES):
            for column in range(MAX_DEVICES):
                self.state.topology[row][column] = SYSTEM
                self.state.p2p_nvlink[row][column] = -1
        self.state.magic = MAGIC

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment to see this machine."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), STATE_VARIABLE: str(self.path)}

    def add(
        self,
        name: str = "NVIDIA A100-SXM4-80GB",
        memory_mib: int = 81920,
        *,
        uuid: str | None = None,
        reserved_mib: int = 600,
        used_mib: int = 0,
        utilization: int = 0,
        numa: int = -1,
        mig: bool | None = False,
        samples: bool = True,
    ) -> int:
        """Add a GPU, give its index. ``mig`` None: a board without MIG; True: MIG mode is on."""
        index = self.state.devices
        device = self.state.device[index]
        device.uuid = (uuid or f"GPU-{index:08x}-0000-4000-8000-{index:012x}").encode()
        device.name = name.encode()
        device.total = memory_mib * MIB
        device.reserved = reserved_mib * MIB
        device.used = used_mib * MIB
        device.gpu_utilization = utilization
        device.mig_mode = MIG_UNKNOWN if mig is None else int(mig)
        device.bus = 0x10 + index
        device.numa = numa
        device.samples = int(samples)
        self.state.devices = index + 1
        return index

    def uuid(self, index: int) -> str:
        return self.state.device[index].uuid.decode()

    def set(
        self, index: int, *, used_mib: int | None = None, utilization: int | None = None
    ) -> None:
        """Change what a device reports."""
        if used_mib is not None:
            self.state.device[index].used = used_mib * MIB
        if utilization is not None:
            self.state.device[index].gpu_utilization = utilization

    def lose(self, index: int, lost: bool = True) -> None:
        """The device falls off the bus (or, with False, is back)."""
        self.state.device[index].lost = int(lost)

    def add_process(
        self,
        index: int,
        pid: int,
        used_mib: int | None = 0,
        *,
        graphics: bool = False,
        sm: int = 0,
        mig: int | None = None,
        name: str = "python",
    ) -> None:
        """A process on the device, on its MIG instance at place ``mig`` if that is given."""
        device = self.state.device[index]
        process = device.process[device.processes]
        process.pid = pid
        process.type = int(graphics)
        process.instance = NO_INSTANCE if mig is None else device.migs[mig].instance
        process.sm = sm
        process.used = NOT_AVAILABLE if used_mib is None else used_mib * MIB
        process.name = name.encode()
        device.processes += 1

    def clear_processes(self, index: int) -> None:
        self.state.device[index].processes = 0

    def add_mig(
        self,
        index: int,
        profile: str,
        memory_mib: int,
        *,
        used_mib: int = 0,
        uuid: str | None = None,
    ) -> str:
        """Make a MIG instance such as ``1g.10gb`` on a device in MIG mode; gives its UUID."""
        device = self.state.device[index]
        place = next(i for i in range(MAX_MIGS) if not device.migs[i].present)
        mig = device.migs[place]
        mig.uuid = (uuid or f"MIG-{index:08x}-0000-5000-8000-{place:012x}").encode()
        mig.name = f"{device.name.decode()} MIG {profile}".encode()
        mig.instance = 7 + place
        mig.slices = int(profile.split("g.")[0].split(".")[-1])
        mig.total = memory_mib * MIB
        mig.reserved = 0
        mig.used = used_mib * MIB
        mig.present = 1
        return mig.uuid.decode()

    def remove_mig(self, index: int, uuid: str) -> None:
        for mig in self.state.device[index].migs:
            if mig.uuid.decode() == uuid:
                mig.present = 0

    def connect(self, a: int, b: int, level: int) -> None:
        """Their common ancestor on PCIe: SAME_BOARD, SINGLE_SWITCH … SYSTEM."""
        self.state.topology[a][b] = self.state.topology[b][a] = level

    def nvlink(self, a: int, b: int, link: int = 0) -> None:
        """A direct NVLink between two devices, at place ``link`` on both."""
        for one, other in ((a, b), (b, a)):
            self.state.device[one].links[link] = Link(active=1, remote_type=0, remote=other)

    def nvswitch(self, *indices: int, link: int = 0) -> None:
        """Links from each of the devices to an NVSwitch."""
        for index in indices:
            self.state.device[index].links[link] = Link(active=1, remote_type=2, remote=-1)

    def p2p(self, a: int, b: int, status: int) -> None:
        """What the driver says to "do these two reach each other by NVLink": 0 is yes."""
        self.state.p2p_nvlink[a][b] = self.state.p2p_nvlink[b][a] = status

    def fault(
        self,
        call: str,
        error: int = 0,
        *,
        device: int = -1,
        slow_ms: int = 0,
        hang: bool = False,
        times: int = 0,
    ) -> None:
        """From now on the NVML function ``call`` (the C name; ``nvmlDevice*`` for several) fails
        with ``error`` (pynvml.NVML_ERROR_…), takes ``slow_ms``, or hangs until `mend`."""
        place = next(f for f in self.state.fault if not f.active)
        place.call = call.encode()
        place.error = error
        place.device = device
        place.slow_ms = slow_ms
        place.hang = int(hang)
        place.remaining = times
        place.active = 1

    def mend(self) -> None:
        """Take all faults away; calls that hang go on."""
        for fault in self.state.fault:
            fault.active = 0

    def calls(self) -> int:
        """How many NVML calls have been made on this machine."""
        return int(self.state.calls)
