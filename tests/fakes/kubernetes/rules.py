"""What the API server refuses, in its words: unknown fields, GPUs in parts, quotas."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import kubernetes_validate

from . import status
from .kinds import PODS, QUOTAS, Kind
from .store import Store

NEWEST = kubernetes_validate.latest_version()
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SCALES = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def quantity(text: Any) -> Decimal:
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]{0,2})", str(text))
    if match is None or match[2] not in _SCALES:
        raise status.bad_request(f"unable to parse quantity's suffix: {text}")
    return Decimal(match[1]) * _SCALES[match[2]]


def shown(amount: Decimal) -> str:
    """A quantity in its canonical form, as far as errors need it."""
    return str(int(amount)) if amount == int(amount) else f"{int(amount * 1000)}m"


def extended(resource: str) -> bool:
    return "/" in resource and not resource.startswith("kubernetes.io/")


def check(kind: Kind, body: dict[str, Any], strict: bool) -> None:
    name = (body.get("metadata") or {}).get("name", "")
    if name and not _NAME.fullmatch(name):
        raise status.invalid(
            kind,
            name,
            "metadata.name",
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric "
            "character",
        )
    if kind.schema and strict:
        _schema(kind, body)
    if kind is PODS:
        for number, container in enumerate(body["spec"].get("containers") or ()):
            _resources(name, f"spec.containers[{number}].resources", container)


def _schema(kind: Kind, body: dict[str, Any]) -> None:
    try:
        kubernetes_validate.validate(
            {**body, "apiVersion": kind.api_version, "kind": kind.name}, NEWEST, strict=True
        )
    except kubernetes_validate.ValidationError as error:
        path = ".".join(map(str, error.path))
        unknown = re.search(r"\('(\S+)' (?:was|were) unexpected\)", error.message)
        if unknown:
            field = f"{path}.{unknown[1]}".strip(".")
            raise status.bad_request(
                f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
                f'strict decoding error: unknown field "{field}"'
            ) from error
        raise status.bad_request(
            f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
            f"{path}: {error.message}"
        ) from error


def _resources(pod: str, field: str, container: dict[str, Any]) -> None:
    given = container.get("resources") or {}
    limits, requests = given.get("limits") or {}, given.get("requests") or {}
    for resource, amount in limits.items():
        if extended(resource) and quantity(amount) != int(quantity(amount)):
            words = f'Invalid value: "{shown(quantity(amount))}": must be an integer'
            raise status.invalid(PODS, pod, f"{field}.limits[{resource}]", words)
    for resource, amount in requests.items():
        if not extended(resource):
            continue
        if resource not in limits:
            raise status.invalid(
                PODS,
                pod,
                f"{field}.limits",
                "Required value: Limit must be set for non overcommitable resources",
            )
        if quantity(amount) != quantity(limits[resource]):
            limit = shown(quantity(limits[resource]))
            words = f'Invalid value: "{shown(quantity(amount))}": must be equal to {resource} '
            raise status.invalid(PODS, pod, f"{field}.requests", f"{words}limit of {limit}")


def wanted(pod: dict[str, Any]) -> dict[str, Decimal]:
    """What a pod asks for of each resource."""
    found: dict[str, Decimal] = {}
    for container in pod["spec"].get("containers") or ():
        given = container.get("resources") or {}
        asked = {**(given.get("limits") or {}), **(given.get("requests") or {})}
        for resource, amount in asked.items():
            found[resource] = found.get(resource, Decimal(0)) + quantity(amount)
    return found


def check_quota(store: Store, namespace: str, pod: dict[str, Any]) -> None:
    """ResourceQuota for ``requests.…`` of pods that have not ended."""
    asked = {f"requests.{name}": amount for name, amount in wanted(pod).items()}
    for quota in store.all(QUOTAS, namespace):
        for resource, most in (quota["spec"].get("hard") or {}).items():
            if resource not in asked:
                continue
            used = sum(
                (
                    wanted(other).get(resource.removeprefix("requests."), Decimal(0))
                    for other in store.all(PODS, namespace)
                    if other["status"].get("phase") not in ("Succeeded", "Failed")
                ),
                Decimal(0),
            )
            if used + asked[resource] > quantity(most):
                raise status.forbidden(
                    PODS,
                    pod["metadata"]["name"],
                    f"exceeded quota: {quota['metadata']['name']}, requested: "
                    f"{resource}={shown(asked[resource])}, used: {resource}={shown(used)}, "
                    f"limited: {resource}={shown(quantity(most))}",
                )
