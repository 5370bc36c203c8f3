"""Every stack's words for every kind of request, or the reason why it has none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuslice.hub.kube.cluster import Cluster, Product
from jupyter_gpuslice.hub.kube.detect import detect
from jupyter_gpuslice.hub.kube.dialects import DIALECTS, Dialect, PodContext
from jupyter_gpuslice.hub.kube.dialects.dialect import SettingError
from jupyter_gpuslice.hub.kube.gang import GANGS, Gang
from jupyter_gpuslice.hub.kube.patch import CannotExpressError, ConflictError, PodPatch
from jupyter_gpuslice.request import GpuRequest

GOLDEN = Path(__file__).parent / "golden"

A100 = Product("NVIDIA-A100-SXM4-80GB", 81920)
H100 = Product("NVIDIA-H100-80GB-HBM3", 81559)
MIG = Product("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 9728)

VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[Product, ...]]] = {
    "nvidia": ("nvidia", {}, (A100,)),
    "nvidia-mig-mixed": ("nvidia", {"mig": "mixed"}, (A100,)),
    "nvidia-mig-single": ("nvidia", {"mig": "single"}, (A100, MIG)),
    "nvidia-time-slicing": ("nvidia", {"sharing": "time-slicing", "replicas": 4}, (A100,)),
    "nvidia-time-slicing-same-name": (
        "nvidia",
        {"sharing": "time-slicing", "replicas": 4, "renamed": False},
        (A100,),
    ),
    "nvidia-mps": ("nvidia", {"sharing": "mps", "replicas": 4}, (A100,)),
    "dra": ("dra", {"strategy": "MPS"}, (A100,)),
    "dra-shares": ("dra", {"shares": True}, (A100,)),
    "hami": ("hami", {}, (A100,)),
    "volcano": ("volcano", {"queue": "notebooks"}, (A100,)),
    "kai": ("kai", {"queue": "team-a"}, (A100,)),
    "kai-disabled": ("kai", {"sharing": "Disabled"}, (A100,)),
    "kai-hami-core": ("kai", {"sharing": "HamiCore"}, (A100,)),
    "kai-nv-fractions": ("kai", {"sharing": "NvFractions"}, (A100,)),
    "runai-2": ("runai", {"project": "team-a", "version": 2}, (A100,)),
    "runai-3": ("runai", {"project": "team-a"}, (A100,)),
    "koordinator": ("koordinator", {}, (A100,)),
    "gpushare": ("gpushare", {}, (A100,)),
}
REQUESTS = ("0", "0.25", "10GiB", "10GiB/50%", "1g.10gb", "1", "2", "2x0.5", "a100:1")


def dialect(variant: str) -> tuple[Dialect, PodContext]:
    name, settings, products = VARIANTS[variant]
    pod = PodContext("jupyter-ana", "hub", cluster=Cluster(products=products))
    return DIALECTS[name].of(settings), pod


def answer(variant: str, text: str) -> dict[str, Any]:
    """The patch as plain JSON without what is empty, or the refusal."""
    kind, pod = dialect(variant)
    try:
        patch = kind.patch(GpuRequest.parse(text), pod)
    except CannotExpressError as error:
        return {"refused": error.message, "nearest": list(error.nearest)}
    return plain(patch)


def plain(patch: PodPatch) -> dict[str, Any]:
    found = {name: value for name, value in vars(patch).items() if value}
    if "nodes" in found:
        found["nodes"] = [rule.to_dict() for rule in found["nodes"]]
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_request_is_written_as_before(variant: str) -> None:
    """``GPUSLICE_WRITE_GOLDEN=1`` writes the files anew: read the difference before committing."""
    path = GOLDEN / f"{variant}.json"
    found = {text: answer(variant, text) for text in REQUESTS}
    if os.environ.get("GPUSLICE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", REQUESTS)
def test_what_a_refusal_offers_can_be_had(variant: str, text: str) -> None:
    kind, pod = dialect(variant)
    for option in answer(variant, text).get("nearest", []):
        kind.patch(GpuRequest.parse(option), pod)


def amounts() -> st.SearchStrategy[str]:
    fraction = st.integers(1, 100).map(lambda n: f"{n / 100:g}")
    memory = st.integers(1, 200_000).map(lambda n: f"{n}MiB")
    percent = st.integers(1, 100).map(lambda n: f"/{n}%")
    unit = st.one_of(fraction, memory, st.builds("".join, st.tuples(memory, percent)))
    part = st.builds(lambda count, unit: f"{count}x{unit}" if count > 1 else unit,
                     st.integers(1, 8), unit)  # fmt: skip
    whole = st.integers(1, 16).map(str)
    mig = st.sampled_from(["1g.10gb", "1g.10gb+me", "2x1g.5gb", "7g.80gb", "1g.5gb-me"])
    model = st.sampled_from(["", "a100:", "a100-80gb:", "h100:"])
    return st.builds(lambda m, a: m + a, model, st.one_of(part, whole, mig))


@given(st.sampled_from(sorted(VARIANTS)), amounts())
def test_anything_is_a_pod_that_kubernetes_takes_or_a_refusal_in_words(
    variant: str, text: str
) -> None:
    request = GpuRequest.parse(text)
    kind, pod = dialect(variant)
    try:
        patch = kind.patch(request, pod)
    except CannotExpressError as error:
        assert error.message.endswith(".")
        for option in error.nearest:
            kind.patch(GpuRequest.parse(option), pod)
        return
    for name, amount in patch.limits.items():
        assert "/" in name
        quantity = amount.removesuffix("Mi")
        assert quantity.isdecimal() and int(quantity) >= 1, (name, amount)
    for value in [*patch.labels.values(), *patch.annotations.values()]:
        assert isinstance(value, str)
    assert patch.isolation
    # Something in it asks for a GPU: nobody waits for a pod that has none.
    asks = patch.limits or patch.claims or any("gpu" in key for key in patch.annotations)
    assert asks


@given(st.integers(1, 99), st.integers(1, 4))
def test_never_more_than_was_asked_for(percent: int, count: int) -> None:
    fraction = percent / 100
    text = f"{count}x{fraction:g}" if count > 1 else f"{fraction:g}"
    for variant in ("hami", "volcano", "koordinator", "kai", "dra-shares", "gpushare"):
        found = answer(variant, text)
        if "refused" in found:
            continue
        limits = found.get("limits", {})
        share = 81920 * fraction
        assert int(limits.get("nvidia.com/gpumem-percentage", 0)) <= percent
        assert int(limits.get("volcano.sh/vgpu-memory-percentage", 0)) <= percent
        assert int(limits.get("koordinator.sh/gpu-memory-ratio", 0)) <= percent * count
        assert int(limits.get("aliyun.com/gpu-mem", 0)) * 1024 <= share
        annotations = found.get("annotations", {})
        assert float(annotations.get("gpu-fraction", 0)) <= fraction
        for claim in found.get("objects", []):
            (asked,) = claim["spec"]["spec"]["devices"]["requests"]
            memory = asked["exactly"]["capacity"]["requests"]["memory"]
            assert int(memory.removesuffix("Mi")) <= share


def test_a_model_means_the_nodes_that_have_it() -> None:
    pod = PodContext("p", cluster=Cluster(products=(A100, H100)))
    rules = DIALECTS["nvidia"].of({}).patch(GpuRequest.parse("h100:1"), pod).nodes
    assert [rule.to_dict() for rule in rules] == [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}
    ]
    with pytest.raises(CannotExpressError, match="No node has a l4: the GPUs are NVIDIA-A100"):
        DIALECTS["nvidia"].of({}).patch(GpuRequest.parse("l4:1"), pod)


def test_a_fraction_by_memory_needs_to_know_the_memory() -> None:
    kind = DIALECTS["dra"].of({"shares": True})
    mixed = PodContext("p", cluster=Cluster(products=(A100, H100)))
    with pytest.raises(CannotExpressError) as refused:
        kind.patch(GpuRequest.parse("0.5"), mixed)
    for option in refused.value.nearest:
        kind.patch(GpuRequest.parse(option), mixed)
    assert refused.value.nearest == ("a100-sxm4-80gb:0.5", "h100-80gb-hbm3:0.5", "1")
    with pytest.raises(CannotExpressError, match="not known to the hub"):
        kind.patch(GpuRequest.parse("0.5"), PodContext("p"))
    assert kind.patch(GpuRequest.parse("10GiB"), PodContext("p")).claims


@pytest.mark.parametrize("name", DIALECTS)
def test_settings_are_checked(name: str) -> None:
    assert DIALECTS[name].of({}) == DIALECTS[name].of({})
    with pytest.raises(SettingError, match="has no setting"):
        DIALECTS[name].of({"colour": "blue"})


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("nvidia", {"sharing": "mps"}, "2 to 100"),
        ("nvidia", {"sharing": "magic"}, "none, time-slicing, mps"),
        ("nvidia", {"sharing": "mps", "replicas": 4, "mig": "mixed"}, "exclude each other"),
        ("nvidia", {"replica": 4}, "did you mean replicas"),
        ("dra", {"shares": True, "strategy": "MPS"}, "TimeSlicing"),
        ("kai", {"sharing": "hami"}, "NvFractions"),
        ("runai", {"version": 4}, "2 or 3"),
        ("gpushare", {"unit": "GB"}, "GiB, MiB"),
    ],
)
def test_a_setting_that_cannot_be_is_told(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        DIALECTS[name].of(settings)


def node(labels: dict[str, str], annotations: dict[str, str] | None = None, **resources: str):
    allocatable = {name.replace("__", "/"): value for name, value in resources.items()}
    metadata = {"labels": labels, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"allocatable": allocatable}}


@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        (Cluster(), None),
        (Cluster(frozenset({"cpu", "memory"})), None),
        (Cluster(frozenset({"nvidia.com/gpu"})), "nvidia"),
        (Cluster(frozenset({"nvidia.com/mig-1g.10gb"})), "nvidia"),
        (Cluster(device_classes=frozenset({"gpu.nvidia.com"})), "dra"),
        (
            Cluster(
                frozenset({"nvidia.com/gpu"}),
                annotations=frozenset({"hami.io/node-nvidia-register"}),
            ),
            "hami",
        ),
        (Cluster(frozenset({"volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"})), "volcano"),
        (Cluster(frozenset({"koordinator.sh/gpu-core"})), "koordinator"),
        (Cluster(frozenset({"aliyun.com/gpu-mem"})), "gpushare"),
        (Cluster(frozenset({"nvidia.com/gpu"}), api_groups=frozenset({"kai.scheduler"})), "kai"),
        (
            Cluster(
                frozenset({"nvidia.com/gpu"}), api_groups=frozenset({"kai.scheduler", "run.ai"})
            ),
            "runai",
        ),
    ],
)
def test_the_cluster_tells_its_dialect(cluster: Cluster, name: str | None) -> None:
    found = detect(cluster)
    assert (found.name if found else None) == name


def test_a_cluster_is_read_from_its_nodes() -> None:
    labels = {"nvidia.com/gpu.product": A100.name, "nvidia.com/gpu.memory": "81920"}
    single = {"nvidia.com/gpu.product": MIG.name, "nvidia.com/gpu.memory": "9728"}
    cluster = Cluster.of(
        [
            node(labels, {"hami.io/node-nvidia-register": "…"}, nvidia__gpu="8", cpu="64"),
            node(labels, nvidia__gpu="0"),
            node(single, nvidia__gpu="7"),
            {},
        ],
        ["gpu.nvidia.com"],
        ["apps"],
    )
    assert cluster.products == (A100, MIG)
    assert "cpu" in cluster.resources
    assert cluster.annotations == {"hami.io/node-nvidia-register"}


@pytest.mark.parametrize("name", GANGS)
def test_gangs_are_written_as_before(name: str) -> None:
    gang = Gang("gpu-train", 4, "hub", "team-a", "topology.kubernetes.io/rack", "racks")
    path = GOLDEN / f"gang-{name}.json"
    found = plain(GANGS[name](gang))
    if os.environ.get("GPUSLICE_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text())


def test_a_gang_of_four_servers_with_a_gpu_each_in_each_pair_of_words() -> None:
    pairs = [
        ("nvidia", "kueue"),
        ("nvidia", "scheduler-plugins"),
        ("dra", "kueue"),
        ("hami", "volcano"),
        ("volcano", "volcano"),
        ("kai", "kai"),
        ("hami", "scheduler-plugins"),
    ]
    for variant, gang in pairs:
        kind, pod = dialect(variant)
        one = kind.patch(GpuRequest.parse("1"), pod)
        both = one.plus(GANGS[gang](Gang("gpu-train", 4, pod.namespace)))
        assert "gpu-train" in json.dumps(plain(both))
        assert both.limits == one.limits
    kind, pod = dialect("kai")
    with pytest.raises(ConflictError, match="cannot be both kai-scheduler and volcano"):
        kind.patch(GpuRequest.parse("1"), pod).plus(GANGS["volcano"](Gang("g", 2)))


@pytest.mark.parametrize(("name", "size"), [("Ana", 2), ("", 2), ("a" * 64, 2), ("a", 0)])
def test_a_gang_has_a_name_and_members(name: str, size: int) -> None:
    with pytest.raises(ValueError, match="gang"):
        Gang(name, size)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", ["2x1g.10gb", "3x1g.5gb+me", "a100:2x3g.40gb"])
def test_pytorch_102715_no_server_gets_mig_devices_of_which_it_could_use_one(
    variant: str, text: str
) -> None:
    """A CUDA process sees one MIG device. Also pytorch#95784, #90543, #131667."""
    kind, context = dialect(variant)
    with pytest.raises(CannotExpressError) as refused:
        kind.patch(GpuRequest.parse(text), context)
    assert refused.value.message.endswith(".")
    for nearest in refused.value.nearest:
        found = GpuRequest.parse(nearest)
        assert found.kind != "mig" or found.count == 1
