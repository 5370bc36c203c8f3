"""What schedulers say, as a person reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuslice.hub.kube.room import Room, room, wanted
from jupyter_gpuslice.hub.kube.words import Wanted, explain, latest, too_few

TWO = Wanted("2", 2)
FULL = Wanted("2", 2, Room(((0, 8), (0, 8))))
ONE_FREE = Wanted("2", 2, Room(((1, 8), (1, 8), (0, 4))))
SMALL = Wanted("2", 2, Room(((1, 1),) * 4))


@pytest.mark.parametrize(
    ("reason", "message", "what", "word", "sentence"),
    [
        (
            "FailedScheduling",
            "0/2 nodes are available: 2 Insufficient nvidia.com/mig-1g.10gb.",
            Wanted("1g.10gb"),
            "insufficient_devices",
            "2 nodes have no room for 1g.10gb now.",
        ),
        (
            "FailedScheduling",
            "0/3 nodes are available: 1 node(s) had untolerated taint {a: b}, 2 Insufficient "
            "nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No preemption victims found.",
            ONE_FREE,
            "insufficient_devices",
            "2 GPUs are wanted, and the node with the most free ones has 1.",
        ),
        (
            "FailedScheduling",
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            FULL,
            "insufficient_devices",
            "All 16 GPUs of the cluster are in use.",
        ),
        (
            "FailedScheduling",
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            SMALL,
            "insufficient_devices",
            "2 GPUs are wanted, and no node has more than 1 GPU.",
        ),
        (
            "FailedScheduling",
            "0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) didn't match Pod's "
            "node affinity/selector. still not schedulable, preemption: 0/2 nodes are available: "
            "2 Preemption is not helpful for scheduling.",
            Wanted("30GiB"),
            "insufficient_devices",
            "1 node has no room for 30GiB now.",
        ),
        (
            "FailedScheduling",
            "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.",
            TWO,
            "model",
            "No node that is free has the kind of GPU",
        ),
        (
            "FailedScheduling",
            "0/4 nodes are available: 1 Insufficient memory, 3 node(s) had untolerated taint "
            "{node.kubernetes.io/unreachable: }.",
            TWO,
            "memory",
            "too little main memory",
        ),
        (
            "FailedScheduling",
            "0/1 nodes are available: 1 node(s) were unschedulable.",
            TWO,
            "cordoned",
            "maintenance",
        ),
        (
            "FailedScheduling",
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            TWO,
            "volume",
            "Your storage",
        ),
        (
            "FilteringFailed",
            "3 nodes CardInsufficientMemory(node-a,node-b,node-c)",
            Wanted("10GiB"),
            "insufficient_devices",
            "3 nodes have no room for 10GiB now.",
        ),
        ("FilteringFailed", "1/1 CardTypeMismatch", TWO, "model", "the kind of GPU"),
        ("FilteringFailed", "2/4 CardNotHealth", TWO, "health", "out of order"),
        (
            "Unschedulable",
            "no nodes with enough resources were found: 5 node(s) didn't have enough resources: "
            "GPUs.",
            Wanted("0.5"),
            "insufficient_devices",
            "5 nodes have no room for 0.5 now.",
        ),
        (
            "Unschedulable",
            "PodSchedulingErrors: Resources were found for 2 pods while 3 are required for gang "
            "scheduling. Additional pods cannot be scheduled due to: no nodes with enough "
            "resources were found: 3 node(s) didn't have enough resources: GPUs..",
            TWO,
            "gang",
            "room for 2 of the group's 3 servers",
        ),
        (
            "Unschedulable",
            "team-a quota has reached the allowable limit of GPUs. Limit is 4 GPUs, currently 4 "
            "GPUs allocated and workload requested 1 GPUs",
            TWO,
            "over_quota",
            "may hold 4 GPUs and holds 4",
        ),
        (
            "Pending",
            "couldn't assign flavors to pod set main: insufficient unused quota for "
            "nvidia.com/gpu in flavor default-flavor, 1 more needed",
            TWO,
            "over_quota",
            "1 more would have to be given back",
        ),
        (
            "Pending",
            "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in "
            "flavor ml, request > maximum capacity (8 > 4)",
            TWO,
            "over_quota",
            "8 of nvidia.com/gpu are wanted, and the whole queue has 4.",
        ),
        (
            "Pending",
            "couldn't assign flavors: insufficient quota for nvidia.com/gpu in flavor a, request "
            "> maximum capacity (8 > 0), insufficient unused quota for nvidia.com/gpu in flavor "
            "b, 1 more needed",
            TWO,
            "over_quota",
            "1 more would have to be given back",
        ),
        (
            "Forbidden",
            'pods "jupyter-ana" is forbidden: exceeded quota: gpus, requested: '
            "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: "
            "requests.nvidia.com/gpu=4",
            TWO,
            "over_quota",
            "may hold 4 and holds 4 of nvidia.com/gpu",
        ),
        (
            "Forbidden",
            "exceeded quota: compute, requested: requests.cpu=2, used: requests.cpu=9, limited: "
            "requests.cpu=10",
            TWO,
            "over_quota",
            "The quota of cpu",
        ),
        ("TriggeredScaleUp", "pod triggered scale-up: [{g 1->2 (max: 5)}]", TWO, "scale_up", "new"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 max", TWO, "no_scale_up", "grow"),
        ("Pulling", 'Pulling image "x"', TWO, "image", "fetching"),
        ("Failed", 'Failed to pull image "x": not found', TWO, "image", "cannot be fetched"),
        ("Failed", "Error: no such command", TWO, "failed", "no such command"),
    ],
)
def test_words(reason: str, message: str, what: Wanted, word: str, sentence: str) -> None:
    wait = explain(reason, message, what)
    assert wait is not None
    assert wait.reason == word
    assert sentence in wait.sentence
    assert wait.sentence.endswith(".")


def test_what_can_never_be_says_so_and_what_to_choose() -> None:
    assert too_few(SMALL).never
    assert str(too_few(SMALL)).endswith("Choose a profile with at most 1 GPU.")
    none = too_few(Wanted("1", 1, Room()))
    assert none.never and "no node has more than none" in none.sentence
    assert not too_few(FULL).never
    assert "A profile with 1 GPU would start now" in str(too_few(ONE_FREE))


def test_what_says_nothing_of_a_wait_is_left_out() -> None:
    events = [
        ("FailedScheduling", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        ("Scheduled", "Successfully assigned hub/jupyter-ana to n1"),
        ("Created", "Created container"),
    ]
    assert explain(*events[1], TWO) is None
    wait = latest(events, TWO)
    assert wait is not None and wait.reason == "insufficient_devices"
    assert latest(events[1:], TWO) is None


@given(st.text(max_size=300))
def test_whatever_a_scheduler_says_it_becomes_a_sentence(message: str) -> None:
    wait = explain("FailedScheduling", message, ONE_FREE)
    assert wait is not None and wait.sentence
    assert "\n" not in wait.sentence


def node(name: str, gpus: str | None, **spec: object):
    allocatable = {"cpu": "8"} if gpus is None else {"nvidia.com/gpu": gpus}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable}}


def pod(node_name: str | None, gpus: int, phase: str = "Running", before: int = 0):
    def container(count: int):
        return {"resources": {"limits": {"nvidia.com/gpu": str(count)} if count else None}}

    spec = {"nodeName": node_name, "containers": [container(gpus), {}]}
    if before:
        spec["initContainers"] = [container(before)]
    return {"spec": spec, "status": {"phase": phase}}


def test_room_is_what_nodes_have_less_what_pods_hold() -> None:
    nodes = [node("a", "8"), node("b", "4"), node("c", None), node("d", "8", unschedulable=True)]
    pods = [pod("a", 6), pod("a", 2, "Succeeded"), pod(None, 8), pod("b", 1, before=3), pod("x", 1)]
    found = room(nodes, pods, "nvidia.com/gpu")
    assert found == Room(((2, 8), (1, 4)))
    assert (found.node_free, found.node_whole, found.whole) == (2, 8, 12)
    assert found.pods(2) == (1, 6)
    assert wanted(pods[3], "nvidia.com/gpu") == 3
    assert room([], [], "nvidia.com/gpu") == Room()
