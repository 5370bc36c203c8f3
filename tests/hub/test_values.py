"""The values for Zero to JupyterHub: what the chart takes, what the hub makes of them, and who may
reach whom with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator
from traitlets.config import Config

from jupyter_gpuslice.hub.kube.dialects import DIALECTS
from jupyter_gpuslice.hub.kube.profile_list import cluster_of, convert
from jupyter_gpuslice.hub.kube.spawner import GpuSliceKubeSpawner
from jupyter_gpuslice.hub.profiles import load_profiles

ROOT = Path(__file__).parents[2]
GIVEN = ROOT / "hub_config" / "kubernetes"
SCHEMA = yaml.safe_load((ROOT / "tests" / "data" / "chart-values.schema.yaml").read_text())


def merged(below: Any, above: Any) -> Any:
    """As Helm lays one file of values over another: mappings key by key, anything else whole."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {key: merged(below.get(key, value), value) for key, value in {**below, **above}.items()}


def test_values_are_laid_over_each_other_as_helm_does() -> None:
    below = {"a": {"x": 1, "y": [1]}, "b": 2}
    above = {"a": {"y": [2], "z": 3}, "c": None}
    assert merged(below, above) == {"a": {"x": 1, "y": [2], "z": 3}, "b": 2, "c": None}


def of(name: str) -> Any:
    return yaml.safe_load((GIVEN / name).read_text())


def values(dialect: str = "") -> dict[str, Any]:
    found: dict[str, Any] = of("values.yaml")
    return merged(found, of(f"values-{dialect}.yaml")) if dialect else found


@pytest.mark.parametrize("dialect", ["", *DIALECTS])
def test_the_chart_takes_the_values(dialect: str) -> None:
    found = values(dialect)
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(found)] == []
    chart = os.environ.get("GPUSLICE_TEST_CHART")
    if chart:
        whole = merged(yaml.safe_load((Path(chart) / "values.yaml").read_text()), found)
        schema = yaml.safe_load((Path(chart) / "values.schema.json").read_text())
        assert [error.message for error in Draft7Validator(schema).iter_errors(whole)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"hub": {"extraConfigs": {}}},
        {"hub": {"extraConfig": {"a": ["c.x = 1"]}}},
        {"singleuser": {"startTimeout": "1h"}},
        {"hub": {"image": {"name": "x"}}},
        {"singleuser": {"networkPolicy": {"ingress": {}}}},
        {"singleUser": {}},
    ],
)
def test_it_would_say_what_the_chart_does_not_take(wrong: dict[str, Any]) -> None:
    assert list(Draft7Validator(SCHEMA).iter_errors(wrong))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_hub_is_configured_by_them(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = values(dialect)
    (file,) = found["hub"]["extraFiles"].values()
    here = tmp_path / "profiles.yaml"
    here.write_text(file["stringData"])
    config = Config()
    # The chart runs them in the order of their names.
    for name, text in sorted(found["hub"]["extraConfig"].items()):
        code = compile(text.replace(file["mountPath"], str(here)), name, "exec")
        exec(code, {"c": config, "get_config": lambda: config})
    assert config.JupyterHub.spawner_class == "gpuslice-kube"
    traits = GpuSliceKubeSpawner.class_traits(config=True)
    for section in ("GpuSliceKubeSpawner", "KubeSpawner", "GpuSliceSpawner"):
        for trait, value in config.get(section, {}).items():
            traits[trait]._validate(GpuSliceKubeSpawner.__new__(GpuSliceKubeSpawner), value)
    settings = GpuSliceKubeSpawner.cluster_settings(config)
    assert settings["dialect"] == dialect
    speaks = DIALECTS[dialect].of(settings["dialect_settings"])
    cluster = cluster_of({"NVIDIA-A100-SXM4-80GB": 81920})
    assert convert(load_profiles(here).all, speaks, cluster).profile_list


# ---- who may reach whom -------------------------------------------------------------------------

USER = {"app": "jupyterhub", "component": "singleuser-server", "hub.jupyter.org/username": "ana",
        "hub.jupyter.org/network-access-hub": "true"}  # fmt: skip
OTHER = {**USER, "hub.jupyter.org/username": "ben"}
HUB = {"app": "jupyterhub", "component": "hub", "hub.jupyter.org/network-access-singleuser": "true",
       "hub.jupyter.org/network-access-proxy-api": "true"}  # fmt: skip
PROXY = {"app": "jupyterhub", "component": "proxy", "hub.jupyter.org/network-access-hub": "true",
         "hub.jupyter.org/network-access-singleuser": "true"}  # fmt: skip
STRANGER = {"app": "database"}
SINGLEUSER_PORT, HUB_PORT = 8888, 8081
PRIVATE = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


def labelled(name: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {f"hub.jupyter.org/network-access-{name}": "true"}}}


def policies(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chart's policies for users' servers and the hub, with the rules that our values add.

    After templates/singleuser/netpol.yaml, templates/hub/netpol.yaml and _helpers-netpol.tpl, with
    the chart's own values: private addresses are open to the hub, closed to users' servers.
    """

    def ours(part: str, way: str) -> list[Any]:
        return list(found[part].get("networkPolicy", {}).get(way, ()))

    def policy(name: str, ingress: list[Any], egress: list[Any]) -> dict[str, Any]:
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": name},
            "spec": {
                "podSelector": {"matchLabels": {"app": "jupyterhub", "component": name}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": ingress,
                "egress": egress,
            },
        }

    world = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": PRIVATE}}]}
    return [
        policy(
            "singleuser-server",
            [
                {"from": [labelled("singleuser")], "ports": [{"port": SINGLEUSER_PORT}]},
                *ours("singleuser", "ingress"),
            ],
            [
                {
                    "to": [{"podSelector": {"matchLabels": {"component": "hub"}}}],
                    "ports": [{"port": HUB_PORT}],
                },
                world,
                *ours("singleuser", "egress"),
            ],
        ),
        policy(
            "hub",
            [
                {"from": [labelled("hub")], "ports": [{"port": HUB_PORT}]},
                *ours("hub", "ingress"),
            ],
            [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, *ours("hub", "egress")],
        ),
    ]


def reaches(
    all_policies: list[dict[str, Any]], source: dict[str, str], target: dict[str, str], port: int
) -> bool:
    """Whether a pod may open a TCP connection to another one of its namespace.

    Source: kubernetes.io, "Network Policies": what a pod is selected for is closed but for what
    some rule opens, at both ends.
    """
    return all(
        _open(all_policies, way, pod, peer, port)
        for way, pod, peer in (("Egress", source, target), ("Ingress", target, source))
    )


def _open(
    all_policies: list[dict[str, Any]],
    way: str,
    pod: dict[str, str],
    peer: dict[str, str],
    port: int,
) -> bool:
    mine = [
        each["spec"]
        for each in all_policies
        if _selects(each["spec"]["podSelector"], pod) and way in each["spec"]["policyTypes"]
    ]
    ends = "from" if way == "Ingress" else "to"
    return not mine or any(
        (not rule.get(ends) or any(_peer(end, peer) for end in rule[ends]))
        and (not rule.get("ports") or any(_port(each, port) for each in rule["ports"]))
        for spec in mine
        for rule in spec[way.lower()]
    )


def _peer(end: dict[str, Any], pod: dict[str, str]) -> bool:
    if "ipBlock" in end:
        # Pods have private addresses.
        return end["ipBlock"]["cidr"] == "0.0.0.0/0" and not end["ipBlock"].get("except")
    return "namespaceSelector" not in end and _selects(end["podSelector"], pod)


def _port(rule: dict[str, Any], port: int) -> bool:
    if rule.get("protocol", "TCP") != "TCP":
        return False
    return "port" not in rule or rule["port"] <= port <= rule.get("endPort", rule["port"])


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


RENDEZVOUS = (29500, 29512, 44321)


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        (HUB, USER, SINGLEUSER_PORT, True),
        (PROXY, USER, SINGLEUSER_PORT, True),
        (USER, HUB, HUB_PORT, True),
        (PROXY, HUB, HUB_PORT, True),
        (PROXY, HUB, 8079, True),
        # The page of the GPU service is had by way of the proxy.
        (USER, HUB, 8079, False),
        (STRANGER, HUB, 8079, False),
        (HUB, USER, 22, False),
        (STRANGER, USER, SINGLEUSER_PORT, False),
        # The ranks of a group are in one pod; other pods, also one's own, are closed.
        *((USER, other, port, False) for other in (OTHER, USER) for port in RENDEZVOUS),
        (USER, OTHER, SINGLEUSER_PORT, False),
    ],
)
def test_who_may_reach_whom(
    source: dict[str, str], target: dict[str, str], port: int, may: bool
) -> None:
    for dialect in ("", *DIALECTS):
        assert reaches(policies(values(dialect)), source, target, port) is may


GROUPS = "groups"
"""The overlay for peer groups of several pods."""


@pytest.mark.parametrize(
    ("source", "target", "port", "may"),
    [
        *((USER, other, port, True) for other in (OTHER, USER) for port in (50000, 50999)),
        *((USER, other, port, False) for other in (OTHER, USER) for port in (49999, 51000, 22)),
        (USER, OTHER, SINGLEUSER_PORT, False),
        (STRANGER, USER, 50000, False),
        ({"component": "singleuser-server"}, USER, 50000, False),
        (USER, STRANGER, 50000, False),
        (USER, HUB, 50000, False),
        (USER, HUB, HUB_PORT, True),
        (PROXY, USER, SINGLEUSER_PORT, True),
    ],
)
def test_pods_of_groups_reach_each_others_rendezvous_and_nothing_else(
    source: dict[str, str], target: dict[str, str], port: int, may: bool
) -> None:
    found = merged(values(), of(f"values-{GROUPS}.yaml"))
    # A pod that stands outside of the chart is closed by nobody's policy but its peer's.
    assert reaches(policies(found), source, target, port) is may


def test_the_ports_that_are_open_are_those_that_programs_are_given() -> None:
    found = of(f"values-{GROUPS}.yaml")["singleuser"]
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(values(GROUPS))] == []
    (sysctl,) = found["extraPodConfig"]["securityContext"]["sysctls"]
    first, last = map(int, sysctl["value"].split())
    for way in ("ingress", "egress"):
        (rule,) = found["networkPolicy"][way]
        assert rule["ports"] == [{"protocol": "TCP", "port": first, "endPort": last}]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "jupyter-ana"},
        "spec": {"containers": [{"name": "c", "image": "i"}], **found["extraPodConfig"]},
    }
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_the_policies_are_objects_of_kubernetes() -> None:
    newest = kubernetes_validate.latest_version()
    for policy in [*policies(values()), *policies(values(GROUPS))]:
        kubernetes_validate.validate(policy, newest, strict=True)


def test_it_would_see_pods_that_are_open_to_each_other() -> None:
    found = values()
    rule = {"from": [{"podSelector": {"matchLabels": {"component": "singleuser-server"}}}]}
    found["singleuser"]["networkPolicy"] = {
        "ingress": [{**rule, "ports": [{"port": 29500, "endPort": 29599}]}],
        "egress": [{"to": rule["from"], "ports": [{"port": 29500, "endPort": 29599}]}],
    }
    assert reaches(policies(found), USER, OTHER, 29512)
    assert not reaches(policies(found), USER, OTHER, 29600)
