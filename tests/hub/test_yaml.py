"""What YAML makes of what people write in profiles.yaml."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpuslice.hub.faults import ProfileError, load
from jupyter_gpuslice.hub.profiles import load_profiles, read_profiles

START = "profiles:\n  - slug: a\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", "010"),
        ("1:30", "1:30"),
        ("1:30:00", "1:30:00"),
        ("1:30.5", "1:30.5"),
        ("-0:30", "-0:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("0x10", "0x10"),
        ("0o10", "0o10"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01 10:00:00", "2026-01-01 10:00:00"),
        ("01.5", "01.5"),
        ("0", 0),
        ("10", 10),
        ("-3", -3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("1.5e+3", 1500.0),
        ("true", True),
        ("null", None),
        (".inf", float("inf")),
        ('"10"', "10"),
        ("10GiB", "10GiB"),
    ],
)
def test_a_number_is_what_looks_like_one(text: str, value: Any) -> None:
    found, _, faults = load(f"a: {text}\n")
    assert found == {"a": value} and type(found["a"]) is type(value)
    assert not faults


def first_fault(folder: Path, text: str) -> str:
    path = folder / "profiles.yaml"
    path.write_text(text)
    return str(read_profiles(path)[1][0])


def test_a_time_of_the_clock_is_no_length_of_time(tmp_path: Path) -> None:
    """YAML 1.1 reads 1:30 as 90, which would have been seconds."""
    told = first_fault(tmp_path, f"{START}    request: 1\n    ttl: 1:30\n")
    assert told.endswith(
        "profiles.yaml:4: profiles[0].ttl: '1:30' is no length of time: write 30m, 8h or 2d."
    )


def test_a_leading_zero_does_not_change_a_number(tmp_path: Path) -> None:
    """YAML 1.1 reads 010 as 8."""
    path = tmp_path / "profiles.yaml"
    path.write_text(f"{START}    request: 010\n")
    assert str(load_profiles(path).all[0].choices[0].request) == "10"


def nested(first: str, link: str, times: int = 9) -> str:
    """Each line is nine of the one before: 3 billion at the end."""
    lines = [f"a0: &a0 {first}"]
    lines += [
        f"a{n}: &a{n} " + link.format(", ".join([f"*a{n - 1}"] * times)) for n in range(1, 10)
    ]
    return "\n".join([*lines, "profiles: []", ""])


@pytest.mark.parametrize(
    "text",
    [nested("[x, x]", "[{}]"), nested("{k: v}", "{{<<: [{}]}}"), nested("{k: v}", "{{k: [{}]}}")],
    ids=["lists", "merges", "mappings"],
)
def test_a_billion_laughs_are_refused_at_once(tmp_path: Path, text: str) -> None:
    began = time.monotonic()
    told = first_fault(tmp_path, text)
    assert "larger than a file of profiles can be. Write it without aliases" in told
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("text", ["profiles: &a [*a]\n", "profiles: &a\n  - {slug: b, x: *a}\n"])
def test_what_holds_itself_is_refused(tmp_path: Path, text: str) -> None:
    assert "This holds itself, by an alias." in first_fault(tmp_path, text)


def test_an_alias_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text("profiles:\n- &a {slug: a, request: 1}\n- {<<: *a, slug: b}\n")
    assert [profile.slug for profile in load_profiles(path).all] == ["a", "b"]
    many = "".join(f"- {{<<: *a, slug: b{n}}}\n" for n in range(3000))
    with pytest.raises(ProfileError):
        load("profiles: [*a]\n")
    assert len(load("profiles:\n- &a {slug: a, request: 1}\n" + many)[0]["profiles"]) == 3001
