"""KubeSpawner with profiles, end to end: a real hub, real servers, the emulated cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kubernetes.server import HANG_UP
from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually

from .settings import A100, Setting, environment, limits

pytestmark = pytest.mark.slow
OUTAGE = 20.0
__all__ = ["make_hub"]


@pytest.fixture(scope="module")
def setting(
    make_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setting]:
    made = Setting(make_hub, tmp_path_factory.mktemp("kube"))
    yield made
    made.cluster.stop()


@pytest.fixture(autouse=True)
def clean(setting: Setting) -> Iterator[None]:
    yield
    setting.clean()


def test_a_server_is_a_pod_with_its_gpu_and_goes(setting: Setting) -> None:
    hub = setting.hub
    hub.run("ana", {"profile": "whole", "request": "1"})
    pod = setting.pod("ana")
    assert limits(pod)["nvidia.com/gpu"] == "1"
    assert pod["status"]["phase"] == "Running"
    hub.end("ana")
    eventually(lambda: not setting.pods(), "the pod's end")


def test_kubespawner_546_nothing_of_one_start_is_left_for_the_next(setting: Setting) -> None:
    """A GPU choice followed by a CPU choice kept the GPU."""
    hub = setting.hub
    for options, gpus in (
        ({"profile": "whole", "request": "2"}, "2"),
        ({"profile": "cpu"}, None),
        (None, None),
        ({"profile": "whole", "request": "1"}, "1"),
    ):
        if options is None:
            continue
        hub.run("ben", options)
        pod = setting.pod("ben")
        assert limits(pod).get("nvidia.com/gpu") == gpus
        if gpus is None:
            assert environment(pod)["NVIDIA_VISIBLE_DEVICES"] == "void"
        hub.end("ben")


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"profile": "whole", "request": "3"}, 409, "no node has more than 2 GPUs"),
        ({"profile": "slice", "request": "0.5"}, 409, "whole GPUs only"),
        ({"profile": "big"}, 403, "not for you"),
        ({"profile": "whole", "gres": "x"}, 400, "There is no option"),
        ({"profile": "nothing"}, 400, "There is no profile"),
    ],
)
def test_2i2c_infrastructure_2095_what_cannot_be_is_refused_at_once_and_makes_no_pod(
    setting: Setting, options: Any, status: int, words: str
) -> None:
    """An impossible request failed after 600 s, without words."""
    began = time.monotonic()
    response = setting.hub.spawn("eve", options)
    if response.status_code == 202:
        last = setting.hub.progress("eve", lambda event: bool(event.get("failed")))[-1]
        assert words in last["message"]
    else:
        assert response.status_code == status
        assert words in response.json()["message"]
    assert time.monotonic() - began < 5
    assert not setting.pods()


def test_kubespawner_889_a_group_s_profile_is_had_by_its_members_and_by_no_way_else(
    setting: Setting,
) -> None:
    """By form, by REST and for a named server. Also kubespawner#589, z2jh#1734."""
    from tests.hub.test_hub import form_of, login, submit

    hub = setting.hub
    assert "For some" not in form_of(hub, login(hub, "eve"))
    assert submit(hub, login(hub, "eve"), choice="big/2").status_code == 403
    for name in ("", "named"):
        refused = hub.spawn("eve", {"profile": "big"}, name)
        assert (refused.status_code, setting.pods()) == (403, [])
    assert "For some" in form_of(hub, login(hub, "mia"))
    hub.run("mia", {"profile": "big"})
    assert limits(setting.pod("mia"))["nvidia.com/gpu"] == "2"


def test_z2jh_3000_a_server_without_a_gpu_sees_none_whatever_its_image_says(
    setting: Setting,
) -> None:
    """Also gpu-operator#1502, HAMi-core#119."""
    hub = setting.hub
    hub.run("ana", {"profile": "cpu"})
    hub.run("ben", {"profile": "whole", "request": "1"})
    assert environment(setting.pod("ana"))["NVIDIA_VISIBLE_DEVICES"] == "void"
    # Of its devices a server with a GPU is told by the stack alone.
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(setting.pod("ben"))
    assert limits(setting.pod("ana")) == {}


def test_z2jh_3801_a_full_cluster_says_what_is_there_and_serves_when_it_can(
    setting: Setting,
) -> None:
    """'Insufficient nvidia.com/gpu' or a timer, and no reason. Also operate-first/support#70,
    pangeo-eosc#74."""
    hub = setting.hub
    hub.run("ana", {"profile": "whole", "request": "1"})
    assert hub.spawn("ben", {"profile": "whole", "request": "2"}).status_code == 202
    events = hub.progress("ben", lambda event: "GPUs are wanted" in event.get("message", ""))
    assert events[-1]["message"] == (
        "2 GPUs are wanted, and the node with the most free ones has 1. "
        "A profile with 1 GPU would start now; this one waits for more."
    )
    hub.end("ana")
    hub.ready("ben")


def test_a_cancelled_start_leaves_no_pod(setting: Setting) -> None:
    hub = setting.hub
    hub.run("ana", {"profile": "whole", "request": "2"})
    assert hub.spawn("ben", {"profile": "whole", "request": "2"}).status_code == 202
    eventually(lambda: len(setting.pods()) == 2, "the waiting pod")
    hub.end("ben")
    eventually(lambda: len(setting.pods()) == 1, "its end")


def test_a_node_that_is_gone_takes_its_servers_and_no_others(setting: Setting) -> None:
    hub, cluster = setting.hub, setting.cluster
    cluster.node("n2", gpus=4, labels=A100)
    hub.run("ana", {"profile": "whole", "request": "3"})
    hub.run("ben", {"profile": "whole", "request": "1"})
    assert setting.pod("ana")["spec"]["nodeName"] == "n2"
    other = setting.pod("ben")["spec"]["nodeName"]
    cluster.remove_node("n2")
    eventually(lambda: hub.model("ana") is None or not hub.model("ana")["ready"], "ana's end", 90)
    names = {p["metadata"]["name"] for p in setting.pods()}
    assert not any(name.startswith("jupyter-ana") for name in names), "nothing is left of it"
    if other == "n1":
        assert hub.model("ben")["ready"]


@pytest.mark.parametrize(("code", "late"), [(429, False), (500, True), (HANG_UP, False)])
def test_an_api_that_is_busy_for_a_while_costs_patience_and_nothing_else(
    setting: Setting, code: int, late: bool
) -> None:
    spawn_in_an_outage(setting, {"profile": "whole", "request": "1"}, code, late)


def spawn_in_an_outage(setting: Setting, options: Any, code: int, late: bool) -> None:
    """Start and stop a server while the API answers with an error for 20 s; ``late``: from when its
    pod is there."""
    hub, cluster = setting.hub, setting.cluster
    hub.run("ana", options)
    before = setting.objects()
    if late:
        cluster.slow_nodes(3)
    else:
        cluster.fail(code, seconds=OUTAGE)
    began = time.monotonic()
    assert hub.spawn("ben", options).status_code in (201, 202)
    if late:
        eventually(lambda: len(setting.pods()) == 2, "ben's pod")
        cluster.fail(code, seconds=OUTAGE)
    eventually(lambda: (hub.model("ben") or {}).get("ready"), "ben's server", OUTAGE + 60)
    cluster.slow_nodes(0)
    if not late:
        assert time.monotonic() - began > OUTAGE
    assert [limits(setting.pod(user)) for user in ("ana", "ben")] == [
        limits(setting.pod("ana"))
    ] * 2
    cluster.fail(code, seconds=OUTAGE)
    hub.end("ben")
    eventually(lambda: setting.objects() == before, "nothing left of ben's server", OUTAGE + 60)
    assert hub.model("ana")["ready"]
    assert setting.pod("ana")["status"]["phase"] == "Running"


def test_watches_that_end_lose_nothing(setting: Setting) -> None:
    hub, cluster = setting.hub, setting.cluster
    hub.run("ana", {"profile": "whole", "request": "1"})
    for _ in range(3):
        cluster.drop_watches()
        time.sleep(0.3)
    hub.run("ben", {"profile": "whole", "request": "1"})
    hub.end("ana")
    eventually(lambda: len(setting.pods()) == 1, "the end of ana's pod")


def test_a_quota_is_told_in_numbers(setting: Setting) -> None:
    hub, cluster = setting.hub, setting.cluster
    hard = {"requests.nvidia.com/gpu": "1"}
    cluster.create("resourcequotas", {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    try:
        hub.run("ana", {"profile": "whole", "request": "1"})
        response = hub.spawn("ben", {"profile": "whole", "request": "1"})
        assert response.status_code == 409, response.text
        assert "may hold 1 and holds 1" in response.json()["message"]
    finally:
        cluster._call(lambda: cluster.store.remove(
            next(k for k in cluster.store._objects if k.plural == "resourcequotas"),
            "default", "gpus",
        ))  # fmt: skip


def test_a_hub_that_is_restarted_in_the_middle_of_a_start_leaves_nothing(
    setting: Setting,
) -> None:
    hub = setting.hub
    hub.run("ana", {"profile": "whole", "request": "2"})
    # After a start that failed the hub answers 201 while the next one waits.
    answer = hub.spawn("ben", {"profile": "whole", "request": "1"})
    assert answer.status_code in (201, 202)
    eventually(lambda: len(setting.pods()) == 2, "the waiting pod")
    kill_and_start(hub)
    assert hub.model("ana")["ready"], "who runs goes on"

    def settled() -> bool:
        # The next hub looks for the server for as long as for any other, and gives it up then.
        ben = hub.model("ben")
        return ben is None or not (ben["pending"] or ben["ready"])

    eventually(settled, "the hub to give the start up", 90)
    eventually(lambda: len(setting.pods()) == 1, "the end of its pod", 30)
    hub.run("ben", {"profile": "cpu"})
    assert limits(setting.pod("ben")).get("nvidia.com/gpu") is None
    assert len(setting.pods()) == 2


def kill_and_start(hub: Hub) -> None:
    assert hub.process is not None
    hub.process.kill()
    hub.process.wait()
    hub.start()


def test_operate_first_20_the_form_counts_what_the_nodes_have(setting: Setting) -> None:
    """Also kubeflow#6217, swan-cern/jupyterhub-extensions#59, jupyterhub#3043, renku-ui#786."""
    from tests.hub.test_hub import form_of, login

    hub = setting.hub
    hub.run("ana", {"profile": "whole", "request": "1"})
    text = form_of(hub, login(hub, "ben"))
    assert "1 of 2 free" in text
    assert "whole GPUs only" in text, "what this cluster cannot give says so"
    assert "no node has more than 2 GPUs" in text


class TestClaims:
    """Dynamic Resource Allocation: two share a device's memory, a third waits."""

    @pytest.fixture(scope="class")
    @classmethod
    def dra(
        cls, make_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Setting]:
        # With a home volume for each user, as most clusters have it.
        more = "c.KubeSpawner.storage_pvc_ensure = True\nc.KubeSpawner.storage_capacity = '1Gi'"
        made = Setting(make_hub, tmp_path_factory.mktemp("dra"), "dra", more, shares=True)
        made.cluster.gpu_devices("n1", 1, "80Gi", shared=True)
        yield made
        made.cluster.stop()

    @pytest.fixture(autouse=True)
    @staticmethod
    def clean_claims(dra: Setting) -> Iterator[None]:
        yield
        dra.clean()

    def test_odh_manifests_254_users_share_one_device_each_with_its_part(
        self, dra: Setting
    ) -> None:
        """One GPU was one user's. Also jupyter/help#235, determined#1721, netapp-dataops#19."""
        hub, cluster = dra.hub, dra.cluster
        wish = {"profile": "custom", "request": "30GiB"}
        hub.run("ana", wish)
        hub.run("ben", wish)
        assert hub.spawn("eve", wish).status_code == 202
        events = hub.progress("eve", lambda event: "has room" in event.get("message", ""))
        assert events[-1]["message"] == (
            "No GPU of the cluster has room for 30GiB now. "
            "It starts by itself when somebody gives one back."
        )
        assert environment(dra.pod("ana"))["JUPYTER_GPUSLICE_SHARE"] == "30GiB"
        assert len(cluster.all("resourceclaimtemplates")) == 3
        hub.end("ana")
        hub.ready("eve")
        for user in ("ben", "eve"):
            hub.end(user)
        eventually(lambda: not dra.pods(), "the pods' end")
        assert not cluster.all("resourceclaimtemplates")
        assert not cluster.all("resourceclaims")

    def test_a_cancelled_start_leaves_no_claim(self, dra: Setting) -> None:
        hub, cluster = dra.hub, dra.cluster
        wish = {"profile": "custom", "request": "50GiB"}
        hub.run("ana", wish)
        assert hub.spawn("ben", wish).status_code == 202
        eventually(lambda: len(dra.pods()) == 2, "the waiting pod")
        hub.end("ben")
        hub.end("ana")
        eventually(lambda: not cluster.all("resourceclaimtemplates"), "nothing left beside")
        assert not cluster.all("resourceclaims")

    @pytest.mark.parametrize(("code", "late"), [(500, False), (HANG_UP, True)])
    def test_a_busy_api_leaves_no_claim_and_loses_none(
        self, dra: Setting, code: int, late: bool
    ) -> None:
        spawn_in_an_outage(dra, {"profile": "custom", "request": "30GiB"}, code, late)

    def test_a_hub_that_is_killed_in_the_middle_of_a_start_leaves_no_claim(
        self, dra: Setting
    ) -> None:
        hub = dra.hub
        hub.run("ana", {"profile": "custom", "request": "50GiB"})
        before = dra.objects()
        answer = hub.spawn("ben", {"profile": "custom", "request": "50GiB"})
        assert answer.status_code in (201, 202)
        eventually(lambda: len(dra.pods()) == 2, "the waiting pod")
        assert dra.objects() != before
        kill_and_start(hub)
        eventually(lambda: dra.objects() == before, "nothing left of ben's start", 120)
        assert hub.model("ana")["ready"], "who runs goes on"


class TestKueue:
    """Pods that wait in a queue tell their place in it."""

    def test_the_place_in_the_queue_is_told(
        self, make_hub: Callable[..., Hub], tmp_path: Path
    ) -> None:
        more = (
            'c.KubeSpawner.extra_labels = {"kueue.x-k8s.io/queue-name": "team-a"}\n'
            'c.KubeSpawner.extra_pod_config = {"schedulingGates": '
            '[{"name": "kueue.x-k8s.io/admission"}]}'
        )
        setting = Setting(make_hub, tmp_path, more=more)
        hub, cluster = setting.hub, setting.cluster
        try:
            assert hub.spawn("ana", {"profile": "whole", "request": "1"}).status_code == 202
            uid = setting.pod("ana")["metadata"]["uid"]
            item = {
                "metadata": {"name": "pod-x", "ownerReferences": [{"uid": uid}]},
                "positionInClusterQueue": 4,
                "positionInLocalQueue": 1,
            }
            cluster.set_queue("default", "team-a", [item])
            events = hub.progress("ana", lambda event: "Place" in event.get("message", ""))
            assert events[-1]["message"] == (
                "Place 2 in the queue team-a, place 5 among all queues."
            )
            hub.end("ana")
            eventually(lambda: not setting.pods(), "the pod's end")
        finally:
            cluster.stop()
