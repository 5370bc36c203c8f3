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
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        scheduler="kai-scheduler",
        nodes=(NodeRule("nvidia.com/gpu.product", "In", ("H100",)),),
        claims=({"name": "gpu", "resourceClaimTemplateName": "t"},),
    )
    body = as_json(apply(made, patch))
    check(body)
    assert {"team": "a", "queue": "q"}.items() <= body["metadata"]["labels"].items()
    assert body["metadata"]["annotations"]["note"] == "kept"
    assert body["spec"]["schedulerName"] == "kai-scheduler"
    environment = {each["name"]: each.get("value") for each in body["spec"]["containers"][0]["env"]}
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void" and environment["OTHER"] == "1"
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
