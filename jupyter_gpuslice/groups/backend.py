"""Which communication backend a group uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..broker.explain import Refused
from ..broker.lease import Slice

BACKENDS = ("auto", "nccl", "gloo")


def choose(
    asked: str, slices: Sequence[Sequence[Slice]], probes: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """The backend and, if it is not NCCL although one might expect it, why.

    ``slices`` and what the ranks' environments can do (``probes``) come rank by rank.
    :class:`Refused` when what was asked for cannot work.
    """
    for rank, probe in enumerate(probes):
        if not probe.get("torch"):
            raise Refused(
                "no_torch",
                f"Rank {rank} cannot train: {probe.get('error') or 'it has no PyTorch.'}",
                "Install torch in the kernel's environment, or use %%gpu run for other code.",
            )
    why = _why_not_nccl(slices, probes)
    if asked == "nccl" and why:
        raise Refused("backend", f"NCCL cannot be used: {why}.", "Use --backend gloo, or auto.")
    if asked == "gloo" or why:
        if not all(probe.get("gloo") for probe in probes):
            raise Refused("backend", "This PyTorch has no gloo backend.")
        return "gloo", why if asked == "auto" else ""
    return "nccl", ""


def _why_not_nccl(slices: Sequence[Sequence[Slice]], probes: Sequence[Mapping[str, Any]]) -> str:
    if not all(probe.get("nccl") for probe in probes):
        return "this PyTorch has no NCCL"
    if not all(probe.get("cuda") for probe in probes):
        return "not every rank has a CUDA device"
    devices = [slice_.device for own in slices for slice_ in own]
    if len(set(devices)) < len(devices):
        return "ranks share a GPU, which NCCL refuses"
    return ""
