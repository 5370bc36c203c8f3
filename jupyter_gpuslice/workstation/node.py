"""The pool of a machine whose accounts take their slices themselves, over a Unix socket."""

from __future__ import annotations

import logging
from typing import Any

from ..broker.lease import Holder, Lease
from ..broker.limits import Limits
from ..devices.process import Process
from ..hub.choice import ChoiceError, Profiles, Selection
from ..hub.node import Node
from ..hub.profiles import parse_profiles
from ..server.api import ApiError, Body, Caller, Holding
from ..server.grant import grant_of
from .peer import Peer, groups_called

log = logging.getLogger(__name__)

SHARE = "0.25"
"""What a session gets that does not say what it needs, where no profiles say it either."""


def anything(devices: int) -> Profiles:
    """The profiles of a machine without a file of them: everybody may have what there is."""
    profile = {
        "slug": "machine",
        "display_name": "The GPUs of this machine",
        "choices": [SHARE],
        "custom": True,
        "max": max(1, devices),
    }
    return parse_profiles({"profiles": [profile]})


class Workstation(Node):
    """A node whose sessions are the processes that ask: what they get ends with them."""

    profiles: Profiles

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups_of = groups_called

    async def start(self) -> None:
        """As a node, and free what this broker's end came between: granted, and to whom not yet
        written. Whoever asked asks again."""
        for lease in self.broker.leases():
            if not lease.processes and lease.holder.id.startswith(f"{lease.holder.user}//"):
                self.broker.release(lease.id, "The broker ended before it knew the holder.")
        await super().start()

    async def start_anew(self, caller: Caller, body: Any) -> tuple[int, dict[str, Any]]:
        """``POST leases``: 201 or 202, and the lease of the caller's own process.

        Who asks again, having lost the answer, gets the same one.
        """
        if not isinstance(caller, Peer) or caller.process is None:
            return await super().start_anew(caller, body)
        try:
            return self._start_anew(caller, caller.process, body)
        except ApiError as error:
            who = f"{caller.user}, process {caller.process.pid}"
            log.info("Refused to %s: %s (%s)", who, error.message, error.reason)
            raise

    def _start_anew(self, caller: Peer, process: Process, body: Any) -> tuple[int, dict[str, Any]]:
        chosen = self._chosen(caller, Body(body, "request"))
        if chosen.request.kind == "none":
            raise ApiError(400, "bad_request", "A lease on no GPU is no lease.")
        for lease in self.broker.leases():
            if lease.processes == (process,):
                if lease.holds and lease.request != chosen.request:
                    raise ApiError(
                        409,
                        "already_held",
                        f"This server has {lease.request} of the machine's GPUs already.",
                        "Start it anew to ask for something else.",
                        {"lease": lease.id},
                    )
                if lease.request == chosen.request:
                    return (202 if lease.state == "queued" else 201), self._view(lease, caller)
                self.broker.release(lease.id, f"{chosen.request} was asked for instead.")
        lease = self._lease_for(caller, process, chosen)
        return (202 if lease.state == "queued" else 201), self._view(lease, caller)

    def _lease_for(self, caller: Peer, process: Process, chosen: Selection) -> Lease:
        # Two slashes: no server of a hub is called so, or starting it would end this process.
        holder = Holder(
            "session", f"{caller.user}//{process.pid}", caller.user, f"process {process.pid}"
        )
        holding = Holding(holder, (process,))
        try:
            return self._ask(
                self._node,
                holding,
                chosen.request,
                True,
                chosen.ttl,
                chosen.terms.priority,
                chosen.terms.limits,
            )
        except Exception as error:
            raise ApiError.of(error) from error

    def _chosen(self, caller: Peer, fields: Body) -> Selection:
        """What the profiles give the caller for a request; nothing said is their default."""
        options: dict[str, Any] = {}
        try:
            if "request" in fields:
                request = fields.request("request")
                options["request"] = str(request)
                for profile in self.profiles.visible(caller.user, caller.groups):
                    if profile.gives(request):
                        options["profile"] = profile.slug
                        break
            return self.profiles.select(options, caller.user, caller.groups)
        except ChoiceError as error:
            raise ApiError(error.status, error.reason, error.message, error.hint) from error

    def limits_of(self, caller: Caller) -> Limits:
        """As the machine's own policies say; of a hub's users as the hub said."""
        if isinstance(caller, Peer):
            return self.profiles.terms(caller.user, caller.groups).limits
        return super().limits_of(caller)

    def grant(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        """``GET leases/{id}/grant``, for the session itself as well."""
        if not isinstance(caller, Peer):
            return super().grant(caller, lease_id)
        lease = self._own(caller, lease_id)
        if not lease.holds:
            raise ApiError(409, "wrong_state", f"The lease is {lease.state}.")
        return grant_of(lease, [m.device for m in self.broker.pool], self._near, "")
