"""Patches on pods as KubeSpawner makes them, checked by the schema of the newest Kubernetes."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from kubernetes_asyncio.client import ApiClient
from kubespawner.objects import make_pod

from jupyter_gpuslice.hub.kube.gang import GANGS, Gang
from jupyter_gpuslice.hub.kube.patch import CannotExpressError, ConflictError, NodeRule, PodPatch
from jupyter_gpuslice.hub.kube.pod import apply
from jupyter_gpuslice.request import GpuRequest

from .test_dialects import REQUESTS, VARIANTS, dialect


def pod(**more: Any) -> Any:
    return make_pod(
        name="jupyter-ana",
        cmd=["jupyterhub-singleuser"],
        port=8888,
        image="quay.io/jupyterhub/singleuser",
        image_pull_policy=None,
        **more,
    )


def as_json(made: Any) -> dict[str, Any]:
    found: dict[str, Any] = ApiClient.sanitize_for_serialization(ApiClient.__new__(ApiClient), made)
    return found


def check(body: dict[str, Any]) -> None:
    kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)


def environment(body: dict[str, Any]) -> dict[str, Any]:
    (container,) = body["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", REQUESTS)
def test_z2jh_3000_no_configuration_shows_a_pod_the_gpus_of_others(variant: str, text: str) -> None:
    """Asked for 1, and saw all. Also gpu-operator#1502, HAMi-core#119."""
    kind, context = dialect(variant)
    for request in ("0", text):
        try:
            patch = kind.patch(GpuRequest.parse(request), context)
        except CannotExpressError:
            continue
        made = pod(env={"NVIDIA_VISIBLE_DEVICES": "all"})
        seen = environment(as_json(apply(made, patch))).get("NVIDIA_VISIBLE_DEVICES")
        assert seen == ("void" if request == "0" else None), "the stack's own word, and no other"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mem_limit": 2**30, "cpu_limit": 2}, {"MEM_LIMIT": "1073741824", "CPU_LIMIT": "2"}),
        ({"extra_resource_limits": {"cpu": "16"}}, {"CPU_LIMIT": "16"}),
        (
            {"cpu_limit": 2, "extra_resource_limits": {"cpu": "500m", "memory": "32Gi"}},
            {"CPU_LIMIT": "0.5", "MEM_LIMIT": str(32 * 2**30)},
        ),
        (
            {"extra_resource_guarantees": {"cpu": "4", "memory": "1.5Gi"}},
            {"CPU_GUARANTEE": "4", "MEM_GUARANTEE": str(3 * 2**29)},
        ),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("request_", ["0", "1"])
def test_kubespawner_548_a_server_is_told_the_limits_that_its_pod_has(
    settings: dict[str, Any], told: dict[str, str], request_: str
) -> None:
    """A profile's limit was the pod's, and CPU_LIMIT said something else or nothing."""
    kind, context = dialect("nvidia")
    patch = kind.patch(GpuRequest.parse(request_), context)
    before = {"CPU_LIMIT": "2.0", "OTHER": "1"} if "cpu_limit" in settings else {"OTHER": "1"}
    found = environment(as_json(apply(pod(env=before, **settings), patch)))
    assert found["OTHER"] == "1"
    said = {name: value for name, value in found.items() if name.startswith(("CPU_", "MEM_"))}
    assert said == told


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", REQUESTS)
def test_kubespawner_637_kubernetes_takes_the_pod_and_what_goes_with_it(
    variant: str, text: str
) -> None:
    kind, context = dialect(variant)
    try:
        patch = kind.patch(GpuRequest.parse(text), context)
    except CannotExpressError:
        return
    body = as_json(apply(pod(mem_limit=2**30, extra_resource_limits={}), patch))
    check(body)
    for manifest in patch.objects:
        check(dict(manifest))
    (container,) = body["spec"]["containers"]
    for name, amount in patch.limits.items():
        assert container["resources"]["limits"][name] == amount
        assert container["resources"]["requests"][name] == amount
    claims = [claim["name"] for claim in body["spec"].get("resourceClaims", [])]
    assert claims == [use["name"] for use in container["resources"].get("claims", [])]
    # The memory that the profile sets stays beside the GPU.
    assert container["resources"]["limits"]["memory"] == 2**30


@pytest.mark.parametrize("gang", GANGS)
def test_a_gangs_pod_is_taken_as_well(gang: str) -> None:
    patch = GANGS[gang](Gang("gpu-train", 4, "hub", "team-a"))
    body = as_json(apply(pod(), patch))
    check(body)
    assert "gpu-train" in str(body["metadata"])


def test_what_the_configuration_says_stays() -> None:
    made = pod(
        labels={"team": "a"},
        annotations={"note": "kept"},
        env={"NVIDIA_VISIBLE_DEVICES": "all", "OTHER": "1"},
        extra_resource_limits={"nvidia.com/gpu": "1"},
        scheduler_name="hub-user-scheduler",
        node_affinity_required=[{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}],
        extra_pod_config={"resourceClaims": [{"name": "net", "resourceClaimName": "net"}]},
    )
    patch = PodPatch(
        limits={"nvidia.com/gpu": "1"},
        labels={"queue": "q"},
        scheduler="kai-scheduler",
        nodes=(NodeRule("nvidia.com/gpu.product", "In", ("H100",)),),
        claims=({"name": "gpu", "resourceClaimTemplateName": "t"},),
    )
    body = as_json(apply(made, patch))
    check(body)
    assert {"team": "a", "queue": "q"}.items() <= body["metadata"]["labels"].items()
    assert body["metadata"]["annotations"]["note"] == "kept"
    assert body["spec"]["schedulerName"] == "kai-scheduler"
    assert environment(body)["OTHER"] == "1"
    (term,) = body["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert [each["key"] for each in term["matchExpressions"]] == ["pool", "nvidia.com/gpu.product"]
    assert [claim["name"] for claim in body["spec"]["resourceClaims"]] == ["net", "gpu"]


@pytest.mark.parametrize(
    ("made", "patch"),
    [
        ({"extra_resource_limits": {"nvidia.com/gpu": "2"}}, {"limits": {"nvidia.com/gpu": "1"}}),
        ({"labels": {"queue": "a"}}, {"labels": {"queue": "b"}}),
        ({"annotations": {"gpu-fraction": "1"}}, {"annotations": {"gpu-fraction": "0.5"}}),
    ],
)
def test_two_words_on_one_thing_are_told(made: dict[str, Any], patch: dict[str, Any]) -> None:
    with pytest.raises(ConflictError, match="configuration sets"):
        apply(pod(**made), PodPatch(**patch))


def test_the_container_has_to_be_there() -> None:
    with pytest.raises(ConflictError, match="no container sidecar"):
        apply(pod(), PodPatch(limits={"nvidia.com/gpu": "1"}), "sidecar")
