"""The hub's service on Kubernetes: what the cluster granted, from the emulated cluster's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_asyncio import client, config
from prometheus_client import generate_latest

from jupyter_gpuslice.hub.frame import Frame
from jupyter_gpuslice.hub.kube.service import ClusterNode, KubeSettings
from jupyter_gpuslice.hub.kube.session import HUB, ISOLATION, REQUEST
from jupyter_gpuslice.hub.node import HUB as THE_HUB
from jupyter_gpuslice.server.api import ApiError, Caller
from tests.fakes.kubernetes import Cluster

PRODUCT = "NVIDIA-A100-SXM4-80GB"
A100 = {"nvidia.com/gpu.product": PRODUCT, "nvidia.com/gpu.memory": "81920"}
DOCUMENT = yaml.safe_load((files("jupyter_gpuslice.server") / "openapi.yaml").read_text())
ANA, BEN, ADMIN = Caller("ana"), Caller("ben"), Caller("root", admin=True)
FRAME = Frame("/hub/", "/services/gpuslice/", "root", True, "this cluster")


def check(name: str, body: Any) -> None:
    """Against the schema of the REST interface."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.validate(body, schema)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.node("n1", gpus=4, labels=A100)
    yield made
    made.stop()


def server(user: str, gpus: int = 1, hub: str = "jupyterhub", **spec: Any) -> dict[str, Any]:
    """A pod as our spawner makes it."""
    limits = {"nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {
            "name": f"jupyter-{user}",
            "annotations": {
                REQUEST: str(gpus),
                ISOLATION: "watch",
                HUB: hub,
                "hub.jupyter.org/username": user,
            },
        },
        "spec": {
            "containers": [
                {"name": "notebook", "image": "x", "resources": {"limits": limits}},
            ],
            **spec,
        },
    }


def run(
    cluster: Cluster, folder: Path, scenario: Callable[..., Awaitable[None]], nodes: int = 1
) -> None:
    """A scenario with so many services, each with a client of its own."""

    async def all_of_it() -> None:
        made = [await node_of(cluster, folder) for _ in range(nodes)]
        try:
            await scenario(*made)
        finally:
            for node in made:
                await node.stop()

    asyncio.run(all_of_it())


async def node_of(cluster: Cluster, folder: Path, **settings: Any) -> ClusterNode:
    chosen = client.Configuration()
    kubeconfig = cluster.kubeconfig(folder / "kubeconfig")
    await config.load_kube_config(str(kubeconfig), client_configuration=chosen)
    told = {"hub": "jupyterhub", "namespace": "default", **settings}
    node = ClusterNode(KubeSettings(**told), client.ApiClient(chosen))
    await node.start()
    return node


async def until(look: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    for _ in range(int(seconds * 20)):
        try:
            found = look()
        except ApiError:
            found = None
        if found:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited for {what}")


def active(node: ClusterNode, count: int) -> Callable[[], bool]:
    return lambda: [each["state"] for each in node.leases(ADMIN)] == ["active"] * count


def test_users_see_their_own_and_admins_all(cluster: Cluster, tmp_path: Path) -> None:
    for user, gpus in (("ana", 1), ("ben", 2)):
        cluster.create("pods", server(user, gpus))
    cluster.create("pods", server("eve", 2))  # waits
    cluster.create("pods", server("mia", hub="another-hub"))

    async def scenario(node: ClusterNode) -> None:
        def settled() -> bool:
            states = {each["holder"]["user"]: each["state"] for each in node.leases(ADMIN)}
            return states == {"ana": "active", "ben": "active", "eve": "queued"}

        await until(settled, "two servers that run and one that waits")
        (mine,) = node.leases(ANA)
        check("Lease", mine)
        assert (mine["holder"]["id"], mine["request"], mine["node"]) == ("ana/", "1", "n1")
        assert node.lease(ANA, mine["id"]) == mine
        with pytest.raises(ApiError) as refused:
            node.lease(BEN, mine["id"])
        assert refused.value.reason == "not_owner"
        with pytest.raises(ApiError) as missing:
            node.lease(ADMIN, "nothing")
        assert missing.value.status == 404

        pool = node.pool(ADMIN)
        check("Pool", pool)
        (device,) = pool["devices"]
        # mia's hub is another one: what her server holds is taken all the same
        assert device["units"] == {"resource": "nvidia.com/gpu", "count": 4, "free": 0}
        assert len(device["leases"]) == 2
        (waiting,) = pool["queue"]
        assert waiting["holder"]["user"] == "eve"
        (eve,) = [each for each in node.leases(ADMIN) if each["state"] == "queued"]
        assert eve["detail"] == "All 4 GPUs of the cluster are in use."
        theirs = node.pool(BEN)
        check("Pool", theirs)
        assert theirs["devices"][0]["leases"] == [node.leases(BEN)[0]["id"]]
        assert theirs["queue"][0]["holder"] == {
            "kind": "session", "id": None, "user": None, "name": None,
        }  # fmt: skip
        assert theirs["queue"][0]["id"] is None
        for caller in (ADMIN, BEN):
            page = node.page(caller, FRAME, "x")
            assert ("ana" in page) == caller.admin
            assert "0 of 4 GPUs free" in page
            assert "None" not in page.replace("<p>None.</p>", "")

    run(cluster, tmp_path, scenario)


def test_two_services_show_the_same_and_one_that_was_restarted_everything_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The cluster is the ledger: nothing is kept beside it."""

    async def scenario(one: ClusterNode, two: ClusterNode) -> None:
        for user in ("ana", "ben"):
            cluster.create("pods", server(user))
        for node in (one, two):
            await until(active(node, 2), "both servers")
        assert one.leases(ADMIN) == two.leases(ADMIN)
        assert one.pool(ADMIN) == two.pool(ADMIN)
        before = one.leases(ADMIN), one.pool(ADMIN)
        await one.stop()
        again = await node_of(cluster, tmp_path)
        try:
            await until(active(again, 2), "both servers again")
            assert (again.leases(ADMIN), again.pool(ADMIN)) == before
        finally:
            await again.stop()

    run(cluster, tmp_path, scenario, nodes=2)


def test_news_of_leases_and_of_the_pool_in_their_order(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario(node: ClusterNode) -> None:
        await until(lambda: node.pool(ADMIN)["devices"], "the cluster")
        news: list[Any] = []
        stop = node.subscribe(news.append)
        cluster.create("pods", server("ana"))
        await until(active(node, 1), "the server")
        uid = node.leases(ADMIN)[0]["id"]
        cluster.delete("pods", "jupyter-ana")
        await until(lambda: not node.leases(ADMIN), "its end")
        await until(lambda: news[-1].kind == "pool", "news of the pool")
        told = [each.lease for each in news if each.kind == "lease"]
        assert {each.id for each in told} == {uid}
        assert "active" in [each.state for each in told]
        assert told[-1].state == "released"
        assert not told[-1].live
        check("Lease", node.view(told[-1], ANA))
        with pytest.raises(ApiError):
            node.lease(ANA, uid)
        stop()
        count = len(news)
        cluster.create("pods", server("ben"))
        await until(active(node, 1), "another server")
        assert len(news) == count

    run(cluster, tmp_path, scenario)


def test_watches_that_end_and_an_api_that_is_away_lose_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def scenario(node: ClusterNode) -> None:
        cluster.create("pods", server("ana"))
        await until(active(node, 1), "the server")
        cluster.drop_watches()  # and forget: 410
        cluster.create("pods", server("ben"))
        await until(active(node, 2), "what came while nobody watched")
        # A full minute of 500: first the watches end, then no list succeeds.
        for code in (500, 429):
            cluster.fail(code, seconds=600)
            cluster.drop_watches()
            await until(lambda: "does not answer" in node.pool(ADMIN)["note"], "a word on it")
            assert len(node.leases(ADMIN)) == 2, "what was seen last is still told"
            cluster.delete("pods", "jupyter-ben")
            cluster.fail(0)
            await until(active(node, 1), "the news after it")
            await until(lambda: not node.pool(ADMIN)["note"], "the word gone")
            cluster.create("pods", server("ben"))
            await until(active(node, 2), "ben again")

    run(cluster, tmp_path, scenario)


def test_an_api_that_is_away_at_the_start_ends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.fail(500, seconds=600)
    cluster.create("pods", server("ana"))

    async def scenario(node: ClusterNode) -> None:
        pool = node.pool(ADMIN)
        check("Pool", pool)
        assert pool["note"]
        with pytest.raises(ApiError) as refused:
            node.leases(ADMIN)
        assert (refused.value.status, refused.value.reason) == (503, "starting")
        assert "Nothing." in node.page(ADMIN, FRAME, "x")
        assert b"gpuslice_cluster_up 0.0" in generate_latest(node.metrics)
        cluster.fail(0)
        await until(active(node, 1), "the cluster")

    run(cluster, tmp_path, scenario)


@pytest.mark.parametrize(
    ("request_", "fits", "words"),
    [
        ("1", True, "would start now"),
        ("3", False, "A profile with 2 GPUs would start now; this one waits for more."),
        ("5", False, "no node has more than 4 GPUs"),
        ("0.5", False, "whole GPUs only"),
        ("h100:1", False, "No node has a h100"),
        ("0", True, "needs none"),
    ],
)
def test_explain_says_what_the_cluster_could_start(
    cluster: Cluster, tmp_path: Path, request_: str, fits: bool, words: str
) -> None:
    cluster.create("pods", server("ana", 2))

    async def scenario(node: ClusterNode) -> None:
        await until(active(node, 1), "the server")
        explained = node.explain(BEN, {"request": request_})
        check("Explanation", explained)
        assert explained["fits"] is fits
        assert words in f"{explained['message']} {explained['hint']}"
        assert explained["never"] == (request_ in ("5", "0.5", "h100:1"))

    run(cluster, tmp_path, scenario)


@pytest.mark.parametrize(
    "body", [None, [], {}, {"request": "x"}, {"request": "auto"}, {"request": 1, "workers": 2}]
)
def test_explain_refuses_what_is_no_question(cluster: Cluster, tmp_path: Path, body: Any) -> None:
    async def scenario(node: ClusterNode) -> None:
        await until(lambda: node.pool(ADMIN)["devices"], "the cluster")
        with pytest.raises(ApiError) as refused:
            node.explain(ANA, body)
        assert refused.value.status == 400

    run(cluster, tmp_path, scenario)


def test_what_only_the_cluster_does_is_refused_in_words(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create("pods", server("ana"))

    async def scenario(node: ClusterNode) -> None:
        await until(active(node, 1), "the server")
        id_ = node.leases(ANA)[0]["id"]

        async def refused(work: Callable[[], Any]) -> ApiError:
            async def done() -> None:
                found = work()
                if asyncio.iscoroutine(found):
                    await found

            with pytest.raises(ApiError) as error:
                await done()
            assert error.value.message.endswith(".")
            return error.value

        anew = await refused(lambda: node.start_anew(ANA, {"request": "1"}))
        assert "spawn page" in anew.hint
        ended = await refused(lambda: node.end(ADMIN, id_))
        assert "Stop the server" in ended.hint
        assert (await refused(lambda: node.end(BEN, id_))).reason == "not_owner"
        assert (await refused(lambda: node.change(ANA, id_, {"ttl": 5}))).status == 409
        assert (await refused(lambda: node.operate(ADMIN, {}))).reason == "not_supported"
        assert (await refused(lambda: node.operate(ANA, {}))).status == 403
        for by in ("user", "group", "day"):
            assert "no history" in (await refused(lambda by=by: node.usage(ANA, by))).message
        for call in (node.activate,):
            assert (await refused(lambda call=call: call(ANA, id_, {}))).status == 403
            assert (await refused(lambda call=call: call(THE_HUB, id_, {}))).status == 409
        assert (await refused(lambda: node.grant(ANA, id_))).status == 403
        assert (await refused(lambda: node.grant(THE_HUB, id_))).status == 409
        assert (await refused(lambda: node.availability(ANA, ["1"]))).status == 403
        offers = node.availability(THE_HUB, ["1", "4"])["offers"]
        assert (offers["1"]["free"], offers["4"]["free"]) == (3, 0)
        assert node.leases(ANA), "nothing of it changed anything"

    run(cluster, tmp_path, scenario)


def test_metrics_count_what_is_known(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create("pods", server("ana"))
    cluster.create("pods", server("ben", 4))

    async def scenario(node: ClusterNode) -> None:
        await until(lambda: len(node.leases(ADMIN)) == 2, "both pods")
        await until(lambda: node.leases(ANA)[0]["state"] == "active", "the server")
        text = generate_latest(node.metrics).decode()
        for line in (
            "gpuslice_cluster_up 1.0",
            'gpuslice_node_devices{node="n1",resource="nvidia.com/gpu"} 4.0',
            'gpuslice_node_devices_free{node="n1",resource="nvidia.com/gpu"} 3.0',
            'gpuslice_leases{state="active"} 1.0',
            'gpuslice_leases{state="queued"} 1.0',
            "gpuslice_queue_length 1.0",
        ):
            assert line in text.splitlines()
        held = 'gpuslice_device_held_bytes{device="n1/nvidia.com/gpu"'
        (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(held)]
        assert float(value) == 81920 * 2**20

    run(cluster, tmp_path, scenario)


def test_without_rights_it_says_what_it_does_not_know(cluster: Cluster, tmp_path: Path) -> None:
    own = {"verbs": ["list", "watch"], "apiGroups": [""], "resources": ["pods"]}
    cluster.create("pods", server("ana"))
    cluster.bind([{"kind": "Role", "rules": [own]}], "default")

    async def scenario(node: ClusterNode) -> None:
        await until(active(node, 1), "what the namespace has")
        pool = node.pool(ADMIN)
        assert pool["devices"] == []
        assert "may not read all nodes and pods" in pool["note"]
        explained = node.explain(ADMIN, {"request": "1"}) if node.view_of_cluster else {}
        check("Explanation", explained)
        assert explained["fits"] is None

    async def told(*nodes: ClusterNode) -> None:
        # Without nodes no dialect can be told: an admin writes it.
        (node,) = nodes
        await node.stop()
        again = await node_of(cluster, tmp_path, dialect="nvidia")
        try:
            await scenario(again)
        finally:
            await again.stop()

    run(cluster, tmp_path, told)


def test_claims_are_told_by_their_devices(cluster: Cluster, tmp_path: Path) -> None:
    cluster.gpu_devices("n1", 1, "80Gi", shared=True)
    exactly = {
        "deviceClassName": "gpu.nvidia.com",
        "capacity": {"requests": {"memory": "30Gi"}},
        "selectors": [{"cel": {"expression": "device.allowMultipleAllocations == true"}}],
    }
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    cluster.create("resourceclaimtemplates", {"metadata": {"name": "share"}, "spec": spec})
    for user in ("ana", "ben"):
        body = server(user, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "share"}])
        body["metadata"]["annotations"][REQUEST] = "30GiB"
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        cluster.create("pods", body)

    async def scenario(node: ClusterNode) -> None:
        await until(lambda: all(each["slices"] for each in node.leases(ADMIN) or [{"slices": 0}])
                    and len(node.leases(ADMIN)) == 2, "both claims")  # fmt: skip
        await until(active(node, 2), "both servers")
        for lease in node.leases(ADMIN):
            check("Lease", lease)
            (part,) = lease["slices"]
            assert (part["device"], part["memory_mib"]) == ("GPU-n1-0", 30720)
        (device,) = node.pool(ADMIN)["devices"]
        assert (device["uuid"], device["free_mib"]) == ("GPU-n1-0", 20480)
        assert len(device["leases"]) == 2
        assert node.pool(ANA)["session"]["held"]["memory_mib"] == 30720
        cluster.delete("pods", "jupyter-ana")
        await until(lambda: node.pool(ADMIN)["devices"][0]["free_mib"] == 51200, "its end")

    run(cluster, tmp_path, scenario)


def test_strange_names_are_escaped_on_the_page(cluster: Cluster, tmp_path: Path) -> None:
    body = server("ana")
    notes = body["metadata"]["annotations"]
    notes |= {"hub.jupyter.org/username": "<script>", "hub.jupyter.org/servername": "<b>"}
    notes[REQUEST] = "<i>"
    cluster.create("pods", body)

    async def scenario(node: ClusterNode) -> None:
        await until(active(node, 1), "the server")
        page = node.page(ADMIN, FRAME, "</script><u>")
        for tag in ("<b>", "<i>", "<u>"):
            assert tag not in page
        assert page.count("<script>") == 2
        assert json.dumps(node.leases(ADMIN))

    run(cluster, tmp_path, scenario)
