"""The configurations that are given out: what they say is what the code takes."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.metadata import entry_points
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from traitlets.config import Config

from jupyter_gpuslice.hub.kube.dialects import DIALECTS
from jupyter_gpuslice.hub.profiles import load_profiles

ROOT = Path(__file__).parents[2]
GIVEN = ROOT / "hub_config"
SPAWNERS = {each.name: each for each in entry_points(group="jupyterhub.spawners")}


def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The configuration after a piece of it has run."""
    monkeypatch.chdir(folder)
    config = Config()
    exec(compile(text, str(folder), "exec"), {"c": config, "get_config": lambda: config})
    return config


@pytest.mark.parametrize(
    "path", sorted(GIVEN.glob("*/jupyterhub_config.py")), ids=lambda path: path.parent.name
)
def test_a_configuration_is_one_that_a_hub_can_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run(path.read_text(), path.parent, monkeypatch)
    name = config.JupyterHub.spawner_class
    spawner = SPAWNERS[name].load()
    traits = spawner.class_traits(config=True)
    for section in spawner.section_names():
        for trait in config.get(section, {}):
            assert trait in traits, f"{section}.{trait}"
    assert load_profiles(path.with_name("profiles.yaml")).all


@pytest.mark.parametrize("name", DIALECTS)
def test_each_dialect_has_its_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = yaml.safe_load((GIVEN / "kubernetes" / f"values-{name}.yaml").read_text())
    (text,) = values["hub"]["extraConfig"].values()
    config = run(text, GIVEN, monkeypatch)
    assert config.GpuSliceKubeSpawner.dialect == name
    DIALECTS[name].of(config.GpuSliceKubeSpawner.dialect_settings)


def test_the_values_of_every_cluster_hold_profiles_and_a_spawner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load((GIVEN / "kubernetes" / "values.yaml").read_text())
    profiles = tmp_path / "profiles.yaml"
    profiles.write_text(values["hub"]["extraFiles"]["profiles"]["stringData"])
    assert len(load_profiles(profiles).all) == 3
    (text,) = values["hub"]["extraConfig"].values()
    text = text.replace("/usr/local/etc/jupyterhub/profiles.yaml", str(profiles))
    assert run(text, tmp_path, monkeypatch).JupyterHub.spawner_class in SPAWNERS


def test_the_rights_are_objects_of_kubernetes() -> None:
    newest = kubernetes_validate.latest_version()
    text = (GIVEN / "kubernetes" / "rbac.yaml").read_text()
    for body in yaml.safe_load_all(text):
        kubernetes_validate.validate(body, newest, strict=True)


def test_the_page_on_docker_makes_what_the_configuration_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    folder = GIVEN / "docker"
    config = run((folder / "jupyterhub_config.py").read_text(), folder, monkeypatch)
    network, gateway = config.DockerSpawner.network_name, config.JupyterHub.hub_ip
    (made,) = re.findall(r"docker network create --subnet (\S+) --gateway (\S+) (\S+)", page)
    assert made[1:] == (gateway, network)
    assert ip_address(gateway) in ip_network(made[0])
    assert f"docker build -t {config.DockerSpawner.image} " in page


def test_the_page_on_kubernetes_makes_the_images_that_the_values_name() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    values = yaml.safe_load((GIVEN / "kubernetes" / "values.yaml").read_text())
    for part in ("hub", "singleuser"):
        image = values[part]["image"]
        assert f"docker build -t {image['name']}:{image['tag']} " in page
    for file in re.findall(r"(?:-f|kubectl apply -f) (\S+[.]yaml)", page):
        assert (GIVEN / "kubernetes" / file).exists(), file
    assert set(re.findall(r"(?:create namespace|--namespace) (\S+)", page)) == {"jupyterhub"}


@pytest.mark.parametrize("path", sorted(GIVEN.glob("*/profiles.yaml")), ids=lambda p: p.parent.name)
def test_profiles_that_are_given_out_are_valid(path: Path) -> None:
    assert load_profiles(path).all


def named(text: str, kind: str) -> list[dict[str, Any]]:
    return [body for body in yaml.safe_load_all(text) if body["kind"] == kind]


def test_the_queues_hang_together() -> None:
    kueue = (GIVEN / "kubernetes" / "kueue.yaml").read_text()
    (flavor,) = named(kueue, "ResourceFlavor")
    (cluster,) = named(kueue, "ClusterQueue")
    (local,) = named(kueue, "LocalQueue")
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    (group,) = cluster["spec"]["resourceGroups"]
    (offer,) = group["flavors"]
    assert offer["name"] == flavor["metadata"]["name"]
    assert [each["name"] for each in offer["resources"]] == group["coveredResources"]
    label = f'"kueue.x-k8s.io/queue-name": "{local["metadata"]["name"]}"'
    assert label in kueue, "what the comment says is the queue's name"

    queues = named((GIVEN / "kubernetes" / "kai-queues.yaml").read_text(), "Queue")
    parents = {each["spec"].get("parentQueue") for each in queues} - {None}
    names = {each["metadata"]["name"] for each in queues}
    assert parents <= names
    values = yaml.safe_load((GIVEN / "kubernetes" / "values-kai.yaml").read_text())
    (text,) = values["hub"]["extraConfig"].values()
    (leaf,) = names - parents
    assert f'"queue": "{leaf}"' in text


def test_the_page_names_every_dialect_and_setting() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for name, kind in DIALECTS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        settings = row.split("|")[3]
        for field in fields(kind):
            assert re.search(rf"`{field.name}`", settings), f"{name}: {field.name}"


def test_every_spawner_can_be_loaded() -> None:
    ours = [each for each in SPAWNERS.values() if each.name.startswith("gpuslice-")]
    assert {each.name for each in ours} >= {"gpuslice-local", "gpuslice-docker", "gpuslice-kube"}
    for each in ours:
        assert each.load().__doc__
