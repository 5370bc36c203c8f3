"""What nodes have and pods were given, as each stack writes it down."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpuslice.hub.kube.cluster import Cluster
from jupyter_gpuslice.hub.kube.dialects import DIALECTS, PodContext
from jupyter_gpuslice.hub.kube.fit import fit, offer
from jupyter_gpuslice.hub.kube.granted import fraction, vgpus
from jupyter_gpuslice.hub.kube.inventory import Facts
from jupyter_gpuslice.hub.kube.item import Item
from jupyter_gpuslice.hub.kube.quantity import count, mib
from jupyter_gpuslice.hub.kube.session import HUB, REQUEST, belongs, session_of
from jupyter_gpuslice.request import GpuRequest

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}


def node(
    name: str = "n1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    cordoned: bool = False,
    ready: str = "True",
    **has: Any,
) -> dict[str, Any]:
    resources = {key.replace("__", "/").replace("_", "."): value for key, value in has.items()}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": resources, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(
    name: str,
    where: str | None = "n1",
    limits: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "spec": {"nodeName": where, "containers": [{"resources": {"limits": limits}}], **spec},
        "status": {"phase": phase},
    }


def numbers(item: Item) -> tuple[Any, ...]:
    units = item.units and (item.units.free, item.units.count)
    return item.uuid, item.free_mib, item.memory_mib, item.free_percent, item.compute_percent, units


@pytest.mark.parametrize(
    ("text", "number", "memory"),
    [
        ("2", 2, 0),
        ("2k", 2000, 0),
        ("80Gi", 80 * 2**30, 81920),
        ("81920Mi", 81920 * 2**20, 81920),
        ("1.5Gi", 3 * 2**29, 1536),
        ("1M", 10**6, 0),
    ],
)
def test_quantities(text: str, number: int, memory: int) -> None:
    assert (count(text), mib(text)) == (number, memory)


@pytest.mark.parametrize("text", [None, "", "x", "-1", "1e3", "1" * 40, "1Qi"])
def test_what_is_no_quantity_is_nothing_and_never_an_error(text: Any) -> None:
    assert (count(text), mib(text)) == (0, None)


# One stack after the other


def test_the_device_plugin_counts_whole_gpus_of_a_node() -> None:
    facts = Facts(
        nodes=(node(labels=A100, nvidia_com__gpu="4"),),
        pods=(
            pod("a", limits={"nvidia.com/gpu": "1"}),
            pod("b", limits={"nvidia.com/gpu": "2"}, phase="Succeeded"),
            pod("c", where=None, limits={"nvidia.com/gpu": "2"}),
        ),
    )
    (item,) = facts.items
    assert numbers(item) == ("n1/nvidia.com/gpu", 3 * 81920, 4 * 81920, 300, 400, (3, 4))
    assert (item.health, item.cordoned, item.kind) == ("ok", False, "gpu")
    assert facts.parts(facts.pods[0]) == (), "which of them a pod has nobody says"


def test_of_time_slices_memory_is_unknown_and_never_invented() -> None:
    labels = {**A100, "nvidia.com/gpu.replicas": "4"}
    facts = Facts(
        nodes=(node(labels=labels, nvidia_com__gpu_shared="8"),),
        pods=(pod("a", limits={"nvidia.com/gpu.shared": "1"}),),
    )
    (item,) = facts.items
    assert numbers(item) == ("n1/nvidia.com/gpu.shared", None, None, 175, 200, (7, 8))
    del labels["nvidia.com/gpu.replicas"]
    (item,) = Facts(nodes=(node(labels=labels, nvidia_com__gpu_shared="8"),)).items
    assert numbers(item) == ("n1/nvidia.com/gpu.shared", None, None, None, None, (8, 8))


@pytest.mark.parametrize(
    ("labels", "resource", "profile", "memory"),
    [
        ({"nvidia.com/mig-1g.10gb.memory": "9728"}, "nvidia.com/mig-1g.10gb", "1g.10gb", 9728),
        ({}, "nvidia.com/mig-1g.10gb.me", "1g.10gb+me", None),
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
                "nvidia.com/gpu.memory": "9728",
            },
            "nvidia.com/gpu",
            "1g.10gb",
            9728,
        ),
    ],
)
def test_mig_devices_by_both_strategies(
    labels: dict[str, str], resource: str, profile: str, memory: int | None
) -> None:
    here = node(labels={**A100, **labels})
    here["status"]["allocatable"] = {resource: "7"}
    facts = Facts(nodes=(here,), pods=(pod("a", limits={resource: "1"}),))
    (item,) = facts.items
    assert (item.kind, item.profile) == ("mig", profile)
    assert item.units is not None
    assert (item.units.free, item.units.count) == (6, 7)
    assert item.free_mib == (None if memory is None else 6 * memory)


HAMI = json.dumps(
    [
        {"id": "GPU-a", "count": 10, "devmem": 32768, "devcore": 100, "type": "NVIDIA-Tesla V100",
         "mode": "hami-core", "health": True},
        {"id": "GPU-b", "index": 1, "count": 10, "devmem": 32768, "devcore": 100,
         "type": "NVIDIA-Tesla V100", "health": False},
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    "register",
    [
        HAMI,
        "GPU-a,10,32768,100,NVIDIA-Tesla V100,0,true,0,hami-core:"
        "GPU-b,10,32768,100,NVIDIA-Tesla V100,0,false,1,hami-core:",
    ],
)
def test_hami_tells_each_device(register: str) -> None:
    notes = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,8192,30:;"}
    facts = Facts(
        nodes=(node(annotations={"hami.io/node-nvidia-register": register}, nvidia_com__gpu="20"),),
        pods=(pod("a", annotations=notes, limits={"nvidia.com/gpu": "1"}),),
    )
    first, second = facts.items
    assert numbers(first) == ("GPU-a", 24576, 32768, 70, 100, None)
    assert numbers(second) == ("GPU-b", None, 32768, None, 100, None), "of what failed none is free"
    assert (first.health, second.health) == ("ok", "lost")
    (part,) = facts.parts(facts.pods[0])
    assert (part.device, part.memory_mib, part.compute_percent) == ("GPU-a", 8192, 30)


def test_volcano_tells_each_device() -> None:
    register = "GPU-a,10,81920,NVIDIA-A100,true,hami-core:GPU-b,10,81920,NVIDIA-A100,true,x:"
    notes = {"volcano.sh/vgpu-ids-new": "GPU-b,NVIDIA,1126,0:"}
    facts = Facts(
        nodes=(node(annotations={"volcano.sh/node-vgpu-register": register}),),
        pods=(pod("a", annotations=notes),),
    )
    assert [(item.uuid, item.free_mib) for item in facts.items] == [
        ("GPU-a", 81920),
        ("GPU-b", 81920 - 1126),
    ]
    (part,) = facts.parts(facts.pods[0])
    assert (part.compute_percent, part.compute_cap_percent) == (0, 100)


def test_kai_s_shared_gpu_is_the_one_of_its_reservation_pod() -> None:
    reservation = pod(
        "gpu-reservation-n1-x",
        limits={"nvidia.com/gpu": "1"},
        labels={"runai-gpu-group": "g1"},
        annotations={"run.ai/reserve_for_gpu_index": "GPU-k"},
    )
    reservation["metadata"]["namespace"] = "kai-resource-reservation"
    half = pod("a", labels={"runai-gpu-group": "g1"}, annotations={"gpu-fraction": "0.50"})
    some = pod("b", labels={"runai-gpu-group/g1": "g1"}, annotations={"gpu-memory": "10240"})
    whole = pod("c", limits={"nvidia.com/gpu": "2"})
    here = node(labels=A100, nvidia_com__gpu="4")
    facts = Facts(nodes=(here,), pods=(reservation, half, some, whole))
    shared, rest = facts.items
    assert numbers(shared) == ("GPU-k", 81920 - 40960 - 10240, 81920, 100, 100, None)
    assert rest.units is not None
    assert (rest.units.free, rest.units.count) == (1, 3)
    assert [part.memory_mib for each in (half, some) for part in facts.parts(each)] == [
        40960,
        10240,
    ]
    # Without the right to see the reservation the device is unknown.
    assert Facts(nodes=(here,), pods=(half,)).parts(half) == ()


@pytest.mark.parametrize(
    ("notes", "memory"),
    [
        ({"gpu-fraction": "0.25"}, 20480),
        ({"gpu-fraction": ".5"}, 40960),
        ({"gpu-fraction": "1"}, 81920),
        ({"gpu-fraction": "2"}, None),
        ({"gpu-fraction": "x"}, None),
        ({"gpu-memory": "100"}, 100),
        ({}, None),
    ],
)
def test_kai_s_fractions(notes: dict[str, str], memory: int | None) -> None:
    assert fraction(notes, 81920) == memory


def test_nv_fractions_are_written_back_beside_the_limit() -> None:
    notes = {
        "nvidia.com/container.notebook.gpu-memory.limit": "10240Mi",
        "nvidia.com/container.notebook.gpus.devices": "GPU-1234-abcd",
    }
    (part,) = Facts().parts(pod("a", annotations=notes))
    assert (part.device, part.memory_mib) == ("GPU-1234-abcd", 10240)


def test_koordinator_counts_a_node_and_tells_the_minor() -> None:
    given = {
        "gpu": [
            {
                "minor": 1,
                "resources": {
                    "koordinator.sh/gpu-core": "50",
                    "koordinator.sh/gpu-memory": "11520Mi",
                    "koordinator.sh/gpu-memory-ratio": "50",
                },
            }
        ]
    }
    notes = {"scheduling.koordinator.sh/device-allocated": json.dumps(given)}
    here = node(labels=A100, nvidia_com__gpu="2")
    here["status"]["allocatable"] |= {
        "koordinator.sh/gpu-core": "200",
        "koordinator.sh/gpu-memory": "46080Mi",
    }
    facts = Facts(nodes=(here,), pods=(pod("a", annotations=notes),))
    (item,) = facts.items
    assert numbers(item) == ("n1/koordinator.sh/gpu", 34560, 46080, 150, 200, None)
    (part,) = facts.parts(facts.pods[0])
    assert (part.device, part.memory_mib, part.compute_percent) == ("n1/nvidia1", 11520, 50)


def claimable(count: int = 1, shared: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{number}",
                    "attributes": {
                        "uuid": {"string": f"GPU-{number}"},
                        "type": {"string": "gpu"},
                        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
                    },
                    "capacity": {"memory": {"value": "80Gi"}},
                    "allowMultipleAllocations": shared,
                    **more,
                }
                for number in range(count)
            ],
        },
    }


def claim(name: str, device: str = "gpu-0", memory: str | None = None) -> dict[str, Any]:
    result = {"driver": "gpu.nvidia.com", "pool": "n1", "device": device, "request": "gpu"}
    if memory:
        result |= {"shareID": name, "consumedCapacity": {"memory": memory}}  # type: ignore[dict-item]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def claiming(name: str) -> dict[str, Any]:
    body = pod(
        name, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": f"{name}-template"}]
    )
    body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"c-{name}"}]
    return body


def test_claims_name_their_device() -> None:
    facts = Facts(
        nodes=(node(),),
        pods=(claiming("a"), claiming("b")),
        claims=(claim("c-a", memory="30Gi"), claim("c-b", memory="20Gi")),
        slices=(claimable(),),
    )
    (item,) = facts.items
    assert numbers(item) == ("GPU-0", 30720, 81920, 100, 100, None)
    (part,) = facts.parts(facts.pods[0])
    assert (part.device, part.memory_mib, part.compute_percent) == ("GPU-0", 30720, 0)


def test_a_claimed_whole_device_is_all_taken() -> None:
    facts = Facts(
        nodes=(node(),), pods=(claiming("a"),), claims=(claim("c-a"),),
        slices=(claimable(2, shared=False),),
    )  # fmt: skip
    assert [(i.uuid, i.free_mib, i.free_percent) for i in facts.items] == [
        ("GPU-0", 0, 0),
        ("GPU-1", 81920, 100),
    ]


def test_without_the_right_to_slices_a_claimed_device_has_the_driver_s_name() -> None:
    facts = Facts(nodes=(node(),), pods=(claiming("a"),), claims=(claim("c-a"),))
    (part,) = facts.parts(facts.pods[0])
    assert (part.device, part.memory_mib) == ("gpu.nvidia.com/n1/gpu-0", None)


def test_mig_devices_that_could_be_made_are_none_yet() -> None:
    """Partitionable devices (KEP-4815): the parts and the whole draw on the same counters."""
    whole = claimable(1, shared=False, consumesCounters=[{"counterSet": "gpu-0"}])
    for number in range(2):
        whole["spec"]["devices"].append(
            {
                "name": f"gpu-0-mig-{number}",
                "attributes": {
                    "uuid": {"string": f"MIG-{number}"},
                    "type": {"string": "mig"},
                    "profile": {"string": "1g.10gb"},
                },
                "consumesCounters": [{"counterSet": "gpu-0"}],
            }
        )
    (item,) = Facts(nodes=(node(),), claims=(), slices=(whole,)).items
    assert (item.uuid, item.free_percent) == ("GPU-0", 100)
    taken = Facts(nodes=(node(),), claims=(claim("c", "gpu-0-mig-1"),), slices=(whole,))
    first, second = taken.items
    assert (first.uuid, first.free_percent, first.free_mib) == ("GPU-0", None, None)
    assert (second.uuid, second.kind, second.profile) == ("MIG-1", "mig", "1g.10gb")


def test_an_older_generation_of_a_pool_counts_no_more() -> None:
    old, new = claimable(4), claimable(1)
    new["spec"]["pool"]["generation"] = 2
    assert len(Facts(nodes=(node(),), claims=(), slices=(old, new)).items) == 1


def test_what_may_not_be_read_is_unknown() -> None:
    facts = Facts(
        nodes=(node(labels=A100, nvidia_com__gpu="4"),),
        pods=(pod("a", limits={"nvidia.com/gpu": "1"}),),
        everywhere=False,
    )
    (item,) = facts.items
    assert numbers(item) == ("n1/nvidia.com/gpu", None, 4 * 81920, None, 400, (None, 4))
    (item,) = Facts(nodes=(node(),), claims=None, slices=(claimable(),)).items
    assert (item.free_mib, item.free_percent) == (None, None)


def test_a_node_that_is_not_ready_is_lost_and_a_cordoned_one_says_so() -> None:
    facts = Facts(
        nodes=(
            node("b", cordoned=True, nvidia_com__gpu="1"),
            node("a", ready="Unknown", nvidia_com__gpu="1"),
        )
    )
    assert [(item.node, item.health, item.cordoned) for item in facts.items] == [
        ("a", "lost", False),
        ("b", "ok", True),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", '[{"id": 1}]', "a,b:c", "GPU,x,y,z,true:", '[{"devmem": "x"}]']
)
def test_what_a_stack_writes_strangely_is_no_device_and_no_error(text: str) -> None:
    notes = {
        "hami.io/vgpu-devices-allocated": text,
        "scheduling.koordinator.sh/device-allocated": text,
    }
    for key in notes:
        assert Facts().parts(pod("a", annotations={key: text})) == ()
    facts = Facts(nodes=(node(annotations={"hami.io/node-nvidia-register": text}),))
    assert facts.items == []


def test_several_containers_and_devices_of_hami() -> None:
    found = vgpus("GPU-a,NVIDIA,100,10:GPU-b,NVIDIA,100,10:;;GPU-c[1-0],NVIDIA,5,0:;")
    assert [part.device for part in found] == ["GPU-a", "GPU-b", "GPU-c"]


# What fits

CLUSTER = Cluster.of([node(labels=A100, nvidia_com__gpu="4")])


def fits(facts: Facts, text: str, dialect: str = "hami", **settings: Any) -> Any:
    request = GpuRequest.parse(text)
    cluster = Cluster.of(facts.nodes)
    patch = DIALECTS[dialect].of(settings).patch(request, PodContext("p", cluster=cluster))
    found = fit(request, patch, facts)
    return found.now, found.never, found.wanted.room and found.wanted.room.nodes


@pytest.mark.parametrize(
    ("text", "now", "never"),
    [
        ("0.5", True, False),
        ("0.7", True, False),
        ("0.75", False, False),
        ("20GiB", True, False),
        ("30GiB/10%", False, False),
        ("40GiB", False, True),
        ("1", False, False),
        ("2", False, True),
        ("v100:0.5", True, False),
    ],
)
def test_a_slice_has_to_fit_on_one_device(text: str, now: bool, never: bool) -> None:
    notes = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,8192,30:;"}
    facts = Facts(
        nodes=(
            node(
                annotations={"hami.io/node-nvidia-register": HAMI},
                labels={"nvidia.com/gpu.product": "Tesla-V100-PCIE-32GB"},
            ),
        ),
        pods=(pod("a", annotations=notes),),
    )
    assert fits(facts, text)[:2] == (now, never), "the device that failed does not count"


def test_a_model_means_the_nodes_that_have_it() -> None:
    """A free L4 is no free A100."""
    l4 = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    facts = Facts(
        nodes=(node("n1", A100, nvidia_com__gpu="2"), node("n2", l4, nvidia_com__gpu="8")),
        pods=(pod("a", limits={"nvidia.com/gpu": "2"}),),
    )
    assert fits(facts, "a100:1", "nvidia") == (False, False, ((0, 2),))
    assert fits(facts, "l4:1", "nvidia") == (True, False, ((8, 8),))
    assert fits(facts, "1", "nvidia")[0] is True


def test_kai_s_fractions_go_on_shared_gpus_and_on_whole_ones() -> None:
    reservation = pod(
        "r", limits={"nvidia.com/gpu": "1"}, labels={"runai-gpu-group": "g"},
        annotations={"run.ai/reserve_for_gpu_index": "GPU-k"},
    )  # fmt: skip
    half = pod("a", labels={"runai-gpu-group": "g"}, annotations={"gpu-fraction": "0.50"})
    here = node(labels=A100, nvidia_com__gpu="1")
    full = Facts(nodes=(here,), pods=(reservation, half))
    assert fits(full, "0.5", "kai") == (True, False, ((1, 1),))
    assert fits(full, "0.75", "kai") == (False, False, ((0, 1),))
    assert fits(full, "1", "kai")[0] is False
    empty = Facts(nodes=(here,), pods=())
    assert fits(empty, "0.75", "kai") == (True, False, ((1, 1),))


def test_claims_fit_where_their_device_has_room() -> None:
    shared = Facts(
        nodes=(node(),), claims=(claim("c", memory="50Gi"),), slices=(claimable(),)
    )  # fmt: skip
    assert fits(shared, "30GiB", "dra", shares=True) == (True, False, ((1, 1),))
    assert fits(shared, "40GiB", "dra", shares=True) == (False, False, ((0, 1),))
    assert fits(shared, "100GiB", "dra", shares=True) == (False, True, ())
    whole = Facts(nodes=(node(),), claims=(claim("c"),), slices=(claimable(2, shared=False),))
    assert fits(whole, "1", "dra") == (True, False, ((1, 2),))
    assert fits(whole, "2", "dra") == (False, False, ((1, 2),))
    unread = Facts(nodes=(node(),), claims=None, slices=(claimable(2, shared=False),))
    assert fits(unread, "1", "dra") == (None, False, None)


def test_an_offer_says_what_the_words_cannot() -> None:
    facts = Facts(nodes=(node(labels=A100, nvidia_com__gpu="4"),))
    nvidia, context = DIALECTS["nvidia"].of({}), PodContext("p", cluster=CLUSTER)
    never = offer(GpuRequest.parse("0.5"), nvidia, context, facts, False)
    assert never.never
    assert "whole GPUs only" in never.message
    two = offer(GpuRequest.parse("2"), nvidia, context, facts, False)
    assert (two.free, two.total) == (2, 2)
    grows = offer(GpuRequest.parse("8"), nvidia, context, facts, True)
    assert not grows.never, "where nodes are added what is too much now may come"
    part = DIALECTS["nvidia"].of({"sharing": "time-slicing", "replicas": 4})
    shares = Facts(nodes=(node(labels=A100, nvidia_com__gpu_shared="8"),))
    assert offer(GpuRequest.parse("0.25"), part, context, shares, False).free == 8
    assert offer(GpuRequest.parse("0"), part, context, shares, False).free is None


# Sessions


def server(**more: Any) -> dict[str, Any]:
    notes = {
        REQUEST: "0.5",
        HUB: "jupyterhub",
        "hub.jupyter.org/username": "ana@x.org",
        "hub.jupyter.org/servername": "lab",
    }
    return pod("jupyter-ana", **{"annotations": notes, **more})


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "active", ""),
        ({"phase": "Pending"}, "granted", "starting"),
        ({"phase": "Pending", "where": None}, "queued", "has not said"),
        ({"phase": "Succeeded"}, "released", "ended"),
        ({"phase": "Failed"}, "released", "failed"),
        (
            {"where": None, "phase": "Pending", "labels": {"kueue.x-k8s.io/queue-name": "team-a"},
             "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
            "queued",
            "in the queue team-a",
        ),
    ],
)  # fmt: skip
def test_a_pod_s_phase_is_a_lease_s_state(changes: Any, state: str, words: str) -> None:
    session = session_of(server(**changes), Facts())
    assert session is not None
    assert (session.state, session.holder.id) == (state, "ana@x.org/lab")
    assert words in session.detail
    lease = session.to_dict()
    assert lease["created"] == 1767323045
    assert (lease["slices"], lease["granted"], lease["used"]["memory_mib"]) == ([], None, None)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("DeadlineExceeded", "expired"),
        ("Evicted", "revoked"),
        ("Preempting", "revoked"),
        ("NodeLost", "lost"),
        ("", "released"),
    ],
)
def test_how_a_pod_ended(reason: str, state: str) -> None:
    body = server(phase="Failed")
    body["status"]["reason"] = reason
    session = session_of(body, Facts())
    assert session is not None
    assert session.state == state


def test_a_lifetime_is_told_from_when_the_pod_began() -> None:
    body = server(activeDeadlineSeconds=3600)
    assert session_of(body, Facts()).to_dict()["expires"] is None  # type: ignore[union-attr]
    body["status"]["startTime"] = "2026-01-02T03:04:05Z"
    session = session_of(body, Facts())
    assert session is not None
    assert session.to_dict()["expires"] == 1767323045 + 3600


def test_a_pod_that_waits_says_why_in_words() -> None:
    body = server(phase="Pending", where=None)
    message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    body["status"]["conditions"] = [condition]
    session = session_of(body, Facts())
    assert session is not None
    assert session.detail == "2 nodes have no room for 0.5 now."


def test_a_pod_that_is_being_stopped_holds_what_it_has() -> None:
    body = server()
    body["metadata"]["deletionTimestamp"] = "2026-01-02T04:00:00Z"
    session = session_of(body, Facts())
    assert session is not None
    assert (session.state, session.holds) == ("active", True)
    assert "being stopped" in session.detail


def test_other_pods_are_nobody_s_session() -> None:
    assert session_of(pod("x", limits={"nvidia.com/gpu": "1"}), Facts()) is None
    assert belongs(server(), "jupyterhub", "default")
    assert belongs(server(), "jupyterhub", ""), "with a namespace for each user"
    assert not belongs(server(), "jupyterhub", "elsewhere")
    assert not belongs(server(), "another-hub", "default"), "ana there is not ana here"
