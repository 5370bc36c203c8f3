"""configure(): what it leaves in a hub's configuration."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jupyterhub
import pytest
from jupyterhub.spawner import Spawner
from traitlets.config import Config

from jupyter_gpuslice.hub import ConfigurationError, configure
from jupyter_gpuslice.hub.link import SECRET_VARIABLE, SETTINGS_VARIABLE, hub_secret
from jupyter_gpuslice.hub.profiles import ProfileError

PROFILES = {"profiles": [{"slug": "a", "request": 1}]}


def lists(c: Config, name: str) -> list[dict[str, Any]]:
    value = c.JupyterHub[name]
    found: list[dict[str, Any]] = value.get_value([]) if hasattr(value, "get_value") else value
    return found


def service_environ(c: Config, spawner: type = Spawner) -> dict[str, str]:
    [service] = [each for each in lists(c, "services") if each["name"] == "gpuslice"]
    hub = SimpleNamespace(
        user=SimpleNamespace(
            service=SimpleNamespace(app=SimpleNamespace(config=c, spawner_class=spawner))
        )
    )
    return {name: value(hub) for name, value in service["environment"].items() if callable(value)}


def test_it_sets_everything() -> None:
    c = Config()
    configure(c, PROFILES, port=1234)
    assert c.JupyterHub.spawner_class == "gpuslice-local"
    assert c.LeasedSpawner.service_url == "http://127.0.0.1:1234/services/gpuslice/api/v1/"
    [service] = lists(c, "services")
    assert service["url"] == "http://127.0.0.1:1234"
    assert service["oauth_no_confirm"] is True
    roles = {role["name"]: role for role in lists(c, "load_roles")}
    assert roles["gpuslice-service"]["scopes"] == ["list:users", "read:users:groups"]
    assert "access:services!service=gpuslice" in roles["server"]["scopes"]
    assert "access:servers!server" in roles["server"]["scopes"]
    assert "users" not in roles["gpuslice-service"]


def test_devices_may_be_chosen_before_and_after() -> None:
    for late in (False, True):
        c = Config()
        if not late:
            c.GpuSlice.simulate = "l4"
        configure(c, PROFILES)
        if late:
            c.GpuSlice.simulate = "l4"
        environ = service_environ(copy.deepcopy(c))
        settings = json.loads(environ[SETTINGS_VARIABLE])
        assert settings["simulate"] == "l4"
        assert settings["hub"]["pid"] == os.getpid()
        assert Path(settings["ledger"]).is_absolute()
        assert environ[SECRET_VARIABLE] == hub_secret()


def test_in_a_pod_the_service_is_where_the_proxy_s_pod_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBECONFIG", "/k")
    monkeypatch.setattr("socket.gethostbyname", lambda name: "10.1.2.3")
    c = Config()
    configure(c, PROFILES)
    [service] = lists(c, "services")
    assert service["url"] == "http://10.1.2.3:8079"
    assert service["environment"]["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"
    assert service["environment"]["KUBECONFIG"] == "/k"


def test_a_hub_with_pods_tells_its_service_of_the_cluster() -> None:
    spawner = pytest.importorskip("jupyter_gpuslice.hub.kube.spawner").GpuSliceKubeSpawner
    c = Config()
    configure(c, PROFILES)
    c.KubeSpawner.namespace = "notebooks"
    c.GpuSliceKubeSpawner.dialect = "kai"
    c.GpuSliceKubeSpawner.dialect_settings = {"queue": "team-a"}
    c.KubeSpawner.k8s_api_host = "https://cluster.example"
    told = json.loads(service_environ(c, spawner)[SETTINGS_VARIABLE])["kube"]
    assert told["namespace"] == "notebooks"
    assert (told["dialect"], told["dialect_settings"]) == ("kai", {"queue": "team-a"})
    assert told["host"] == "https://cluster.example"
    c.KubeSpawner.enable_user_namespaces = True
    told = json.loads(service_environ(c, spawner)[SETTINGS_VARIABLE])["kube"]
    assert told["namespace"] == ""
    assert "kube" not in json.loads(service_environ(c)[SETTINGS_VARIABLE])


def test_the_secret_is_in_nothing_that_is_written() -> None:
    c = Config()
    configure(c, PROFILES)
    assert hub_secret() not in json.dumps(lists(c, "services"))
    assert hub_secret() not in repr(c)


def test_what_the_admin_chose_stays() -> None:
    c = Config()
    c.JupyterHub.spawner_class = "mine"
    c.JupyterHub.base_url = "/hubs/one/"
    c.JupyterHub.services = [{"name": "cull"}]
    c.JupyterHub.load_roles = [{"name": "server", "scopes": ["inherit"]}, {"name": "x"}]
    c.JupyterHub.concurrent_spawn_limit = 7
    configure(c, PROFILES)
    assert c.JupyterHub.concurrent_spawn_limit == 7
    assert c.JupyterHub.spawner_class == "mine"
    assert c.LeasedSpawner.service_url.endswith(":8079/hubs/one/services/gpuslice/api/v1/")
    assert [service["name"] for service in lists(c, "services")] == ["cull", "gpuslice"]
    roles = {role["name"]: role for role in lists(c, "load_roles")}
    assert roles["server"]["scopes"] == ["inherit", "access:services!service=gpuslice"]
    assert set(roles) - {"user"} == {"server", "x", "gpuslice-service"}


def test_a_role_of_all_users_that_the_admin_wrote_keeps_what_it_says_and_has_the_access() -> None:
    """JupyterHub 6 ignores extra_user_scopes where the role is written out."""
    c = Config()
    c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "shares!user"]}]
    configure(c, PROFILES)
    configure(c, PROFILES)
    (role,) = [role for role in lists(c, "load_roles") if role["name"] == "user"]
    assert role["scopes"] == ["self", "shares!user", "access:services!service=gpuslice"]


@pytest.mark.skipif(jupyterhub.version_info < (6,), reason="JupyterHub 5 has no such setting")
def test_scopes_that_the_admin_gives_to_all_users_stay() -> None:
    c = Config()
    c.JupyterHub.extra_user_scopes = {"shares!user"}
    configure(c, PROFILES)
    assert c.JupyterHub.extra_user_scopes == {"shares!user", "access:services!service=gpuslice"}
    assert "user" not in {role["name"] for role in lists(c, "load_roles")}


def test_twice_is_as_good_as_once() -> None:
    once, twice = Config(), Config()
    configure(once, PROFILES, port=5)
    configure(twice, PROFILES, port=4)
    configure(twice, PROFILES, port=5)
    for name in ("services", "load_roles"):
        first, second = ({each["name"]: each for each in lists(c, name)} for c in (once, twice))
        assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
        assert len(lists(twice, name)) == len(second)


def test_profiles_lie_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "profiles.yaml").write_text("profiles: [{slug: a, request: 1}]")
    file = tmp_path / "jupyterhub_config.py"
    c = Config()
    space = {"__file__": str(file), "c": c}
    exec("from jupyter_gpuslice.hub import configure\nconfigure(c, 'profiles.yaml')", space)
    assert c.GpuSliceSpawner.profiles == str(tmp_path / "profiles.yaml")


def test_faults_stop_the_hub_with_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        configure(Config(), tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="a port is"):
        configure(Config(), PROFILES, port=0)
    with pytest.raises(ProfileError, match="Did you mean slug"):
        configure(Config(), {"profiles": [{"slugg": "a"}]})
