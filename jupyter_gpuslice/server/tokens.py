"""Capabilities for kernels and terminals: who carries one may do what it stands for, no more."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from .api import Caller


class TokenStore:
    """Random tokens, kept as digests alone: what leaks from here opens nothing."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._kernels: dict[str, bytes] = {}
        self._children: dict[str, set[str]] = {}
        self._session: bytes | None = None

    def for_kernel(self, kernel_id: str, parent: str | None = None) -> str:
        """A new token for a kernel; its earlier one is void.

        ``parent``: the kernel that started it, whose token then stands for this one too.
        """
        token = secrets.token_urlsafe(32)
        self._kernels[kernel_id] = _digest(token)
        if parent is not None:
            self._children.setdefault(parent, set()).add(kernel_id)
        return token

    def for_session(self) -> str:
        """A token of the session itself, for its terminals; there is one at a time."""
        token = secrets.token_urlsafe(32)
        self._session = _digest(token)
        return token

    def revoke(self, kernel_id: str) -> None:
        self._kernels.pop(kernel_id, None)
        self._children.pop(kernel_id, None)
        for children in self._children.values():
            children.discard(kernel_id)

    def caller(self, token: str) -> Caller | None:
        """Whose token this is."""
        digest = _digest(token)
        found = None
        # All are compared, so that the time tells nothing.
        for kernel_id, known in self._kernels.items():
            if hmac.compare_digest(known, digest):
                found = kernel_id
        if found is not None:
            return Caller(self._user, kernel=found, kernels=frozenset(self._below(found)))
        if self._session is not None and hmac.compare_digest(self._session, digest):
            return Caller(self._user)
        return None

    def _below(self, kernel_id: str) -> set[str]:
        found: set[str] = set()
        todo = [kernel_id]
        while todo:
            for child in self._children.get(todo.pop(), ()):
                if child not in found:
                    found.add(child)
                    todo.append(child)
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
