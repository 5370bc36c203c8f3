"""What all dialects share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar

from ....request import GpuRequest
from ..cluster import Cluster
from ..patch import CannotExpressError, PodPatch

WITHOUT = PodPatch(environment={"NVIDIA_VISIBLE_DEVICES": "void"})
"""No GPU at all: many images say ``NVIDIA_VISIBLE_DEVICES=all``, and where NVIDIA's runtime is the
nodes' default a pod that asked for nothing would see every GPU (zero-to-jupyterhub-k8s#3000)."""


class SettingError(ValueError):
    """A setting of a dialect that cannot be; the text says what can."""


@dataclass(frozen=True)
class PodContext:
    """The pod that a request is for. Objects beside it are named after it."""

    name: str
    namespace: str = "default"
    container: str = "notebook"
    cluster: Cluster = field(default_factory=Cluster)


@dataclass(frozen=True)
class Dialect(ABC):
    """A stack's words. The fields of each are its settings."""

    name: ClassVar[str] = ""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Dialect:
        """From an admin's settings; :class:`SettingError` names what is wrong with them."""
        known = [each.name for each in fields(cls)]
        for name in settings:
            if name not in known:
                near = get_close_matches(str(name), known, n=1)
                raise SettingError(
                    f"The dialect {cls.name} has no setting {name!r}: "
                    + (f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}.")
                    if known
                    else f"The dialect {cls.name} has no settings."
                )
        return cls(**settings)

    def patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        """What the request adds to the pod; :class:`CannotExpressError` with what could be had."""
        if request.kind == "none":
            return WITHOUT
        if request.kind == "auto":
            raise CannotExpressError("auto is for kernels: a server asks for an amount.")
        try:
            return self._patch(request, pod)
        except CannotExpressError as error:
            # What a refusal names as the nearest may itself not be there with these settings.
            options = [*error.nearest, like(request, "1")]
            there = [option for option in dict.fromkeys(options) if self._can(option, pod)]
            raise CannotExpressError(error.message, there) from None

    def _can(self, text: str, pod: PodContext) -> bool:
        try:
            self._patch(GpuRequest.parse(text), pod)
        except CannotExpressError:
            return False
        return True

    @abstractmethod
    def _patch(self, request: GpuRequest, pod: PodContext) -> PodPatch:
        """The same for a request of an amount."""


def choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """:class:`SettingError` unless a setting is one of these."""
    if value not in allowed:
        raise SettingError(f"{name} is one of {', '.join(allowed)}, not {value!r}.")


def like(request: GpuRequest, unit: str, count: int | None = None) -> str:
    """Another amount for the same number of devices of the same model, as a request's text."""
    many = request.count if count is None else count
    model = f"{request.model}:" if request.model else ""
    if unit == "1":
        return f"{model}{many}"
    return f"{model}{many}x{unit}" if many > 1 else f"{model}{unit}"


def percent_of(request: GpuRequest) -> int:
    """A fraction as whole percent, rounded down: never more than what was asked for."""
    return int((request.fraction or 0) * 100)


def no_compute(request: GpuRequest, stack: str) -> None:
    """Refuse compute asked for by name where the stack cannot limit it."""
    if request.compute_percent is not None:
        memory = GpuRequest("memory", request.count, memory_mib=request.memory_mib)
        amount = str(memory) if request.model is None else f"{request.model}:{memory}"
        raise CannotExpressError(f"{stack} cannot give a share of compute.", [amount])


def no_mig(request: GpuRequest, stack: str, nearest: list[str]) -> None:
    """Refuse a MIG profile where the stack takes none by name."""
    if request.kind == "mig":
        raise CannotExpressError(f"{stack} takes no MIG profile by its name.", nearest)
