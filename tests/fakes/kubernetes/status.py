"""Errors as the API server words them (k8s.io/apimachinery, pkg/api/errors)."""

from __future__ import annotations

from typing import Any

from .kinds import Kind


class StatusError(Exception):
    def __init__(self, code: int, reason: str, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details else {}),
            "code": code,
        }


def _details(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural}


def not_found(kind: Kind, name: str) -> StatusError:
    words = f'{kind.qualified} "{name}" not found'
    return StatusError(404, "NotFound", words, _details(kind, name))


def exists(kind: Kind, name: str) -> StatusError:
    words = f'{kind.qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", words, _details(kind, name))


def conflict(kind: Kind, name: str) -> StatusError:
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": the object has been '
        "modified; please apply your changes to the latest version and try again",
        _details(kind, name),
    )


def invalid(kind: Kind, name: str, field: str, why: str) -> StatusError:
    cause = {"reason": "FieldValueInvalid", "message": why, "field": field}
    return StatusError(
        422,
        "Invalid",
        f'{kind.name} "{name}" is invalid: {field}: {why}',
        {**_details(kind, name), "kind": kind.name, "causes": [cause]},
    )


def forbidden(kind: Kind, name: str, why: str) -> StatusError:
    words = f'{kind.qualified} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", words, _details(kind, name))


def bad_request(why: str) -> StatusError:
    return StatusError(400, "BadRequest", why)


def expired(version: int, oldest: int) -> StatusError:
    return StatusError(410, "Expired", f"too old resource version: {version} ({oldest})")
