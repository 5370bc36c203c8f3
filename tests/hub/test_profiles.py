"""profiles.yaml: what is read, and what is said about what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from jupyter_gpuslice.hub.profiles import (
    ProfileError,
    load_profiles,
    parse_profiles,
    parse_ttl,
    read_profiles,
    schema,
)

HERE = Path(__file__).parent


def one(**profile: Any) -> dict[str, Any]:
    return {"profiles": [{"slug": "a", **profile}]}


def test_the_schema_is_one_of_its_draft() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    "path", sorted((HERE / "../..").resolve().glob("hub_config/*/profiles.yaml"))
)
def test_the_examples_are_valid(path: Path) -> None:
    assert load_profiles(path).all


def test_everything_is_read(tmp_path: Path) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text("""
profiles:
  - slug: gpu
    display_name: GPU
    description: Some of it.
    choices:
      - 0.25
      - {request: h100:2, label: Two, default: true}
    custom: true
    max: 2
    users: [ana]
    groups: [ml]
    ttl: 8h
    hold: reserved
    spawner: {environment: {A: "1"}, default_url: /lab}
  - {slug: cpu, request: 0, default: true}
""")
    gpu, cpu = load_profiles(file).all
    assert [str(choice.request) for choice in gpu.choices] == ["0.25", "h100:2"]
    assert [choice.label for choice in gpu.choices] == ["25 % of a GPU", "Two"]
    assert str(gpu.default_choice.request) == "h100:2"
    assert (str(gpu.custom_max), gpu.ttl, gpu.default_url) == ("2", 8 * 3600, "/lab")
    assert gpu.environment == {"A": "1"}
    assert (gpu.users, gpu.groups) == ({"ana"}, {"ml"})
    assert (cpu.display_name, cpu.choices[0].label, cpu.default) == ("cpu", "CPU only", True)


@pytest.mark.parametrize(
    ("data", "where", "words"),
    [
        (None, "", "nothing in it"),
        ([], "", "not a mapping"),
        ({}, "", "profiles is missing"),
        ({"profiles": []}, "profiles", "empty"),
        ({"profils": []}, "", "Did you mean profiles?"),
        ({"profiles": ["a"]}, "profiles[0]", "not a mapping"),
        ({"profiles": [{"request": 1}]}, "profiles[0]", "slug is missing"),
        (one(), "profiles[0]", "does not say what it offers"),
        (one(request=1, choices=[1]), "profiles[0]", "not both"),
        (one(requst=1), "profiles[0]", "Did you mean request?"),
        (one(request=1.5), "profiles[0].request", "2x0.75"),
        (one(request=None), "profiles[0].request", "not a text or a number"),
        (one(request="auto"), "profiles[0].request", "auto is for kernels"),
        (one(choices=[]), "profiles[0].choices", "empty"),
        (one(choices=[1, {"request": "1"}]), "profiles[0].choices[1]", "offered twice"),
        (one(choices=[1, {"labl": "x"}]), "profiles[0].choices[1]", "Did you mean label?"),
        (one(choices=[[1]]), "profiles[0].choices[0]", "not a mapping"),
        (one(choices=[{"request": 2, "default": 1}]), "profiles[0].choices[0].default", "true or"),
        (
            one(choices=[{"request": n, "default": True} for n in (1, 2)]),
            "profiles[0].choices",
            "More than one choice",
        ),
        (one(request=1, custom=True), "profiles[0]", "need a limit"),
        (one(request=1, max=1), "profiles[0].max", "does not allow"),
        (one(request=1, hold="elastic"), "profiles[0].hold", "not there yet"),
        (one(request=1, hold="tight"), "profiles[0].hold", "no way to hold"),
        (one(request=1, ttl="8 hours"), "profiles[0].ttl", "write 30m, 8h or 2d"),
        (one(request=1, users=[]), "profiles[0].users", "empty"),
        (one(request=1, users="ana"), "profiles[0].users", "not a list"),
        (one(request=1, spawner={"cmd": "x"}), "profiles[0].spawner", "no key 'cmd'"),
        (
            one(request=1, spawner={"environment": {"A": 1}}),
            "profiles[0].spawner.environment.A",
            "not a text",
        ),
        ({"profiles": [{"slug": "A b", "request": 1}]}, "profiles[0].slug", "lower-case"),
        (
            {"profiles": [{"slug": "a", "request": 1}, {"slug": "a", "request": 2}]},
            "profiles[1].slug",
            "profiles[0] already",
        ),
        (
            {"profiles": [{"slug": s, "request": 1, "default": True} for s in "ab"]},
            "profiles",
            "a and b are all the default",
        ),
    ],
)
def test_faults_are_named_with_file_place_and_remedy(data: Any, where: str, words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profiles(data, "hub/profiles.yaml")
    assert caught.value.where == where
    text = str(caught.value)
    assert text.startswith("hub/profiles.yaml: " + (f"{where}: " if where else ""))
    assert words in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: [", "not YAML"),
        ("profiles:\n  - slug: a\n    request: 1\n    request: 2\n", "'request' stands twice"),
        ("? [1]\n: 2\n", "A key is a plain text"),
        ("profiles: !!python/object:os.system x", "not YAML"),
    ],
)
def test_a_file_that_is_not_yaml(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profiles(file)
    assert words in str(caught.value)
    assert caught.value.line in (1, 2, 4)
    assert str(caught.value).startswith(f"{file}:{caught.value.line}: ")


MANY = """\
profiles:
  - slug: half
    request: 1.5
    colour: red
  - slug: Big One
    display_name: ""
    choices:
      - 1
      - {request: lots}
      - {labl: x}
      - request: 2
        default: 1
      - 1
    ttl: forever
    hold: tight
    spawner:
      environment:
        A B: x
        OMP: 4
  - slg: cpu
    request: 0
    default: true
  - slug: half
    default: true
    custom: true
    max: 1
    request: 0
    request: 1
  - words
"""


def test_all_faults_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(MANY)
    profiles, faults = read_profiles(file)
    assert profiles is None
    told = [(fault.line, fault.where, fault.message) for fault in faults]
    for line, where, words in [
        (1, "profiles", "profiles[2] and half are all the default"),
        (3, "profiles[0].request", "cannot be granted"),
        (4, "profiles[0]", "no key 'colour'"),
        (5, "profiles[1].slug", "cannot be used here"),
        (6, "profiles[1].display_name", "empty"),
        (9, "profiles[1].choices[1].request", "neither a number"),
        (10, "profiles[1].choices[2]", "no key 'labl'"),
        (10, "profiles[1].choices[2]", "request is missing"),
        (12, "profiles[1].choices[3].default", "not true or false"),
        (13, "profiles[1].choices[4]", "offered twice"),
        (14, "profiles[1].ttl", "no length of time"),
        (15, "profiles[1].hold", "no way to hold"),
        (18, "profiles[1].spawner.environment", "'A B' cannot be used"),
        (19, "profiles[1].spawner.environment.OMP", "not a text"),
        (20, "profiles[2]", "no key 'slg'"),
        (23, "profiles[3].slug", "already"),
        (28, "", "'request' stands twice"),
        (29, "profiles[4]", "not a mapping"),
    ]:
        found = [each for each in told if each[:2] == (line, where) and words in each[2]]
        assert len(found) == 1, (line, where, words, told)
        told.remove(found[0])
    # "slg" is misspelt, and so "slug" is not missing; nothing is told twice.
    assert told == []
    with pytest.raises(ProfileError) as caught:
        load_profiles(file)
    assert str(caught.value).startswith(f"{file}:{faults[0].line}: ")
    assert "(17 more: `jupyter gpuslice profiles check` names all.)" in str(caught.value)


def test_a_line_is_known_through_anchors_and_merged_keys(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "profiles:\n  - &a\n    slug: a\n    request: 9.5\n  - <<: *a\n    slug: b\n    ttl: x\n"
    )
    _, faults = read_profiles(file)
    assert [(fault.line, fault.where) for fault in faults] == [
        (4, "profiles[0].request"),
        (4, "profiles[1].request"),  # where it is written
        (7, "profiles[1].ttl"),
    ]


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ProfileError):
        load_profiles(file)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2 d", 172800)],
)
def test_lengths_of_time(value: Any, seconds: float) -> None:
    assert parse_ttl(value) == seconds


@pytest.mark.parametrize("value", ["", "h", "-1h", "0", "2w", "1e3", "400d", None, True, []])
def test_what_is_no_length_of_time(value: Any) -> None:
    with pytest.raises(ValueError, match="no length of time"):
        parse_ttl(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(0, 3) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*schema()["$defs"]["profile"]["properties"], "label", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.dictionaries(st.sampled_from(["slug", "request", "ttl"]), json_values))
def test_whatever_it_is_there_is_one_message_and_no_other_error(
    value: Any, profile: dict[str, Any]
) -> None:
    for data in (value, {"profiles": value}, {"profiles": [profile]}, one(request=value)):
        try:
            read = parse_profiles(yaml.safe_load(yaml.safe_dump(data)))
        except ProfileError as error:
            assert error.message
        else:
            assert all(profile.choices for profile in read.all)


@pytest.mark.parametrize(
    "text",
    [
        'profiles: [{slug: a, request: 1, spawner: {default_url: "/{nope}"}}]',
        'profiles: [{slug: a, request: 1, spawner: {default_url: "/{"}}]',
        'profiles: [{slug: a, request: 1, spawner: {default_url: "/{0}"}}]',
        'profiles: [{slug: a, request: 1, spawner: {default_url: "/{username.nope}"}}]',
        'profiles: [{slug: a, request: 1, display_name: "\\ud800"}]',
        'profiles: [{slug: a, request: 1, spawner: {environment: {A: "\\0"}}}]',
        "profiles: [{slug: a, request: " + "9" * 5000 + "}]",
        "[" * 5000,
    ],
)
def test_what_would_break_the_hub_is_a_fault_of_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError):
        load_profiles(path)


def test_an_address_may_have_what_jupyterhub_fills_in(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text('profiles: [{slug: a, request: 1, spawner: {default_url: "/lab/{username}"}}]')
    assert load_profiles(path).all[0].default_url == "/lab/{username}"
