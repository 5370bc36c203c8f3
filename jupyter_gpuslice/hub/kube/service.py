"""The hub's service where the cluster is the broker: it shows what was granted, and grants nothing.

The cluster is the ledger. Nothing is kept here: several services, or one that was restarted, show
the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from kubernetes_asyncio.client import ApiClient
from kubernetes_asyncio.config import ConfigException
from kubespawner.clients import load_config
from prometheus_client import CollectorRegistry

from ...broker.explain import Explanation
from ...broker.lease import Lease
from ...request import GpuRequest, RequestError
from ...server.api import ApiError, Body, Caller
from ...server.runtime import News
from ..availability import Availability
from ..frame import Frame
from ..node import _hub_only
from .detect import speak
from .dialects import Dialect, PodContext
from .dialects.dialect import SettingError
from .fit import UNKNOWN, fit, offer
from .metrics import ClusterMetrics
from .page import cluster_page
from .patch import CannotExpressError
from .session import Session, belongs, session_of
from .view import UNANSWERED, ClusterView

log = logging.getLogger("jupyter_gpuslice.hub")

AGAIN_SECONDS = 5.0
GATHER_SECONDS = 0.2
"""Changes that come so close together are told as one."""

Listener = Callable[[News], None]


@dataclass(frozen=True)
class KubeSettings:
    """What the spawner's configuration says of the cluster.

    ``hub`` is the namespace of the hub, ``namespace`` that of its servers' pods (``""``: each user
    has one). ``host``, ``ssl_ca_cert`` and ``verify_ssl`` are KubeSpawner's, of the API server.
    """

    hub: str
    namespace: str
    dialect: str = "auto"
    dialect_settings: Mapping[str, Any] | None = None
    container: str = "notebook"
    grows: bool = False
    host: str | None = None
    ssl_ca_cert: str | None = None
    verify_ssl: bool | None = None


class ClusterNode:
    """In place of :class:`~jupyter_gpuslice.hub.node.Node`, for a hub on Kubernetes: the same
    calls, answered from what the cluster's API shows."""

    place = "this cluster"

    def __init__(self, settings: KubeSettings, client: ApiClient | None = None) -> None:
        """``client``: of the API, where it is not the one that KubeSpawner would find; it is closed
        at the end."""
        self.streams: Counter[str] = Counter()
        self.groups: dict[str, list[str]] = {}
        self.metrics = CollectorRegistry()
        self._settings = settings
        self._view: ClusterView | None = None
        self._client = client
        self._problem = "The cluster has not been looked at yet."
        self._sessions: dict[str, Session] = {}
        self._shown: Any = None
        self._listeners: list[Listener] = []
        self._starting: asyncio.Task[None] | None = None
        self._telling: asyncio.TimerHandle | None = None
        ClusterMetrics(self, self.metrics)

    # Its life

    async def start(self) -> None:
        """Begin to look; an API that is away is asked again, and until then the page says so.

        JupyterHub would end with its service, and then nobody could log in.
        """
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        told = self._settings
        while True:
            view = None
            try:
                if self._client is None:
                    await asyncio.to_thread(
                        load_config, told.host, told.ssl_ca_cert, told.verify_ssl
                    )
                    self._client = ApiClient()
                view = ClusterView(self._client, told.namespace, self._moved)
                await view.start()
            except ConfigException as error:
                self._say("The hub does not know how to reach its cluster's API.", error)
            except UNANSWERED as error:
                self._say("The cluster's API does not answer.", error)
            except Exception as error:
                log.exception("The cluster cannot be read")
                self._say("What the cluster's API says cannot be read.", error)
            else:
                self._view, self._problem = view, ""
                self._sessions = self._now()
                held = sum(session.holds for session in self._sessions.values())
                log.info("Showing the cluster, where %s servers hold GPUs.", held)
                self._tell()
                return
            await asyncio.sleep(AGAIN_SECONDS)

    def _say(self, problem: str, error: Exception) -> None:
        if problem != self._problem:
            log.error("%s %s", problem, error)
        self._problem = problem

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._view is not None:
            await self._view.stop()
        if self._client is not None:
            await self._client.close()

    # What changes

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """News of leases and of the pool; what is returned ends them."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _moved(self) -> None:
        if self._telling is None and self._view is not None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._telling = None
        before, self._sessions = self._sessions, self._now()
        for id_, session in self._sessions.items():
            if before.get(id_) != session:
                self._hear(session)
        for id_, session in before.items():
            if id_ not in self._sessions and session.live:
                self._hear(_gone(session))
        shown = (self._items(), self._note())
        if shown != self._shown:
            self._shown = shown
            for listener in list(self._listeners):
                listener(News("pool"))

    def _hear(self, session: Session) -> None:
        # A session has what the readers of news use of a lease.
        news = News("lease", cast("Lease", session))
        for listener in list(self._listeners):
            listener(news)

    def _now(self) -> dict[str, Session]:
        found: dict[str, Session] = {}
        if self._view is None:
            return found
        facts = self._view.facts
        for pod in facts.pods:
            if belongs(pod, self._settings.hub, self._settings.namespace):
                session = session_of(pod, facts)
                if session is not None:
                    found[session.id] = session
        return dict(sorted(found.items(), key=lambda item: (item[1].created, item[0])))

    @property
    def sessions(self) -> Sequence[Session]:
        """All servers with a GPU that the cluster has, oldest first."""
        return list(self._sessions.values())

    @property
    def view_of_cluster(self) -> ClusterView | None:
        """The cluster; ``None`` until it was seen."""
        return self._view

    # Reading

    def pool(self, caller: Caller) -> dict[str, Any]:
        """``GET pool``: the nodes' GPUs, and what is free of them."""
        mine = [session for session in self.sessions if caller.owns(cast("Lease", session))]
        seen: dict[str, list[str]] = {}
        for session in mine:
            if session.holds:
                for device in self._devices_of(session):
                    seen.setdefault(device, []).append(session.id)
        own = [session for session in mine if session.holder.user == caller.user and session.holds]
        memory = _sum(part.memory_mib for session in own for part in session.parts)
        percent = _sum(part.compute_percent for session in own for part in session.parts)
        told = all(session.parts for session in own)
        nothing = {"memory_mib": None, "percent": None}
        return {
            "devices": [{**item, "leases": seen.get(item["uuid"], [])} for item in self._items()],
            "isolation": None,
            "queue": [
                self._waiting(session, caller)
                for session in self.sessions
                if session.state == "queued"
            ],
            "note": self._note(),
            "session": {
                "entitled": {"memory_mib": None, "devices": None, "text": None},
                "held": {"memory_mib": memory, "percent": percent} if told else nothing,
                "used": nothing,
            },
            "uses": {},
            "user": caller.user,
            "admin": caller.admin,
            "hub": None,
        }

    def _items(self) -> list[dict[str, Any]]:
        return [item.to_dict() for item in self._view.facts.items] if self._view else []

    def _devices_of(self, session: Session) -> set[str]:
        """The pool's devices that a session has something of."""
        named = {part.device for part in session.parts}
        # Where single devices are not told, what is known is the node and what it counts.
        counted = {f"{session.node}/{resource}" for resource, _ in session.resources}
        return named or counted

    def _waiting(self, session: Session, caller: Caller) -> dict[str, Any]:
        mine = caller.owns(cast("Lease", session))
        nobody = {"kind": "session", "id": None, "user": None, "name": None}
        return {
            "id": session.id if mine else None,
            "request": session.request,
            "workers": 1,
            # In which order the cluster's scheduler takes them it does not say.
            "position": None,
            "estimate_s": None,
            "holder": session.holder.to_dict() if mine else nobody,
        }

    def _note(self) -> str:
        view = self._view
        if view is None:
            return self._problem
        said = []
        if view.behind:
            said.append("The cluster's API does not answer: this is what was seen last.")
        if not view.reads_pods:
            said.append("The hub may not read the cluster's pods, so nothing is known of servers.")
        elif not view.facts.everywhere:
            said.append(
                "What is free is unknown: the hub may not read all nodes and pods of the cluster."
            )
        elif not view.facts.items:
            said.append("No node of this cluster offers a GPU.")
        return " ".join(said)

    def leases(self, caller: Caller) -> list[dict[str, Any]]:
        """``GET leases``: of those that have not ended the caller's."""
        self._seen()
        return [
            session.to_dict()
            for session in self.sessions
            if session.live and caller.owns(cast("Lease", session))
        ]

    def lease(self, caller: Caller, lease_id: str) -> dict[str, Any]:
        """``GET leases/{id}``: also of a pod that has ended, while the cluster keeps it."""
        return self._own(caller, lease_id).to_dict()

    def view(self, lease: Any, caller: Caller) -> dict[str, Any]:
        """A session as the caller, who owns it, may see it."""
        return cast("Session", lease).to_dict()

    def explain(self, caller: Caller, body: Any) -> dict[str, Any]:
        """``POST explain``: whether the cluster could start it now, as far as that is known."""
        fields = Body(body, "request", "workers", "holder")
        request = fields.request("request")
        if fields.count("workers") > 1:
            raise ApiError(
                400,
                "bad_request",
                "A server is one pod: several workers start in it, or in several servers.",
                "Ask about the request of one.",
            )
        explanation = self._explained(request)
        if explanation is not None:
            return explanation.to_dict()
        return {
            "fits": None,
            "reason": "unknown",
            "message": UNKNOWN,
            "hint": "Start the server: the cluster places it when it has room.",
            "never": False,
            "would_fit": [],
            "position": None,
            "estimate_s": None,
        }

    def _explained(self, request: GpuRequest) -> Explanation | None:
        view = self._seen()
        if request.kind == "none":
            return Explanation(True, "fits", "A server without a GPU needs none that is free.")
        if request.kind == "auto":
            raise ApiError(400, "bad_request", "auto is for kernels: a server asks for an amount.")
        try:
            patch = self._dialect(view).patch(request, self._context(view))
        except CannotExpressError as error:
            nearest = error.nearest
            return Explanation(False, "cannot_express", error.message, error.hint, True, nearest)
        return fit(request, patch, view.facts, self._settings.grows).explanation()

    def availability(
        self, caller: Caller, requests: Iterable[str], user: str = ""
    ) -> dict[str, Any]:
        """``GET availability``, for the hub alone; the spawner looks for itself."""
        _hub_only(caller)
        view = self._seen()
        try:
            parsed = [GpuRequest.parse(text) for text in requests]
        except RequestError as error:
            raise ApiError.of(error) from error
        dialect, pod = self._dialect(view), self._context(view)
        grows = self._settings.grows
        offers = {str(each): offer(each, dialect, pod, view.facts, grows) for each in parsed}
        return Availability(offers, note=self._note()).to_dict()

    def page(self, caller: Caller, frame: Frame, token: str) -> str:
        """The page for people, which is there also while the cluster is not."""
        leases = self.leases(caller) if self._view is not None else []
        return cluster_page(self.pool(caller), leases, frame, token)

    # What is not done here

    def usage(self, caller: Caller, by: str) -> NoReturn:
        """``GET usage``: refused, since the API keeps no history and this service nothing."""
        raise ApiError(
            409,
            "not_supported",
            "How long servers held GPUs is not known here: the cluster keeps no history of it.",
            "Its monitoring has it; this service's metrics show what is held now.",
        )

    def operate(self, caller: Caller, body: Any) -> NoReturn:
        """``PATCH pool``: refused."""
        if not caller.admin:
            raise ApiError(403, "forbidden", "Only an admin may take GPUs out of service.")
        raise ApiError(
            409,
            "not_supported",
            "GPUs of a cluster are taken out of service by its own administration.",
            "`kubectl cordon` and `kubectl drain` do it for a node.",
        )

    async def start_anew(self, caller: Caller, body: Any) -> NoReturn:
        """``POST leases``: refused."""
        raise ApiError(
            409,
            "not_supported",
            "The cluster grants GPUs, to servers that start.",
            "Choose a profile on the hub's spawn page.",
        )

    def change(self, caller: Caller, lease_id: str, body: Any) -> NoReturn:
        """``PATCH leases/{id}``: refused."""
        self._own(caller, lease_id)
        raise ApiError(
            409,
            "not_supported",
            "What a pod was granted cannot be changed.",
            "Stop the server and start it with another profile.",
        )

    async def end(self, caller: Caller, lease_id: str) -> NoReturn:
        """``DELETE leases/{id}``: refused."""
        session = self._own(caller, lease_id)
        raise ApiError(
            409,
            "not_supported",
            "The cluster holds this GPU for a server."
            if session.holds
            else "This server waits in the cluster's queue, not in one of the hub.",
            "Stop the server: what it has is free when its pod is gone.",
        )

    def activate(self, caller: Caller, lease_id: str, body: Any) -> NoReturn:
        """``PUT leases/{id}/processes``: refused."""
        _hub_only(caller)
        raise ApiError(409, "not_supported", "A pod holds its GPUs until it ends.")

    def grant(self, caller: Caller, lease_id: str) -> NoReturn:
        """``GET leases/{id}/grant``: refused."""
        _hub_only(caller)
        raise ApiError(409, "not_supported", "A pod's grant is what its containers see.")

    # Parts of these

    def _seen(self) -> ClusterView:
        if self._view is None:
            raise ApiError(503, "starting", self._problem, "It is asked again every few seconds.")
        return self._view

    def _own(self, caller: Caller, lease_id: str) -> Session:
        self._seen()
        session = self._sessions.get(lease_id)
        if session is None:
            raise ApiError(404, "not_found", "There is no such lease.")
        if not caller.owns(cast("Lease", session)):
            raise ApiError(403, "not_owner", "This lease is not yours.")
        return session

    def _context(self, view: ClusterView) -> PodContext:
        told = self._settings
        return PodContext("server", told.namespace or told.hub, told.container, view.cluster)

    def _dialect(self, view: ClusterView) -> Dialect:
        told = self._settings
        try:
            found = speak(told.dialect, told.dialect_settings or {}, view.cluster)
        except (SettingError, TypeError) as error:
            log.error("c.GpuSliceKubeSpawner.dialect_settings: %s", error)
            raise ApiError(
                500,
                "configuration",
                "The hub's settings for this cluster's GPUs cannot be used.",
                "An administrator finds the reason in the hub's log.",
            ) from error
        if found is None:
            raise ApiError(
                409,
                "no_devices",
                "No node of this cluster offers a GPU in words that the hub knows.",
            )
        return found


def _gone(session: Session) -> Session:
    return replace(session, state="released", parts=(), detail="The server has ended.")


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
