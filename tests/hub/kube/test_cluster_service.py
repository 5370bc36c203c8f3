"""The GPU service of a hub on Kubernetes, as people and programs reach it: a real hub, the emulated
cluster, and no more rights than hub_config/kubernetes/rbac.yaml grants."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
import yaml

from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually

from .settings import Setting

pytestmark = pytest.mark.slow
__all__ = ["make_hub"]

RBAC = Path(__file__).parents[3] / "hub_config" / "kubernetes" / "rbac.yaml"
DOCUMENT = yaml.safe_load((files("jupyter_gpuslice.server") / "openapi.yaml").read_text())

KUBESPAWNER = {
    "kind": "Role",
    "rules": [
        {
            "apiGroups": [""],
            "resources": ["pods", "persistentvolumeclaims", "secrets", "services"],
            "verbs": ["get", "watch", "list", "create", "delete"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
    ],
}
"""What Zero to JupyterHub's chart grants the hub (jupyterhub/templates/hub/rbac.yaml)."""


def ours() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(RBAC.read_text()))


@pytest.fixture(scope="module")
def setting(
    make_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setting]:
    made = Setting(
        make_hub,
        tmp_path_factory.mktemp("kube"),
        "dra",
        shares=True,
        prepare=lambda cluster: (
            cluster.gpu_devices("n1", 2, "80Gi", shared=True),
            cluster.bind([KUBESPAWNER, *ours()], "default"),
        ),
    )
    yield made
    made.cluster.stop()


@pytest.fixture(autouse=True)
def clean(setting: Setting) -> Iterator[None]:
    yield
    setting.clean()


def valid(name: str, body: Any) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(body)
    return body


def test_what_the_cluster_granted_is_told_by_rest_and_on_the_page(setting: Setting) -> None:
    hub = setting.hub
    wish = {"profile": "custom", "request": "30GiB"}
    hub.run("ana", wish)
    hub.run("ben", wish)
    hub.run("cleo", {"profile": "cpu"})
    assert hub.spawn("eve", {"profile": "custom", "request": "70GiB"}).status_code in (201, 202)
    tokens = {user: hub.user_token(user) for user in ("ana", "ben", "eve")}

    def settled() -> bool:
        return {each["holder"]["user"]: each["state"] for each in hub.leases()} == {
            "ana": "active",
            "ben": "active",
            "eve": "active",
        }

    eventually(settled, "three servers with a GPU")
    (mine,) = hub.leases(tokens["ana"])
    valid("Lease", mine)
    assert mine["holder"] == {"kind": "session", "id": "ana/", "user": "ana", "name": ""}
    assert (mine["request"], mine["node"]) == ("30GiB", "n1")
    (part,) = mine["slices"]
    assert part["memory_mib"] == 30720
    assert hub.gpu("GET", f"leases/{mine['id']}", tokens["ana"]).json() == mine
    assert hub.gpu("GET", f"leases/{mine['id']}", tokens["ben"]).status_code == 403
    assert hub.gpu("GET", "leases").status_code == 401

    pool = valid("Pool", hub.pool())
    assert {device["uuid"] for device in pool["devices"]} == {"GPU-n1-0", "GPU-n1-1"}
    assert sum(device["free_mib"] for device in pool["devices"]) == (160 - 130) * 1024

    for request, fits in (("10GiB", True), ("60GiB", False), ("100GiB", False)):
        answer = hub.gpu("POST", "explain", tokens["ben"], json={"request": request})
        assert answer.ok, answer.text
        assert valid("Explanation", answer.json())["fits"] is fits
    asked = hub.gpu("POST", "leases", tokens["ben"], json={"request": "1"})
    assert (asked.status_code, asked.json()["reason"]) == (409, "not_supported")
    ended = hub.gpu("DELETE", f"leases/{mine['id']}", hub.admin())
    assert "Stop the server" in ended.json()["hint"]
    assert hub.gpu("GET", "usage", hub.admin()).json()["reason"] == "not_supported"

    metrics = requests.get(
        f"{hub.service_url}/services/gpuslice/metrics",
        headers={"Authorization": f"token {hub.token}"},
        timeout=30,
    )
    assert 'gpuslice_leases{state="active"} 3.0' in metrics.text

    def page(token: str) -> str:
        answer = requests.get(
            f"{hub.service_url}/services/gpuslice/",
            headers={"Authorization": f"token {token}", "Accept": "text/html"},
            timeout=30,
        )
        assert answer.ok, answer.text
        return answer.text

    assert "GPUs of this cluster" in page(tokens["ana"])
    assert "ben" not in page(tokens["ana"])
    assert "Who holds what" in page(hub.admin())
    assert "eve" in page(hub.admin())
    hub.end("ana")
    eventually(lambda: not hub.leases(tokens["ana"]), "the lease's end")


def test_news_come_in_a_stream(setting: Setting) -> None:
    hub = setting.hub
    token = hub.user_token("ana")
    news = []
    with requests.get(
        f"{hub.api}/events",
        headers={"Authorization": f"token {token}"},
        stream=True,
        timeout=60,
    ) as stream:
        lines = stream.iter_lines()
        assert json.loads(next(lines))["schema"] == "pool"
        hub.run("ana", {"profile": "custom", "request": "30GiB"})
        hub.run("ben", {"profile": "custom", "request": "30GiB"})
        hub.end("ana")
        for line in lines:
            if line:
                news.append(json.loads(line))
                if news[-1]["data"].get("action") == "ended":
                    break
    told = [each["data"] for each in news if each["schema"] == "lease"]
    assert {each["lease"]["holder"]["user"] for each in told} == {"ana"}, "nobody else's"
    assert [each["action"] for each in told][-1] == "ended"
    for each in news:
        valid("Lease", each["data"]["lease"]) if each["schema"] == "lease" else valid(
            "Pool", each["data"]["pool"]
        )


def test_a_service_that_was_killed_shows_everything_again(setting: Setting) -> None:
    hub = setting.hub
    hub.run("ana", {"profile": "custom", "request": "30GiB"})
    before = eventually(lambda: [x for x in hub.leases() if x["state"] == "active"], "the lease")
    service = hub.service()
    assert service is not None
    service.kill()

    def again() -> bool:
        try:
            return hub.leases() == before
        except (requests.ConnectionError, AssertionError):
            return False

    eventually(again, "the service that JupyterHub starts anew")
    assert hub.model("ana")["ready"]


def test_it_goes_on_while_the_cluster_s_api_is_away(setting: Setting) -> None:
    hub, cluster = setting.hub, setting.cluster
    hub.run("ana", {"profile": "custom", "request": "30GiB"})
    eventually(lambda: hub.leases(), "the lease")
    cluster.fail(500, seconds=600)
    cluster.drop_watches()
    eventually(lambda: "does not answer" in hub.pool()["note"], "a word on it")
    assert [each["holder"]["user"] for each in hub.leases()] == ["ana"]
    cluster.fail(0)
    eventually(lambda: not hub.pool()["note"], "the API again")


def test_exactly_the_rights_that_are_used_are_granted(setting: Setting) -> None:
    """Last here: everything was done by then, under nothing but these rights."""
    granted = {
        (verb, group, resource, body["kind"] == "Role")
        for body in [*ours(), KUBESPAWNER]
        if body["kind"] in ("Role", "ClusterRole")
        for rule in body["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    asked = setting.cluster.used()
    assert asked <= granted
    mine = {
        (verb, group, resource, body["kind"] == "Role")
        for body in ours()
        if body["kind"] in ("Role", "ClusterRole")
        for rule in body["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    # Kueue's place in the queue is asked for by servers that wait in one: see TestKueue.
    kueue = {right for right in mine if "kueue" in right[1]}
    assert mine - kueue <= asked
