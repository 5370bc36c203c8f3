"""The hub's door to the GPU service: callers are who the hub says they are. Its page for people."""

from __future__ import annotations

import json
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.web import HTTPError, RedirectHandler

from ..server.api import ApiError, Caller
from .frame import Frame, content_policy
from .handlers import Handler, Route, routes
from .node import HUB, Hub
from .page import error_page
from .shown import Shown

GROUPS_PAGE = 200


class HubDoor(HubOAuthenticated):
    """Lets in the hub by its secret, and people and services by what the hub says of them."""

    secret: str
    caller: Caller
    node: Shown
    page = False
    """Whether people are sent to log in."""
    place = "this machine"
    """What has the GPUs, for people."""

    async def who(self) -> Caller | None:
        kind, _, secret = self.request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "gpuslice":
            if not compare_digest(secret.encode(), self.secret.encode()):
                raise ApiError(401, "unauthorized", "This is not the hub's secret.")
            return HUB
        # The base class asks the hub from get_current_user, which would block the loop.
        user = await self.hub_auth.get_user(self, sync=False)
        self.current_user = user
        if user is None:
            if self.page:
                self.redirect(self.get_login_url())
                return None
            raise ApiError(
                401, "unauthorized", "Say who you are.", "Send Authorization: token <hub token>."
            )
        allowed = self.hub_auth.check_scopes(self.hub_scopes, user)
        scraper = self.scrapers and "read:metrics" in user["scopes"]
        if not allowed or (user.get("kind") != "user" and not scraper):
            raise ApiError(
                403, "forbidden", f"{user.get('name')} may not use this service with that token."
            )
        admin = bool(user.get("admin")) and not any(
            # Code in an admin's notebook is not the admin: JupyterHub gives servers' tokens none
            # of their rights either.
            scope.startswith("access:servers!server=")
            for scope in user["scopes"]
        )
        return Caller(user["name"], admin=scraper or admin)

    async def still(self) -> bool:
        if isinstance(self.caller, Hub):
            return True
        auth = self.hub_auth
        try:
            # Past the cache, in which a token that was revoked is good for minutes yet.
            self._cached_hub_user = await auth.user_for_token(
                auth.get_token(self), use_cache=False, sync=False
            )
            return await self.who() == self.caller
        except ApiError:
            return False
        except HTTPError:
            return True  # the hub is away: it has taken nothing back

    async def learn_groups(self) -> None:
        self.node.groups = await hub_groups(self.hub_auth)

    def write_refusal(self, answer: ApiError) -> None:
        if "text/html" in self.request.headers.get("Accept", ""):
            # A person at a browser: programs ask for JSON, or for anything.
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.set_header("Content-Security-Policy", content_policy(self.hub_auth.hub_host))
            self.finish(error_page(answer.status, answer.message, answer.hint, self.frame()))
            return
        super().write_refusal(answer)

    def frame(self) -> Frame:
        """The frame of a page for whoever calls; nobody may have been found yet."""
        caller = getattr(self, "caller", Caller(""))
        auth = self.hub_auth
        hub = f"{auth.hub_host}{auth.hub_prefix}"
        return Frame(hub, auth.base_url, caller.user, caller.admin, self.place)


class Index(HubDoor, Handler):
    """The pool for people: all of it for admins, of the leases only their own for users."""

    page = True

    def get(self) -> None:
        self.set_header("Content-Security-Policy", content_policy(self.hub_auth.hub_host))
        token = self.xsrf_token.decode("ascii", "replace")
        self.finish(self.node.page(self.caller, self.frame(), token))


async def hub_groups(hub_auth: Any) -> dict[str, list[str]]:
    """The groups of all users, as the hub has them."""
    found: dict[str, list[str]] = {}
    client = AsyncHTTPClient()
    while True:
        query = urlencode({"offset": len(found), "limit": GROUPS_PAGE})
        try:
            response = await client.fetch(
                f"{hub_auth.api_url}/users?{query}",
                headers={"Authorization": f"token {hub_auth.api_token}"},
            )
        except (HTTPClientError, OSError) as error:
            raise ApiError(502, "hub", f"The hub does not tell its groups: {error}.") from error
        users = json.loads(response.body)
        found |= {user["name"]: list(user.get("groups", [])) for user in users}
        if len(users) < GROUPS_PAGE:
            return found


def hub_routes(prefix: str, node: Shown, secret: str) -> list[Route]:
    """All addresses of the hub's service under its prefix."""
    here = {"secret": secret, "place": node.place}
    door = type("HubDoor", (HubDoor,), here)
    index = type("Index", (Index,), here)
    oauth: Any = (f"{prefix}oauth_callback", HubOAuthCallbackHandler, {})
    slash: Any = (prefix.rstrip("/"), RedirectHandler, {"url": prefix})
    return [oauth, slash, (prefix, index, {"node": node}), *routes(prefix, node, door)]
