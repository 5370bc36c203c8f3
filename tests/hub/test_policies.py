"""Which limits hold for whom."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_gpuslice.broker.limits import Standing
from jupyter_gpuslice.hub.choice import ChoiceError
from jupyter_gpuslice.hub.policies import NO_TERMS, Terms, not_now, standing_words, worth
from jupyter_gpuslice.hub.profiles import parse_profiles, read_profiles
from jupyter_gpuslice.request import GpuRequest

PROFILE = {"slug": "gpu", "choices": [0.25, 1, 2], "custom": True, "max": 4}


def terms(policies: Any, user: str = "ana", *groups: str) -> Terms:
    return parse_profiles({"profiles": [PROFILE], "policies": policies}).terms(user, groups)


def test_without_policies_nothing_is_limited() -> None:
    assert parse_profiles({"profiles": [PROFILE]}).terms("ana", ["ml"]) == NO_TERMS


def test_every_limit_is_read() -> None:
    policy = {
        "concurrent": 2,
        "gpu_hours_per_week": 40,
        "lifetime": "8h",
        "idle": "30m",
        "priority": 5,
    }
    assert terms([policy]) == Terms(2, 40, 8 * 3600, 1800, 5)


CLOSE = [
    {"concurrent": 1, "idle": "1h"},
    {"groups": ["ml"], "concurrent": 4},
    {"groups": ["course"], "concurrent": 2, "priority": -5},
    {"users": ["ana"], "concurrent": 0.5},
]


@pytest.mark.parametrize(
    ("user", "groups", "concurrent", "idle", "priority"),
    [
        ("zoe", [], 1, 3600, 0),
        ("zoe", ["ml"], 4, 3600, 0),
        ("zoe", ["ml", "course"], 4, 3600, -5),
        ("zoe", ["course"], 2, 3600, -5),
        ("ana", ["ml"], 0.5, 3600, 0),
    ],
)
def test_the_closest_entry_counts_for_each_limit_and_then_the_most_generous(
    user: str, groups: list[str], concurrent: float, idle: float, priority: int
) -> None:
    for order in itertools.permutations(CLOSE):
        found = terms(list(order), user, *groups)
        assert (found.concurrent, found.idle, found.priority) == (concurrent, idle, priority)


def test_null_lifts_a_limit() -> None:
    policies = [{"concurrent": 1}, {"groups": ["ml"], "concurrent": None}]
    assert terms(policies, "zoe", "ml").concurrent is None
    assert terms(policies, "zoe").concurrent == 1


@pytest.mark.parametrize(
    ("policy", "line", "words"),
    [
        ("{concurent: 2}", 3, "concurrent"),
        ("{concurrent: -1}", 3, "minimum of 0"),
        ("{concurrent: many}", 3, "many"),
        ("{concurrent: .nan}", 3, "nan is not a number"),
        ("{gpu_hours_per_week: !!float .nan}", 3, "nan is not a number"),
        ("{lifetime: soon}", 3, "is no length of time"),
        ("{idle: 0}", 3, "is no length of time"),
        ("{priority: 1.5}", 3, "1.5"),
        ("{priority: 101}", 3, "101"),
        ("{users: [ana]}", 3, "It limits nothing."),
        ("{users: [], concurrent: 1}", 3, "users"),
        ("{concurrent: 1, weight: 2}", 3, "weight"),
        ("5", 3, "5"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, policy: str, line: int, words: str) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(f"profiles: [{{slug: a, request: 1}}]\npolicies:\n  - {policy}\n")
    profiles, faults = read_profiles(file)
    assert profiles is None
    assert [fault.line for fault in faults] == [line], faults
    assert words in str(faults[0]), str(faults[0])


def test_what_is_beyond_a_limit_is_not_to_be_had_by_any_choice() -> None:
    profiles = parse_profiles({"profiles": [PROFILE], "policies": [{"concurrent": 1}]})
    assert str(profiles.select({"request": "1"}, "ana", []).request) == "1"
    for text in ("2", "4", "2x0.75"):
        with pytest.raises(ChoiceError) as refused:
            profiles.select({"profile": "gpu", "request": text}, "ana", [])
        assert (refused.value.reason, refused.value.status) == ("over_quota", 403)
        assert "You may hold 1 GPU at once." in str(refused.value)
        assert "2 or" not in refused.value.hint
    nothing = parse_profiles({"profiles": [PROFILE], "policies": [{"concurrent": 0}]})
    with pytest.raises(ChoiceError, match="You may not hold a GPU"):
        nothing.select(None, "ana", [])


def test_the_shorter_time_counts() -> None:
    profile = {**PROFILE, "ttl": "4h", "idle": "1h"}
    data = {"profiles": [profile], "policies": [{"lifetime": "2h", "idle": "3h"}]}
    chosen = parse_profiles(data).select(None, "ana", [])
    assert (chosen.ttl, chosen.idle) == (2 * 3600, 3600)
    alone = parse_profiles({"profiles": [PROFILE]}).select(None, "ana", [])
    assert (alone.ttl, alone.idle) == (None, None)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0", 0), ("0.25", 0.25), ("2", 2), ("2x0.5", 1), ("10GiB", 0), ("1g.10gb", 1)],
)
def test_how_much_a_request_is_worth(text: str, gpus: float) -> None:
    assert worth(GpuRequest.parse(text)) == gpus


def test_words_tell_what_is_known_and_nothing_else() -> None:
    both = Terms(concurrent=2, gpu_hours=40)
    assert standing_words(both, Standing(0.5, 12.34)) == (
        "You hold 0.5 of 2 GPUs at once and have used 12.3 of 40 GPU-hours of the last 7 days."
    )
    assert standing_words(both, Standing(1)) == "You hold 1 of 2 GPUs at once."
    assert standing_words(NO_TERMS, Standing(1, 1)) == ""
    one = GpuRequest.parse("1")
    assert not_now(one, both, Standing(1.5, 0))[1] is True
    assert not_now(one, both, Standing(0, 40)) == (
        "Your 40 GPU-hours of 7 days are used up.",
        False,
    )
    assert not_now(one, both, Standing(1)) == ("", False)
    assert not_now(GpuRequest.parse("0"), both, Standing(9, 99)) == ("", False)
    # An amount of memory is of no known worth: it counts as what whoever asks says.
    memory = GpuRequest.parse("10GiB")
    assert not_now(memory, both, Standing(2, 0)) == ("", False)
    assert not_now(memory, both, Standing(2, 0), unknown=1)[0].startswith("You hold 2 GPUs")


def test_yaml_says_it_as_people_write_it() -> None:
    text = """
    profiles: [{slug: a, request: 1}]
    policies:
      - concurrent: 1
        gpu_hours_per_week: 20
      - groups: [research]
        concurrent: null
    """
    profiles = parse_profiles(yaml.safe_load(text))
    assert profiles.terms("ana", ["research"]) == Terms(None, 20)
