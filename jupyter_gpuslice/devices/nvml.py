"""Devices as NVIDIA's management library (NVML) tells of them, through ``nvidia-ml-py``."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pynvml

from .bounded import BoundedCalls, HungError
from .device import Device, DeviceUse, Health, ProcessUse
from .nodes import gpu_nodes, mig_nodes

T = TypeVar("T")

CONTEXT_MIB = 512
"""Kept free on each device for what CUDA takes outside any allocator: contexts, kernels' code."""

_MIB = 1 << 20
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
_UNANSWERABLE = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}
"""Errors that say that a question has no answer here, not that the device is in trouble."""

_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: 1,
    pynvml.NVML_TOPOLOGY_SINGLE: 2,
    pynvml.NVML_TOPOLOGY_MULTIPLE: 3,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: 4,
    pynvml.NVML_TOPOLOGY_NODE: 4,
}
FAR = 5
"""Nearness of devices on different sockets, or of which nothing is known."""


class NvmlSource:
    """The NVIDIA devices of this node: whole GPUs, and the MIG devices of GPUs in MIG mode.

    NVML is initialised with the first question, not at import. A question that the driver can't
    answer gives None, and trouble with one device never hides the others.

    Calls run in one thread of the source's own and are waited for ``patience`` seconds
    (``start_patience`` until NVML is initialised: where no other process keeps the GPUs awake, that
    takes seconds for each of them). When the driver hangs, `sample` says that every device's health
    is ``unknown`` and `devices` repeats what it last knew, both at once from then on; no further
    thread is spent, and all is well again when the driver comes back.

    ``allow`` picks which of the devices are offered. ``reserve_mib`` replaces the default reserve
    of each device: what the driver keeps for itself, and `CONTEXT_MIB`.
    """

    kind = "nvml"

    def __init__(
        self,
        reserve_mib: int | None = None,
        allow: Callable[[list[Device]], list[Device]] | None = None,
        patience: float = 3.0,
        start_patience: float = 30.0,
    ) -> None:
        self.note = ""
        self._reserve_mib = reserve_mib
        self._allow = allow
        self._calls = BoundedCalls("gpuslice-nvml", patience)
        self._start_patience = max(patience, start_patience)
        self._initialised = False
        self._known: list[Device] | None = None
        self._near: dict[frozenset[str], int] = {}
        self._seen: dict[str, int] = {}  # newest sample of processes' utilisation, µs

    # -- the DeviceSource interface ------------------------------------------------------------

    def devices(self) -> list[Device]:
        """GPUs in PCI order, each followed (in MIG mode: replaced) by its MIG devices.

        A GPU that was there before and is lost now stays in the list: `sample` says that it is
        lost. A MIG device that is gone while its GPU is well is gone.
        """
        try:
            return self._call(self._list)
        except HungError:
            self.note = "The NVIDIA driver does not answer."
            return list(self._known or [])

    def sample(self, holders: Mapping[str, Sequence[int]]) -> list[DeviceUse]:
        """Measure each device that `devices` listed last. The driver itself knows the processes:
        ``holders`` is not looked at. In a container their pids may be those of the host."""
        try:
            return self._call(self._sample)
        except HungError:
            return [DeviceUse(d.uuid, None, None, "unknown") for d in self._known or []]

    def nearness(self, a: str, b: str) -> int:
        if a == b:
            return 0
        pair = frozenset((a, b))
        if pair not in self._near:
            try:
                level = self._call(lambda: self._nearness(a, b))
            except HungError:
                level = None
            if level is None:
                return FAR
            self._near[pair] = level
        return self._near[pair]

    def driver_version(self) -> str | None:
        """Such as ``580.82.07``; None when there is no driver or it does not say."""
        try:
            return self._call(self._driver_version)
        except HungError:
            return None

    def mig_modes(self) -> dict[str, bool | None]:
        """UUID of each physical GPU → MIG mode on or off, None where the board has no MIG."""
        try:
            return self._call(self._mig_modes)
        except HungError:
            return {}

    def close(self) -> None:
        if self._initialised:
            with contextlib.suppress(HungError):
                self._calls(self._shut_down)
        self._calls.close()

    def _call(self, function: Callable[[], T]) -> T:
        return self._calls(function, None if self._initialised else self._start_patience)

    # -- all below runs in the source's own thread ---------------------------------------------

    def _ready(self) -> bool:
        if self._initialised:
            # Another user of NVML in this process may have shut it down once too often.
            if _code(pynvml.nvmlDeviceGetCount)[1] != pynvml.NVML_ERROR_UNINITIALIZED:
                return True
            self._initialised = False
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.note = _why_not(error)
            return False
        self._initialised = True
        self.note = ""
        return True

    def _shut_down(self) -> None:
        if self._initialised:
            self._initialised = False
            _ask(pynvml.nvmlShutdown)

    def _driver_version(self) -> str | None:
        return _text(_ask(pynvml.nvmlSystemGetDriverVersion)) if self._ready() else None

    def _list(self) -> list[Device]:
        before = {device.uuid: device for device in self._known or []}
        if not self._ready():
            return list(before.values())
        found: list[Device] = []
        left_out: list[str] = []
        present: set[str] = set()
        count = _ask(pynvml.nvmlDeviceGetCount)
        for index in range(count or 0):
            handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = _text(_ask(pynvml.nvmlDeviceGetUUID, handle)) if handle is not None else None
            if uuid is not None:
                present.add(uuid)
                found += self._of_gpu(index, uuid, handle, before, left_out)
        # The handle of a lost GPU can't be had any more: it (and its MIG devices) stays known.
        found += [d for d in before.values() if (d.parent or d.uuid) not in present]
        found.sort(key=lambda device: (device.pci or "", device.index or 0))
        self._known = self._allow(found) if self._allow else found
        self.note = self._note(found, left_out, len(present), (count or 0) - len(present))
        return list(self._known)

    def _note(self, found: list[Device], left_out: list[str], present: int, missing: int) -> str:
        if found and not self._known:
            return "The environment of this process hides this node's GPUs from it."
        if left_out:
            return f"Left out, since the driver does not tell their memory: {', '.join(left_out)}."
        if found:
            return ""
        if missing:
            return "The NVIDIA driver has lost the GPUs of this node."
        return (
            "The NVIDIA driver shows no GPU to this process, or GPUs in MIG mode without instances."
        )

    def _of_gpu(
        self,
        index: int,
        uuid: str,
        handle: Any,
        before: Mapping[str, Device],
        left_out: list[str],
    ) -> list[Device]:
        """The GPU itself, or the MIG devices that it is divided into."""
        mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
        pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
        minor = _ask(pynvml.nvmlDeviceGetMinorNumber, handle)
        gpu = Device(
            uuid,
            _text(_ask(pynvml.nvmlDeviceGetName, handle)) or "NVIDIA GPU",
            "gpu",
            0,
            index=index,
            numa=_numa(handle),
            pci=_text(pci.busId) if pci is not None else None,
            nodes=gpu_nodes(minor),
        )
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            device = self._with_memory(gpu, handle)
            if device is None and uuid in before:
                return [before[uuid]]  # in trouble just now: `sample` tells
            if device is None:
                left_out.append(gpu.name)
            return [device] if device else []
        total = _memory(handle)[0]
        devices = []
        for place in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            mig_uuid = (
                _text(_ask(pynvml.nvmlDeviceGetUUID, instance)) if instance is not None else None
            )
            if mig_uuid is None:
                continue
            name = _text(_ask(pynvml.nvmlDeviceGetName, instance)) or ""
            profile = _profile_in(name) or _profile_of(instance, total)
            device = self._with_memory(
                replace(
                    gpu,
                    uuid=mig_uuid,
                    name=name or f"{gpu.name} MIG {profile or ''}".strip(),
                    kind="mig",
                    index=place,
                    parent=uuid,
                    profile=profile,
                    nodes=mig_nodes(
                        minor,
                        _ask(pynvml.nvmlDeviceGetGpuInstanceId, instance),
                        _ask(pynvml.nvmlDeviceGetComputeInstanceId, instance),
                    ),
                ),
                instance,
            )
            device = device or before.get(mig_uuid)
            if device is None:
                left_out.append(name or mig_uuid)
            else:
                devices.append(device)
        return devices

    def _with_memory(self, device: Device, handle: Any) -> Device | None:
        total, reserved, _ = _memory(handle)
        if total is None:
            return None
        reserve = self._reserve_mib
        if reserve is None:
            reserve = CONTEXT_MIB + (reserved or 0)
        return replace(device, memory_mib=total, reserve_mib=min(reserve, total))

    def _mig_modes(self) -> dict[str, bool | None]:
        modes: dict[str, bool | None] = {}
        count = _ask(pynvml.nvmlDeviceGetCount) if self._ready() else 0
        for index in range(count or 0):
            handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = _text(_ask(pynvml.nvmlDeviceGetUUID, handle)) if handle is not None else None
            if uuid is not None:
                mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
                modes[uuid] = None if mode is None else mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        return modes

    # -- use -----------------------------------------------------------------------------------

    def _sample(self) -> list[DeviceUse]:
        if self._known is None:
            self._list()
        known = self._known or []
        if not self._ready():
            return [DeviceUse(device.uuid, None, None, "unknown") for device in known]
        return [self._use_of(device.uuid) for device in known]

    def _use_of(self, uuid: str) -> DeviceUse:
        # By UUID each time: the handle of a MIG device is stale once its instance is made anew.
        handle, code = _code(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if code:
            return DeviceUse(uuid, None, None, _health(code))
        (_, _, used), code = _memory_and_code(handle)
        health = _health(code)
        rates, code = _code(pynvml.nvmlDeviceGetUtilizationRates, handle)
        trouble = [code]
        processes = self._processes(uuid, handle, trouble, rates)
        if health == "lost" or "lost" in map(_health, trouble):
            return DeviceUse(uuid, None, None, "lost")
        if used is None and processes and all(p.used_mib is not None for p in processes):
            used = sum(p.used_mib or 0 for p in processes)
        return DeviceUse(
            uuid,
            used,
            int(rates.gpu) if rates is not None else None,
            health,
            processes,
        )

    def _processes(
        self, uuid: str, handle: Any, trouble: list[int], rates: Any
    ) -> tuple[ProcessUse, ...]:
        memory: dict[int, int | None] = {}
        for call in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            found, code = _code(call, handle)
            trouble.append(code)
            for process in found or ():
                used = process.usedGpuMemory
                mib = None if used is None else int(used) // _MIB
                # A process that computes and draws is in both lists with the same memory.
                earlier = memory.get(process.pid)
                memory[process.pid] = mib if earlier is None else max(earlier, mib or 0)
        busy = self._busy(uuid, handle) if memory else {}
        # Who has no sample while others have, or on an idle device, was seen to do nothing.
        others = 0 if busy or (rates is not None and rates.gpu == 0) else None
        return tuple(ProcessUse(pid, memory[pid], busy.get(pid, others)) for pid in sorted(memory))

    def _busy(self, uuid: str, handle: Any) -> dict[int, int]:
        """pid → SM utilisation (percent) since the last look."""
        since = self._seen.get(uuid, int((time.time() - 2) * 1e6))
        samples = _ask(pynvml.nvmlDeviceGetProcessUtilization, handle, since)
        if not samples:
            return {}
        self._seen[uuid] = max(int(sample.timeStamp) for sample in samples)
        values: dict[int, list[int]] = {}
        for sample in samples:
            if sample.pid and sample.timeStamp > since and sample.smUtil <= 100:
                values.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        return {pid: round(sum(shares) / len(shares)) for pid, shares in values.items()}

    # -- topology ------------------------------------------------------------------------------

    def _nearness(self, a: str, b: str) -> int | None:
        """None: not known now, ask again."""
        if not self._ready():
            return None
        one, other = (_ask(pynvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in (a, b))
        if one is None or other is None:
            return None
        divided = False
        gpus = []
        for handle in (one, other):
            parent = _ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
            divided = divided or parent is not None
            gpus.append(parent if parent is not None else handle)
        names = [_text(_ask(pynvml.nvmlDeviceGetUUID, gpu)) for gpu in gpus]
        if names[0] is not None and names[0] == names[1]:
            return 1
        if not divided and _nvlinked(*gpus):  # MIG devices have no NVLink
            return 0
        level, code = _code(pynvml.nvmlDeviceGetTopologyCommonAncestor, *gpus)
        if code:
            return FAR if code in _UNANSWERABLE else None
        return _LEVELS.get(level, FAR)


# -- questions -------------------------------------------------------------------------------------


def _code(call: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """The answer and 0, or None and NVML's error code."""
    try:
        return call(*arguments), 0
    except pynvml.NVMLError as error:
        return None, int(error.value)
    except pynvml.NVMLLibraryMismatchError:  # an old driver; it is no NVMLError
        return None, int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None when there is none."""
    return _code(call, *arguments)[0]


def _health(code: int) -> Health:
    if code == 0 or code in _UNANSWERABLE:
        return "ok"
    return "lost" if code in _LOST else "unknown"


def _text(value: Any) -> str | None:
    """Older releases of pynvml give bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _memory(handle: Any) -> tuple[int | None, int | None, int | None]:
    """Total, reserved by the driver, used by processes; MiB."""
    return _memory_and_code(handle)[0]


def _memory_and_code(handle: Any) -> tuple[tuple[int | None, int | None, int | None], int]:
    # Version 1 counts the driver's own share as used, version 2 tells them apart.
    info, code = _code(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if info is not None:
        return (info.total // _MIB, -(-info.reserved // _MIB), info.used // _MIB), 0
    if code not in _UNANSWERABLE:
        return (None, None, None), code
    info, code = _code(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if info is None:
        return (None, None, None), code
    return (info.total // _MIB, None, info.used // _MIB), 0


def _numa(handle: Any) -> int | None:
    """The NUMA node whose memory is nearest to the device."""
    words = _ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, 16, pynvml.NVML_AFFINITY_SCOPE_NODE)
    for place, word in enumerate(words or ()):
        if word:
            return place * 64 + (int(word) & -int(word)).bit_length() - 1
    return None


def _nvlinked(one: Any, other: Any) -> bool:
    status = _ask(pynvml.nvmlDeviceGetP2PStatus, one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if status is not None:
        return bool(status == pynvml.NVML_P2P_STATUS_OK)
    ends = [_link_ends(gpu) for gpu in (one, other)]
    if "switch" in ends[0] and "switch" in ends[1]:
        return True
    pci = _ask(pynvml.nvmlDeviceGetPciInfo, other)
    return pci is not None and _text(pci.busId) in ends[0]


def _link_ends(handle: Any) -> set[str | None]:
    """PCI addresses of the GPUs at the other ends of a GPU's links, ``switch`` for an NVSwitch."""
    ends: set[str | None] = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active, code = _code(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if code in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED):
            break  # no more links, or none at all
        if not active:
            continue
        kind = _ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.add("switch")
        else:
            remote = _ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is not None:
                ends.add(_text(remote.busId))
    return ends


def _profile_in(name: str) -> str | None:
    found = re.search(r"\bMIG\s+(\S+)\s*$", name)
    return found[1].lower() if found else None


def _profile_of(instance: Any, gpu_memory_mib: int | None) -> str | None:
    """A profile's name from an instance's size; NVIDIA counts memory in eighths of the board's."""
    attributes = _ask(pynvml.nvmlDeviceGetAttributes, instance)
    if attributes is None or not gpu_memory_mib:
        return None
    eighths = -(-int(attributes.memorySizeMB) * 8 // gpu_memory_mib)
    size = round(eighths * -(-gpu_memory_mib // 1024) / 8)
    return f"{attributes.gpuInstanceSliceCount}g.{size}gb"


def _why_not(error: pynvml.NVMLError) -> str:
    code = int(error.value)
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "No NVIDIA driver is installed (libnvidia-ml.so.1 was not found)."
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "The NVIDIA driver is not loaded."
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "The NVIDIA driver and its library differ in version: the node needs a reboot."
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return "This process may not talk to the NVIDIA driver."
    return f"The NVIDIA driver could not be started: {error}."
