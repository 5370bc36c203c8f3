"""Who may log in to the demo: a fixed list of names, each with a password made for this run."""

from __future__ import annotations

from secrets import compare_digest
from typing import Any

from jupyterhub.auth import Authenticator
from traitlets import Dict, Unicode


class DemoAuthenticator(Authenticator):
    """Names and passwords from the configuration. For the demo: passwords stand there in clear."""

    passwords = Dict(
        value_trait=Unicode(), key_trait=Unicode(), config=True, help="User name -> password."
    )

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        name = data["username"]
        expected = self.passwords.get(name, "")
        # compared even for an unknown name, so that the time taken tells nothing about names
        right = compare_digest(data["password"].encode(), expected.encode())
        return name if right and expected else None
