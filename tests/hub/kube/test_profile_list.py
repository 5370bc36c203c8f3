"""Our profiles as KubeSpawner's own ``profile_list``: KubeSpawner makes the pods that we make."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import requests
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_asyncio.client import ApiClient
from kubespawner import KubeSpawner
from traitlets.config import Config

from jupyter_gpuslice import cli
from jupyter_gpuslice.hub.choice import Profile
from jupyter_gpuslice.hub.kube.dialects import DIALECTS, Dialect, PodContext
from jupyter_gpuslice.hub.kube.family import numbers_up_to
from jupyter_gpuslice.hub.kube.patch import SHARE_VARIABLE, CannotExpressError, share_of
from jupyter_gpuslice.hub.kube.pod import apply
from jupyter_gpuslice.hub.kube.profile_list import (
    Converted,
    convert,
    for_everybody,
)
from jupyter_gpuslice.hub.profiles import parse_profiles
from jupyter_gpuslice.request import GpuRequest
from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually

from .settings import Setting, environment, limits
from .test_dialects import VARIANTS, dialect

__all__ = ["make_hub"]

DECLARED = {
    "profiles": [
        {
            "slug": "slice",
            "display_name": "A <slice> & more",
            "description": "Of a GPU",
            "choices": ["0.25", {"request": "0.5", "label": "Half", "default": True}, "10GiB"],
            "spawner": {"environment": {"A": "{b} {username}"}, "default_url": "/lab"},
        },
        {"slug": "parts", "request": "0.25", "custom": True, "max": "0.5", "default": True},
        {"slug": "memory", "request": "10GiB", "custom": True, "max": "40GiB"},
        {"slug": "whole", "choices": [1, 2, "a100:1"], "custom": True, "max": 4},
        {"slug": "any", "request": 1, "custom": True, "max": "a100:1"},
        {"slug": "mig", "request": "1g.10gb", "ttl": "8h"},
        {"slug": "cpu", "request": 0},
    ]
}
PROFILES = parse_profiles(DECLARED).all


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KubeSpawner that makes a pod's manifest asks no cluster, but looks for one's address."""
    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **where: None)


def pod_of(profile_list: Any, options: dict[str, str] | None = None) -> Any:
    """The pod that KubeSpawner makes of a choice."""

    async def make() -> Any:
        config = Config()
        config.KubeSpawner.image = "none"
        config.KubeSpawner.mem_limit = "4G"
        config.KubeSpawner.environment = {"OF_THE_ADMIN": "1"}
        config.KubeSpawner.profile_list = profile_list
        hub = SimpleNamespace(
            public_host="", url="http://hub/hub/", base_url="/hub/", api_url="http://hub/hub/api"
        )
        user = SimpleNamespace(id="1", name="ana", escaped_name="ana", url="/user/ana/", groups=[])
        made = KubeSpawner(config=config, hub=hub, user=user, api_token="t", _mock=True)
        made.user_options = options or {}
        await made.load_user_options()
        return await made.get_pod_manifest()

    return asyncio.run(make())


def plain(pod: Any) -> dict[str, Any]:
    """A pod as JSON, its environment as a mapping."""
    found: dict[str, Any] = ApiClient.sanitize_for_serialization(ApiClient.__new__(ApiClient), pod)
    (box,) = found["spec"]["containers"]
    box["env"] = {each["name"]: each.get("value", "") for each in box["env"]}
    return found


def ours(kind: Dialect, pod: PodContext, profile: Profile, request: GpuRequest) -> dict[str, Any]:
    """What our own spawner makes of a choice: KubeSpawner's pod, the patch, the environment."""
    patch = kind.patch(request, pod)
    made = plain(apply(pod_of([]), patch))
    environ = made["spec"]["containers"][0]["env"]
    environ |= {**profile.environment, **share_of(request, patch)}
    if profile.default_url:
        environ["JUPYTERHUB_DEFAULT_URL"] = profile.default_url
    if profile.ttl is not None:
        made["spec"]["activeDeadlineSeconds"] = profile.ttl
    if patch.claims:
        # KubeSpawner lets extra resources replace its own; the notes say so.
        made["spec"]["containers"][0]["resources"] = {
            "claims": made["spec"]["containers"][0]["resources"]["claims"]
        }
    return made


def converted(variant: str) -> tuple[Converted, Dialect, PodContext]:
    kind, pod = dialect(variant)
    return convert(PROFILES, kind, pod.cluster), kind, pod


def options_of(made: Converted) -> list[tuple[str, dict[str, Any]]]:
    return [
        (entry["slug"], entry["profile_options"]["request"])
        for entry in made.profile_list
        if "profile_options" in entry
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_kubespawner_makes_the_pod_that_our_spawner_makes(variant: str) -> None:
    made, kind, pod = converted(variant)
    left_out = "\n".join(made.notes)
    there = {entry["slug"] for entry in made.profile_list}
    for profile in PROFILES:
        for number, choice in enumerate(profile.choices):
            context = replace(pod, name=f"gpuslice-{profile.slug}-{number}")
            try:
                expected = ours(kind, context, profile, choice.request)
            except CannotExpressError:
                assert f"{profile.slug}: {choice.request} is left out." in left_out
                continue
            assert profile.slug in there
            chosen = {"profile": profile.slug, "request": str(choice.request)}
            assert plain(pod_of(made.profile_list, chosen)) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_users_write_themselves_makes_the_pod_of_that_request(variant: str) -> None:
    made, kind, pod = converted(variant)
    for slug, option in options_of(made):
        field = option.get("unlisted_choice")
        if field is None:
            continue
        profile = next(each for each in PROFILES if each.slug == slug)
        for text in re.findall("From (.+) to (.+)[.]", field["validation_message"])[0]:
            said = {
                "GPUs": text,
                "Part of a GPU": text,
                "Percent of a GPU": f"0.{int(float(text)):02}",
                "Memory in GiB": f"{text}GiB",
                "Memory in MiB": f"{text}MiB",
            }[field["display_name"]]
            model = "a100:" if slug == "any" else ""
            request = GpuRequest.parse(model + said)
            assert profile.gives(request), f"{request} is more than {profile.custom_max}"
            found = plain(
                pod_of(made.profile_list, {"profile": slug, "request--unlisted-choice": text})
            )
            expected = ours(kind, pod, profile, request)
            environments = [each["spec"]["containers"][0]["env"] for each in (found, expected)]
            shares = {GpuRequest.parse(e.pop(SHARE_VARIABLE, "0")) for e in environments}
            assert len(shares) == 1
            assert found == expected


def test_every_stack_that_counts_lets_users_write_an_amount() -> None:
    for variant in ("hami", "volcano", "kai", "runai-2", "koordinator"):
        with_field = {
            slug
            for slug, option in options_of(converted(variant)[0])
            if "unlisted_choice" in option
        }
        assert with_field >= {"parts", "memory"}, variant


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "51",
        "025",
        "25 ",
        "25\n",
        "25\n99",
        "-1",
        "+1",
        "٢",
        "2e1",
        "{username}",
        "",
        "25,x",
        "²",
    ],
)
def test_nothing_else_can_be_written(text: str) -> None:
    made, _, _ = converted("hami")
    chosen = {"profile": "parts", "request--unlisted-choice": text}
    if not text:
        # KubeSpawner takes it for no choice: the default.
        assert plain(pod_of(made.profile_list, chosen)) == plain(
            pod_of(made.profile_list, {"profile": "parts"})
        )
        return
    with pytest.raises(ValueError, match="validation regex"):
        pod_of(made.profile_list, chosen)


@given(st.integers(1, 99999), st.data())
def test_the_expression_means_the_numbers_up_to_a_limit(most: int, data: st.DataObject) -> None:
    pattern = re.compile(numbers_up_to(most))
    near = st.integers(max(0, most - 12), most + 12)
    for number in (data.draw(near), data.draw(st.integers(0, 10 * most)), most, most + 1):
        assert bool(pattern.fullmatch(str(number))) == (1 <= number <= most)


def test_texts_of_the_admin_are_no_markup_and_the_default_is_kept() -> None:
    made, _, _ = converted("kai")
    entry = made.profile_list[0]
    assert entry["display_name"] == "A ‹slice› & more"
    assert "default" not in entry
    assert [e["slug"] for e in made.profile_list if e.get("default")] == ["parts"]
    choices = entry["profile_options"]["request"]["choices"]
    assert [key for key, choice in choices.items() if choice.get("default")] == ["0.5"]
    assert choices["0.5"]["display_name"] == "Half"


def test_what_is_for_some_is_not_shown_to_everybody() -> None:
    kind, pod = dialect("kai")
    declared = parse_profiles(
        {
            "profiles": [
                {"slug": "cpu", "request": 0},
                {"slug": "big", "request": 2, "groups": ["ml"], "users": ["ana"], "idle": "1h"},
            ]
        }
    )
    made = for_everybody(declared.all, kind, pod.cluster)
    assert [entry["slug"] for entry in made.profile_list] == ["cpu"]
    (note,) = made.notes
    assert note.startswith("big: it is for the user ana and the group ml only")
    assert convert(declared.all, kind, pod.cluster).notes == (
        "big: that it ends after 3600 s without use is not kept.",
    )


class TestCommand:
    """``jupyter gpuslice profiles convert``."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "profiles.yaml"
        path.write_text(yaml.safe_dump(DECLARED, sort_keys=False))
        return path

    def test_values_and_python_say_the_same(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        settings = '{"sharing": "mps", "replicas": 4}'
        asked = ["profiles", "convert", str(file), "--dialect", "nvidia", "--settings", settings]
        asked += ["--gpu", "NVIDIA-A100-SXM4-80GB=81920"]
        assert cli.main(asked) == 0
        values, notes = capsys.readouterr()
        made, _, _ = converted("nvidia-mps")
        assert yaml.safe_load(values) == {"singleuser": {"profileList": made.profile_list}}
        assert notes.splitlines() == [f"note: {note}" for note in made.notes]
        assert all(f"# {note}" in values for note in made.notes)
        assert cli.main([*asked, "--to", "python"]) == 0
        config = Config()
        exec(capsys.readouterr().out, {"c": config})
        assert config.KubeSpawner.profile_list == made.profile_list

    def test_limits_that_nobody_would_keep_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "profiles.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "profiles": [{"slug": "a", "request": 1}],
                    "policies": [{"groups": ["ml"], "concurrent": 2}],
                }
            )
        )
        assert cli.main(["profiles", "convert", str(path), "--dialect", "kai"]) == 0
        assert "note: policies: none of them is kept" in capsys.readouterr().err

    def test_claims_count_on_objects(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["profiles", "convert", str(file), "--dialect", "dra", "--settings",
                 '{"shares": true}', "--gpu", "NVIDIA-A100-SXM4-80GB=81920"]  # fmt: skip
        assert cli.main(asked) == 0
        values = yaml.safe_load(capsys.readouterr().out)
        assert cli.main([*asked, "--to", "objects"]) == 0
        objects = list(yaml.safe_load_all(capsys.readouterr().out))
        newest = kubernetes_validate.latest_version()
        for each in objects:
            kubernetes_validate.validate(each, newest, strict=True)
        names = {each["metadata"]["name"] for each in objects}
        assert len(names) == len(objects)
        wanted = set(re.findall(r"resourceClaimTemplateName['\"]: ['\"]([^'\"]+)", str(values)))
        assert wanted == names

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (["--settings", "x"], "write JSON"),
            (["--settings", "[]"], "write JSON"),
            (["--settings", '{"replica": 4}'], "did you mean replicas?"),
            (["--settings", '{"sharing": 4}'], "sharing is one of"),
        ],
    )
    def test_settings_that_cannot_be_are_refused_in_words(
        self, file: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
    ) -> None:
        assert cli.main(["profiles", "convert", str(file), "--dialect", "nvidia", *more]) == 1
        assert words in capsys.readouterr().err

    def test_a_file_with_a_fault_is_refused_with_its_place(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "profiles.yaml"
        path.write_text("profiles:\n  - slug: a\n    request: 1.5\n")
        assert cli.main(["profiles", "convert", str(path), "--dialect", "nvidia"]) == 1
        assert f"{path}:3" in capsys.readouterr().err
        assert cli.main(["profiles", "convert", str(tmp_path / "no"), "--dialect", "kai"]) == 1
        assert "No such file" in capsys.readouterr().err

    def test_every_dialect_can_be_named(self) -> None:
        assert set(cli.DIALECT_NAMES) == set(DIALECTS)


KUBE = """
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
from jupyter_gpuslice.hub.kube.profile_list import profile_list_of
import jupyterhub_fancy_profiles

c.KubeSpawner.profile_list = profile_list_of("lists.yaml", dialect="nvidia")
jupyterhub_fancy_profiles.setup_ui(c)
"""
LISTS = {
    "profiles": [
        {"slug": "cpu", "request": 0, "users": ["ana", "mia"]},
        {"slug": "gpu", "choices": [1, 2], "users": ["ana"], "default": True},
        {"slug": "big", "display_name": "For some", "request": 2, "groups": ["ml"]},
    ]
}


@pytest.fixture(scope="module")
def setting(
    make_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("list")
    path = folder / "lists.yaml"
    path.write_text(yaml.safe_dump(LISTS, sort_keys=False))
    more = KUBE.replace("lists.yaml", str(path))
    made = Setting(make_hub, folder, more=more)
    yield made
    made.clean()
    made.cluster.stop()


@pytest.mark.slow
class TestHub:
    """A real hub with plain KubeSpawner and jupyterhub-fancy-profiles, on the emulated cluster."""

    def test_kubespawner_546_nothing_of_one_start_is_left_for_the_next(
        self, setting: Setting
    ) -> None:
        hub = setting.hub
        for options, gpus in (
            ({"profile": "gpu", "request": "2"}, "2"),
            ({"profile": "cpu"}, None),
            ({"profile": "gpu", "request": "1"}, "1"),
        ):
            hub.run("ana", options)
            pod = setting.pod("ana")
            assert limits(pod).get("nvidia.com/gpu") == gpus
            void = environment(pod).get("NVIDIA_VISIBLE_DEVICES")
            assert void == (None if gpus else "void")
            hub.end("ana")
            eventually(lambda: not setting.pods(), "the pod's end")

    def test_each_user_has_their_own_profiles_by_every_way(self, setting: Setting) -> None:
        hub = setting.hub
        assert hub.spawn("ana", {"profile": "big"}).status_code >= 400
        refused = hub.spawn("eve", {"profile": "cpu"})
        assert refused.status_code == 403
        assert "No profile of this hub is for you" in refused.json()["message"]
        assert hub.spawn("eve").status_code == 403
        assert not setting.pods()
        hub.run("mia", {"profile": "big"})
        assert limits(setting.pod("mia"))["nvidia.com/gpu"] == "2"
        hub.end("mia")

    def test_fancy_profiles_is_given_them(self, setting: Setting) -> None:
        hub = setting.hub
        session = requests.Session()
        login = session.get(f"{hub.url}/hub/login", timeout=30)
        session.post(
            f"{hub.url}/hub/login",
            data={"username": "ana", "password": "x", "_xsrf": session.cookies["_xsrf"]},
            timeout=30,
        ).raise_for_status()
        assert login.ok
        page = session.get(f"{hub.url}/hub/spawn", timeout=30)
        assert page.ok, page.text
        (text,) = re.findall(r"window[.]profileList = (.*);", page.text)
        shown = json.loads(text)
        assert [(each["slug"], each.get("default", False)) for each in shown] == [
            ("cpu", False), ("gpu", True),
        ]  # fmt: skip
        choices = shown[1]["profile_options"]["request"]["choices"]
        assert [choice["display_name"] for choice in choices.values()] == ["One GPU", "2 GPUs"]
        assert session.get(f"{hub.url}/hub/fancy-profiles/static/dist/form.js", timeout=30).ok
