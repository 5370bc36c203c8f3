"""What a Kubernetes API server does and refuses: the emulator and a real one alike."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiException, CoreV1Api, CustomObjectsApi
from kubernetes_asyncio.watch import Watch

from jupyter_gpuslice.hub.kube.mirror import Mirror
from tests.fakes.kubernetes import Cluster

from .conftest import REAL, api_of

IMAGE = "registry.k8s.io/pause:3.10"


def run(kubeconfig: Path, scenario: Callable[[CoreV1Api, str], Awaitable[None]]) -> None:
    """A scenario in a namespace of its own."""

    async def all_of_it() -> None:
        async with api_of(kubeconfig) as api:
            core = CoreV1Api(api)
            namespace = f"gpuslice-{uuid.uuid4().hex[:8]}"
            await core.create_namespace({"metadata": {"name": namespace}})
            try:
                await scenario(core, namespace)
            finally:
                await core.delete_namespace(namespace)

    asyncio.run(all_of_it())


def pod(name: str, limits: Any = None, requests: Any = None, **spec: Any) -> dict[str, Any]:
    resources = {"limits": limits, "requests": requests}
    container = {
        "name": "c",
        "image": IMAGE,
        "resources": {key: value for key, value in resources.items() if value},
    }
    return {
        "metadata": {"name": name, "labels": {"app": "test"}},
        "spec": {"containers": [container], **spec},
    }


async def refusal(work: Awaitable[Any]) -> dict[str, Any]:
    with pytest.raises(ApiException) as refused:
        await work
    found: dict[str, Any] = json.loads(refused.value.body or "{}")
    assert found["code"] == refused.value.status
    return found


async def until(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    for _ in range(600):
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"waited for {what}")


@pytest.mark.parametrize(
    ("limits", "requests", "words"),
    [
        ({"nvidia.com/gpu": "0.5"}, None, "must be an integer"),
        ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}, "must be equal to nvidia.com/gpu limit"),
        (None, {"nvidia.com/gpu": "1"}, "Limit must be set for non overcommitable resources"),
    ],
)
def test_gpus_are_whole_and_their_requests_are_their_limits(
    kubeconfig: Path, limits: Any, requests: Any, words: str
) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        found = await refusal(core.create_namespaced_pod(namespace, pod("p", limits, requests)))
        assert (found["code"], found["reason"]) == (422, "Invalid")
        assert words in found["message"]

    run(kubeconfig, scenario)


def test_errors_have_their_reasons_and_details(kubeconfig: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        missing = await refusal(core.read_namespaced_pod("nobody", namespace))
        assert missing["reason"] == "NotFound"
        assert missing["details"] == {"name": "nobody", "kind": "pods"}
        await core.create_namespaced_config_map(namespace, {"metadata": {"name": "one"}})
        again = await refusal(
            core.create_namespaced_config_map(namespace, {"metadata": {"name": "one"}})
        )
        assert (again["code"], again["reason"]) == (409, "AlreadyExists")
        strange = pod("p")
        strange["spec"]["colour"] = "blue"
        unknown = await refusal(
            core.create_namespaced_pod(namespace, strange, field_validation="Strict")
        )
        assert unknown["code"] == 400
        assert "strict decoding error: unknown field" in unknown["message"]
        bad = await refusal(core.create_namespaced_pod(namespace, pod("Not-A-Name")))
        assert (bad["code"], bad["reason"]) == (422, "Invalid")
        held = await core.read_namespaced_config_map("one", namespace)
        held.data = {"a": "1"}
        await core.replace_namespaced_config_map("one", namespace, held)
        stale = await refusal(core.replace_namespaced_config_map("one", namespace, held))
        assert (stale["code"], stale["reason"]) == (409, "Conflict")

    run(kubeconfig, scenario)


def test_selectors_versions_and_watches(kubeconfig: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        for name, team in (("one", "a"), ("two", "b")):
            await core.create_namespaced_config_map(
                namespace, {"metadata": {"name": name, "labels": {"team": team}}}
            )
        listed = await core.list_namespaced_config_map(namespace, label_selector="team in (a,c)")
        assert [item.metadata.name for item in listed.items] == ["one"]
        by_name = await core.list_namespaced_config_map(
            namespace, field_selector="metadata.name=two"
        )
        assert [item.metadata.name for item in by_name.items] == ["two"]
        version = listed.metadata.resource_version
        await core.patch_namespaced_config_map("one", namespace, {"data": {"a": "1"}})
        await core.delete_namespaced_config_map("two", namespace)
        seen = []
        async with Watch().stream(
            core.list_namespaced_config_map,
            namespace,
            resource_version=version,
            timeout_seconds=3,
        ) as stream:
            async for event in stream:
                seen.append((event["type"], event["raw_object"]["metadata"]["name"]))
                if len(seen) == 2:
                    break
        assert seen == [("MODIFIED", "one"), ("DELETED", "two")]

    run(kubeconfig, scenario)


def test_a_mirror_follows_what_happens(kubeconfig: Path) -> None:
    """What the hub's view of a cluster stands on."""

    async def scenario(core: CoreV1Api, namespace: str) -> None:
        changes: list[int] = []
        mirror = Mirror(
            core.list_namespaced_config_map,
            keep=lambda item: item["metadata"]["name"].startswith("mine"),
            changed=lambda: changes.append(1),
            namespace=namespace,
        )
        await core.create_namespaced_config_map(namespace, {"metadata": {"name": "mine-before"}})
        await mirror.start()
        try:
            assert set(mirror.objects) == {(namespace, "mine-before")}
            await core.create_namespaced_config_map(namespace, {"metadata": {"name": "mine"}})
            await core.create_namespaced_config_map(namespace, {"metadata": {"name": "other"}})
            await core.patch_namespaced_config_map("mine", namespace, {"data": {"a": "1"}})

            async def patched() -> Any:
                return mirror.objects.get((namespace, "mine"), {}).get("data") == {"a": "1"}

            await until(patched, "the change")
            assert len(mirror.objects) == 2
            await core.delete_namespaced_config_map("mine-before", namespace)

            async def gone() -> Any:
                return set(mirror.objects) == {(namespace, "mine")}

            await until(gone, "the end")
            assert len(changes) >= 4
            assert not mirror.behind
        finally:
            await mirror.stop()

    run(kubeconfig, scenario)


def test_nodes_say_whether_they_are_ready_and_what_they_have(kubeconfig: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        nodes = (await core.list_node()).items
        assert nodes
        for node in nodes:
            assert any(condition.type == "Ready" for condition in node.status.conditions)
            assert int(node.status.allocatable["pods"]) > 0

    run(kubeconfig, scenario)


def test_a_pod_that_fits_nowhere_says_why(kubeconfig: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        limits = {"nvidia.com/mig-1g.10gb": "100"}
        await core.create_namespaced_pod(namespace, pod("p", limits, limits))

        async def words() -> Any:
            listed = await core.list_namespaced_event(
                namespace, field_selector="involvedObject.kind=Pod,reason=FailedScheduling"
            )
            return [item.message for item in listed.items]

        (message, *_) = await until(words, "the scheduler's words")
        assert "nodes are available" in message
        assert "Insufficient nvidia.com/mig-1g.10gb" in message
        await core.delete_namespaced_pod("p", namespace)

    run(kubeconfig, scenario)


def test_a_quota_is_refused_in_numbers(kubeconfig: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        hard = {"requests.nvidia.com/gpu": "1"}
        await core.create_namespaced_resource_quota(
            namespace, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}
        )
        two = {"nvidia.com/gpu": "2"}

        async def refused() -> Any:
            try:
                await core.create_namespaced_pod(namespace, pod("p", two, two))
            except ApiException as error:
                return error
            await core.delete_namespaced_pod("p", namespace, grace_period_seconds=0)
            return None

        error = await until(refused, "the quota to hold")
        assert error.status == 403
        assert "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2" in str(error.body)

    run(kubeconfig, scenario)


def test_without_a_token_nothing_is_told(kubeconfig: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        core.api_client.configuration.api_key = {}
        core.api_client.configuration.cert_file = core.api_client.configuration.key_file = None
        with pytest.raises(ApiException) as refused:
            await core.list_namespaced_pod(namespace)
        assert refused.value.status in (401, 403)

    if REAL:
        pytest.skip("a real cluster may know its caller by certificate")
    with pytest.raises(ApiException):  # the namespace cannot be deleted either
        run(kubeconfig, scenario)


# What a real cluster cannot be made to do


def claim(memory: str) -> dict[str, Any]:
    exactly = {
        "deviceClassName": "gpu.nvidia.com",
        "capacity": {"requests": {"memory": memory}},
        "selectors": [{"cel": {"expression": "device.allowMultipleAllocations == true"}}],
    }
    return {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


def test_two_claims_share_a_device_and_a_third_waits(emulator: Cluster, tmp_path: Path) -> None:
    emulator.node("n1")
    emulator.gpu_devices("n1", 1, "80Gi", shared=True)
    emulator.create(
        "resourceclaimtemplates", {"metadata": {"name": "third"}, "spec": claim("30Gi")}
    )

    async def scenario(core: CoreV1Api, namespace: str) -> None:
        custom = CustomObjectsApi(core.api_client)
        await custom.create_namespaced_custom_object(
            "resource.k8s.io",
            "v1",
            namespace,
            "resourceclaimtemplates",
            {"metadata": {"name": "share"}, "spec": claim("30Gi")},
        )
        for name in ("a", "b", "c"):
            entry = {"name": "g", "resourceClaimTemplateName": "share"}
            body = pod(name, resourceClaims=[entry])
            body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "g"}]
            await core.create_namespaced_pod(namespace, body, field_validation="Strict")

        async def running() -> Any:
            listed = await core.list_namespaced_pod(namespace)
            phases = sorted(item.status.phase for item in listed.items)
            return phases == ["Pending", "Running", "Running"]

        await until(running, "two of three")
        events = await core.list_namespaced_event(namespace)
        assert any("cannot allocate all claims" in event.message for event in events.items)
        results = [
            result
            for each in emulator.all("resourceclaims", namespace)
            for result in ((each.get("status") or {}).get("allocation") or {"devices": {}})[
                "devices"
            ].get("results", [])
        ]
        assert {result["device"] for result in results} == {"gpu-0"}
        assert len({result["shareID"] for result in results}) == 2
        listed = await core.list_namespaced_pod(namespace)
        first = next(item for item in listed.items if item.status.phase == "Running")
        await core.delete_namespaced_pod(first.metadata.name, namespace)

        async def others() -> Any:
            listed = await core.list_namespaced_pod(namespace)
            return [item.status.phase for item in listed.items] == ["Running"] * 2

        await until(others, "the third in the place of the first")
        assert len(emulator.all("resourceclaims", namespace)) == 2, "claims go with their pods"

    run(emulator.kubeconfig(tmp_path / "k"), scenario)


def test_faults_come_and_go(emulator: Cluster, tmp_path: Path) -> None:
    async def scenario(core: CoreV1Api, namespace: str) -> None:
        emulator.fail(429, requests=1)
        assert (await refusal(core.list_node()))["code"] == 429
        await core.list_node()
        version = (await core.list_node()).metadata.resource_version
        emulator.node("late")
        emulator.drop_watches()
        watch = Watch()
        stream = watch.stream(core.list_node, resource_version=version, timeout_seconds=1)
        with pytest.raises(ApiException) as gone:
            await anext(stream)
        assert gone.value.status == 410

    run(emulator.kubeconfig(tmp_path / "k"), scenario)
