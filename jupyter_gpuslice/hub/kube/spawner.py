"""KubeSpawner with profiles: the pod asks in the words of the cluster's own GPU-sharing stack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, ClassVar

from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException
from kubespawner import KubeSpawner
from kubespawner.clients import shared_client
from traitlets import Bool, Dict, Enum, Unicode, default
from traitlets.config import Config

from ...request import GpuRequest
from ..availability import Availability, Offer
from ..spawner import GpuSliceSpawner, GpuSpawnError
from .beside import Beside, Name
from .detect import speak
from .dialects import DIALECTS, Dialect, PodContext
from .dialects.dialect import SettingError
from .dialects.dra import template_of
from .fit import fit, offer
from .patch import CannotExpressError, ConflictError, PodPatch, share_of
from .pod import apply
from .session import HUB, ISOLATION, REQUEST
from .view import UNANSWERED, ClusterView, busy
from .words import Wait, Wanted, explain, latest, too_few

LOOK_SECONDS = 1.0
VISIBILITY = (
    "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues/{queue}"
    "/pendingworkloads"
)
"""The client has no method for it: it is a part of an object, under another group's name."""


class GpuSliceKubeSpawner(GpuSliceSpawner, KubeSpawner):  # type: ignore[misc]
    """Servers are pods. The cluster places, queues and gangs; this writes requests and reads
    answers."""

    dialect = Enum(
        ["auto", *DIALECTS],
        "auto",
        help="""
        The GPU-sharing stack of the cluster, in whose words pods ask for GPUs.

        `auto` finds it out from the resources, annotations and labels of the nodes, the
        DeviceClasses and the API groups. What cannot be seen there, such as in how many parts the
        device plugin shares a GPU, is said by `dialect_settings`.
        """,
    ).tag(config=True)

    dialect_settings = Dict(
        help="""
        Settings of the dialect, such as {"sharing": "mps", "replicas": 4} of `nvidia` or
        {"queue": "team-a"} of `kai`. The page on Kubernetes in the documentation lists them.
        """,
    ).tag(config=True)

    gpu_container = Unicode(
        "notebook",
        help="""
        The container of the pod that uses the GPU: KubeSpawner's own is called `notebook`.
        """,
    ).tag(config=True)

    cluster_grows = Bool(
        False,
        help="""
        Whether nodes are added on demand, by a cluster autoscaler.

        A request that no node of now could serve is then sent all the same; otherwise it is refused
        at once, since waiting would not help.
        """,
    ).tag(config=True)

    _views: ClassVar[dict[asyncio.AbstractEventLoop, ClusterView]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        self._patch = PodPatch()
        self._standing: list[Name] = []

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        # The cluster's queue is a part of the start.
        return 3600

    # What there is

    async def view(self) -> ClusterView:
        """The cluster as the hub may see it; one for all spawners."""
        loop = asyncio.get_running_loop()
        if loop not in self._views:
            self._views[loop] = ClusterView(self.api.api_client, self.namespace)
        view = self._views[loop]
        await view.start()
        return view

    def speaks(self, view: ClusterView) -> Dialect:
        """The dialect of the cluster. :class:`GpuSpawnError` if it cannot be told."""
        try:
            found = speak(self.dialect, self.dialect_settings, view.cluster)
        except (SettingError, TypeError) as error:
            self.log.error("c.GpuSliceKubeSpawner.dialect_settings: %s", error)
            raise GpuSpawnError(
                500,
                "configuration",
                "The hub's settings for this cluster's GPUs cannot be used.",
                "An administrator finds the reason in the hub's log.",
            ) from error
        if found is None:
            raise GpuSpawnError(
                409,
                "no_devices",
                "No node of this cluster offers a GPU in words that the hub knows.",
                "Choose a profile without a GPU, or ask the hub's administrators.",
            )
        return found

    async def availability(self, requests: Sequence[str]) -> Availability:
        try:
            view = await self.view()
        except UNANSWERED as error:
            self.log.warning("What is free is unknown: %s", error)
            return Availability(note="What is free is unknown: the cluster does not answer.")
        parsed = [GpuRequest.parse(text) for text in requests]
        return Availability({str(request): self._offer(view, request) for request in parsed})

    def _offer(self, view: ClusterView, request: GpuRequest) -> Offer:
        if request.kind == "none":
            return Offer()
        try:
            dialect = self.speaks(view)
        except GpuSpawnError as error:
            return Offer(never=True, message=str(error.jupyterhub_message))
        return offer(request, dialect, self._context(view), view.facts, self.cluster_grows)

    def _context(self, view: ClusterView) -> PodContext:
        return PodContext(self.pod_name, self.namespace, self.gpu_container, view.cluster)

    # The start

    async def load_user_options(self) -> None:
        """KubeSpawner's first step: here what was chosen becomes a patch of the pod."""
        self._patch = PodPatch()
        self._chosen = chosen = self.within_limits(await self.select_for_start())
        view = await self.view()
        if chosen.request.kind == "none":
            self._patch = DIALECTS["nvidia"].of({}).patch(chosen.request, self._context(view))
            return
        try:
            self._patch = self.speaks(view).patch(chosen.request, self._context(view))
        except CannotExpressError as error:
            raise GpuSpawnError(409, "cannot_express", error.message, error.hint) from error
        wait = too_few(self._wanted(view))
        if wait.never and not self.cluster_grows:
            raise GpuSpawnError(409, wait.reason, wait.sentence, wait.action)
        self._patch = self._patch.plus(PodPatch(annotations=self._told(chosen.request)))

    def _told(self, request: GpuRequest) -> dict[str, str]:
        """What the hub's service knows a server's pod by: the cluster keeps it, and nobody else."""
        hub = self._namespace_default()
        return {REQUEST: str(request), ISOLATION: self._patch.isolation or "watch", HUB: hub}

    @classmethod
    def cluster_settings(cls, config: Config) -> dict[str, Any]:
        """What the hub's service is told of the cluster: `KubeSettings`, as JSON."""
        # Only what is configured counts: an instance would belong to a server.
        chosen = Config()
        for name in cls.section_names():
            if name in config:
                chosen.merge(config[name])
        hub = cls._namespace_default(None)
        apart = chosen.get("enable_user_namespaces", False)
        return {
            "hub": hub,
            "namespace": "" if apart else chosen.get("namespace") or hub,
            "dialect": chosen.get("dialect", "auto"),
            "dialect_settings": dict(chosen.get("dialect_settings", {})),
            "container": chosen.get("gpu_container", "notebook"),
            "grows": bool(chosen.get("cluster_grows", False)),
            "host": chosen.get("k8s_api_host"),
            "ssl_ca_cert": chosen.get("k8s_api_ssl_ca_cert"),
            "verify_ssl": chosen.get("k8s_api_verify_ssl"),
        }

    async def get_pod_manifest(self) -> Any:
        pod = await super().get_pod_manifest()
        if self._chosen is not None and self._chosen.ttl is not None:
            # Kubernetes ends the pod then, see the API's PodSpec.
            pod.spec.active_deadline_seconds = max(1, round(self._chosen.ttl))
        try:
            apply(pod, self._patch, self.gpu_container)
        except ConflictError as error:
            self.log.error("%s", error)
            raise GpuSpawnError(
                500,
                "configuration",
                "The hub's configuration of servers contradicts the profile that was chosen.",
                str(error),
            ) from error
        for manifest in self._patch.objects:
            self._standing.append(await self._beside().create(manifest))
        return pod

    async def _start(self) -> Any:
        starting = asyncio.ensure_future(super()._start())
        watching = asyncio.ensure_future(self._hopeless())
        try:
            await asyncio.wait({starting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                wait = watching.result()
                raise GpuSpawnError(409, wait.reason, wait.sentence, wait.action)
            return starting.result()
        except ApiException as error:
            raise self._refused(error) from error
        except ClientError as error:
            raise GpuSpawnError(
                503,
                "cluster",
                "The cluster's API does not answer.",
                "Start the server again in a moment.",
            ) from error
        finally:
            for task in (starting, watching):
                task.cancel()
            await asyncio.gather(starting, watching, return_exceptions=True)

    async def stop(self, now: bool = False) -> None:
        await super().stop(now)
        while self._standing:
            await self._beside().delete(self._standing[-1])
            self._standing.pop()
        if self._chosen is None:
            # A hub that was killed in the middle of a start has kept nothing of it; what it may
            # have made has the pod's name.
            await self._beside().delete(template_of(self.pod_name), known=False)

    # What the hub keeps of a server

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self._standing:
            state["gpuslice_beside"] = [list(name) for name in self._standing]
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._standing = [tuple(name) for name in state.get("gpuslice_beside", ())]

    def clear_state(self) -> None:
        super().clear_state()
        self._chosen, self._patch, self._standing = None, PodPatch(), []

    # An API server that is busy or starting is asked again

    async def _make_create_pod_request(self, *args: Any) -> bool:
        return await _unless_away(super()._make_create_pod_request(*args))

    async def _make_create_pvc_request(self, *args: Any) -> bool:
        return await _unless_away(super()._make_create_pvc_request(*args))

    async def _make_create_resource_request(self, *args: Any) -> bool:
        return await _unless_away(super()._make_create_resource_request(*args))

    async def _ensure_not_exists(self, *args: Any) -> bool:
        return await _unless_away(super()._ensure_not_exists(*args))

    async def _make_delete_pod_request(self, *args: Any) -> bool:
        return await _unless_away(super()._make_delete_pod_request(*args))

    def get_env(self) -> dict[str, str]:
        env: dict[str, str] = super().get_env()
        chosen = self._chosen
        if chosen is None:
            return env
        env |= chosen.profile.environment
        if chosen.profile.default_url:
            env["JUPYTERHUB_DEFAULT_URL"] = self.format_string(chosen.profile.default_url)
        return env | share_of(chosen.request, self._patch)

    def _beside(self) -> Beside:
        return Beside(shared_client("CustomObjectsApi"), self.namespace, self.pod_name)

    # Words

    def _wanted(self, view: ClusterView) -> Wanted:
        if self._chosen is None:
            return Wanted("it")
        return fit(self._chosen.request, self._patch, view.facts).wanted

    async def _waits(self) -> Wait | None:
        events = [(str(e["reason"]), str(e["message"])) for e in self.events]
        return latest(events, self._wanted(await self.view()))

    async def _hopeless(self) -> Wait:
        """Returns when the cluster has said that waiting does not help."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                wait = await self._waits() if self.event_reflector else None
            except UNANSWERED:
                continue
            if wait is not None and wait.never and not self.cluster_grows:
                return wait

    def _refused(self, error: ApiException) -> GpuSpawnError:
        message = error_message(error)
        wait = explain(
            "Forbidden", message, Wanted(str(self._chosen.request if self._chosen else ""))
        )
        if wait is not None:
            return GpuSpawnError(409, wait.reason, wait.sentence, wait.action)
        self.log.error("The cluster refused the server's pod: %s", message)
        return GpuSpawnError(
            502 if error.status and error.status >= 500 else 500,
            "cluster",
            "The cluster did not take this server.",
            "An administrator finds the reason in the hub's log.",
        )

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What happens to the pod, as a person reads it, until it runs."""
        if not self.events_enabled:
            return
        await self._start_watching_events()
        seen, percent, last = 0, 0.0, ""
        while True:
            started = self._start_future is not None and self._start_future.done()
            wanted = self._wanted(await self.view())
            for event in self.events[seen:]:
                seen += 1
                percent += (90 - percent) / 3
                wait = explain(str(event["reason"]), str(event["message"]), wanted)
                message = str(wait or event["message"])
                if message != last:
                    last = message
                    yield {"progress": int(percent), "message": message, "raw_event": event}
            place = await self._place()
            if place and place != last:
                last = place
                yield {"progress": int(percent), "message": place}
            if started:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _place(self) -> str:
        """The place in Kueue's queue, where the pod waits in one (visibility API of Kueue)."""
        pods = self.pod_reflector.pods if self.pod_reflector else {}
        pod = pods.get(f"{self.namespace}/{self.pod_name}") or {}
        gates = [gate["name"] for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
        queue = (pod.get("metadata") or {}).get("labels", {}).get("kueue.x-k8s.io/queue-name")
        if "kueue.x-k8s.io/admission" not in gates or not queue:
            return ""
        try:
            answer = await self.api.api_client.call_api(
                VISIBILITY,
                "GET",
                path_params={"namespace": self.namespace, "queue": queue},
                response_types_map={200: "object"},
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
            )
        except ApiException:
            return f"Waiting in the queue {queue}."
        for item in answer.get("items") or ():
            owners = (item.get("metadata") or {}).get("ownerReferences") or ()
            if any(owner.get("uid") == pod["metadata"]["uid"] for owner in owners):
                place = int(item["positionInLocalQueue"]) + 1
                among = int(item["positionInClusterQueue"]) + 1
                return f"Place {place} in the queue {queue}, place {among} among all queues."
        return f"Waiting in the queue {queue}."


async def _unless_away(request: Awaitable[bool]) -> bool:
    """A request's result; false, for another try, where the API is away or has no time now."""
    try:
        return await request
    except ApiException as error:
        if busy(error):
            return False
        raise
    except ClientError:
        return False


def error_message(error: ApiException) -> str:
    """What the API said of a refusal, without the client's wrapping."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
