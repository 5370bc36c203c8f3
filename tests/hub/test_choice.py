"""What a user's options mean, and who may have what."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpuslice.hub.choice import ChoiceError, Profiles, beyond, describe
from jupyter_gpuslice.hub.profiles import parse_profiles
from jupyter_gpuslice.request import GpuRequest

PROFILES = parse_profiles(
    {
        "profiles": [
            {"slug": "vip", "request": 4, "users": ["ana"], "groups": ["ml"]},
            {"slug": "some", "choices": [0.25, {"request": 0.5, "default": True}]},
            {"slug": "own", "request": 0.5, "custom": True, "max": 1, "default": True},
        ]
    }
)


def select(options: Any, user: str = "ben", *groups: str, of: Profiles = PROFILES) -> Any:
    return of.select(options, user, groups).to_options()


@pytest.mark.parametrize("options", [None, {}])
def test_nothing_is_the_default(options: Any) -> None:
    assert select(options) == {"profile": "own", "request": "0.5"}


def test_a_profile_without_a_request_is_its_default() -> None:
    assert select({"profile": "some"}) == {"profile": "some", "request": "0.5"}


@pytest.mark.parametrize("text", [0.25, "0.25", " .25 ", "1x0.25"])
def test_a_request_is_what_it_means_and_not_how_it_is_written(text: Any) -> None:
    assert select({"profile": "some", "request": text})["request"] == "0.25"


def test_names_and_groups_open_a_profile() -> None:
    assert select({"profile": "vip"}, "ana")["request"] == "4"
    assert select({"profile": "vip"}, "ben", "ml")["request"] == "4"
    for options in ({"profile": "vip"}, {"profile": "vip", "request": "4"}):
        with pytest.raises(ChoiceError) as caught:
            select(options, "ben", "other")
        assert caught.value.status == 403
    assert [profile.slug for profile in PROFILES.visible("ben", [])] == ["some", "own"]


def test_who_may_have_nothing_is_told_so() -> None:
    closed = parse_profiles({"profiles": [{"slug": "a", "request": 1, "users": ["ana"]}]})
    with pytest.raises(ChoiceError) as caught:
        select(None, of=closed)
    assert (caught.value.status, caught.value.reason) == (403, "not_allowed")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"profile": "gone"}, "unknown_profile"),
        ({"profile": 7}, "unknown_profile"),
        ({"profile": None}, "bad_option"),
        ({"profile": True}, "bad_option"),
        ({"profile": ["own"]}, "bad_option"),
        ({"profile": "own", "request": ["1"]}, "bad_option"),
        ({"profile": "own", "x": "1"}, "bad_option"),
        ({1: 2}, "bad_option"),
        ({"profile": "own", "request": "much"}, "bad_request"),
        ({"profile": "own", "request": "2"}, "over_limit"),
        ({"profile": "own", "request": "auto"}, "over_limit"),
        ({"profile": "some", "request": "1"}, "not_offered"),
        ({"request": "4"}, "over_limit"),
    ],
)
def test_what_is_not_to_be_had_is_refused(options: Any, reason: str) -> None:
    with pytest.raises(ChoiceError) as caught:
        select(options)
    assert caught.value.reason == reason
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "text", ["1.5", "2", "h100:2", "2x0.75", "lots", "10ZB", "9GB/5", "", "0x"]
)
@pytest.mark.parametrize("most", ["0.25", "1", "2", "16GiB", "h100:1", "2x0.5"])
def test_a_hint_offers_only_what_the_profile_gives(text: str, most: str) -> None:
    profiles = parse_profiles(
        {"profiles": [{"slug": "a", "request": "0.1", "custom": True, "max": most}]}
    )
    try:
        profiles.select({"profile": "a", "request": text}, "ana", [])
    except ChoiceError as error:
        assert error.named
        for request in error.named:
            assert profiles.all[0].gives(request), error.hint
        assert "Valid requests" not in error.hint


def test_a_hint_offers_only_what_is_possible() -> None:
    with pytest.raises(ChoiceError) as caught:
        select({"profile": "own", "request": "10ZB"})
    assert "512MiB" in caught.value.hint
    assert "Write 0.5, 10GiB or 1." in caught.value.hint
    small = caught.value.among(lambda request: request.memory_mib is None)
    assert small.hint == "Write 0.5 or 1."
    assert str(small).startswith(small.message)
    assert caught.value.among(lambda request: False).hint == ""


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        # What the machine's broker offers, which does not know the profile.
        ("Would fit now: 2 or 79GiB.", "Write 0.5, 10GiB or 1."),
        ("Nothing is reserved. Would fit now: 2.", "Nothing is reserved. Write 0.5, 10GiB or 1."),
        ("Would fit now: 0.25 or 20GiB.", "Would fit now: 0.25 or 20GiB."),
        ("The wait is about 12 min, for 2 GPUs.", "The wait is about 12 min, for 2 GPUs."),
        ("", ""),
    ],
)
def test_a_refusal_by_the_machine_is_put_in_the_profile_s_terms(hint: str, expected: str) -> None:
    own = next(profile for profile in PROFILES.all if profile.slug == "own")
    assert ChoiceError("unknown_model", "No.", hint, 409).of(own).hint == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "own", "request": "1.5"}, "slice lies on one device. Write 0.5, 10GiB or 1."),
        ({"profile": "own", "request": "2"}, "it gives at most 1 GPU. Write 0.5, 10GiB or 1."),
        ({"profile": "own", "request": " "}, "The amount is empty. Write 0.5, 10GiB or 1."),
        ({"profile": "some", "request": "1"}, "does not offer 1. Write 0.25 or 0.5."),
    ],
)
def test_a_refusal_is_said_in_the_profile_s_own_terms(options: Any, words: str) -> None:
    with pytest.raises(ChoiceError) as caught:
        select(options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("request_", "most", "fits"),
    [
        ("0", "0.5", True),
        ("0.5", "0.5", True),
        ("0.51", "0.5", False),
        ("2x0.25", "0.5", False),
        ("2x0.25", "2x0.5", True),
        ("10GiB", "0.5", False),
        ("10GiB", "1", True),
        ("10GiB/50%", "1", True),
        ("1g.10gb", "1", True),
        ("2x1g.10gb", "1", False),
        ("10GiB", "20GiB", True),
        ("10GiB/50%", "20GiB", False),
        ("10GiB", "20GiB/50%", False),
        ("10GiB/50%", "20GiB/50%", True),
        ("21GiB/50%", "20GiB/50%", False),
        ("0.1", "20GiB", False),
        ("2g.20gb", "1g.10gb", False),
        ("1g.10gb", "1g.10gb", True),
        ("h100:0.5", "1", True),
        ("0.5", "h100:1", False),
        ("a100:0.5", "h100:1", False),
        ("h100:0.5", "h100:1", True),
        ("auto", "8", False),
        ("2", "2", True),
        ("3", "2", False),
    ],
)
def test_a_limit_is_a_limit(request_: str, most: str, fits: bool) -> None:
    assert (beyond(GpuRequest.parse(request_), GpuRequest.parse(most)) == "") is fits


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "CPU only"),
        ("1", "One GPU"),
        ("2", "2 GPUs"),
        ("0.5", "50 % of a GPU"),
        ("2x0.25", "2 × 25 % of a GPU"),
        ("h100:1", "One H100"),
        ("h100:0.125", "12.5 % of an H100"),
        ("t4:0.5", "50 % of a T4"),
        ("10GiB", "10 GiB of a GPU"),
        ("512MiB/50%", "512 MiB of a GPU, 50 % compute"),
        ("1g.10gb", "MIG 1g.10gb"),
        ("auto", "What is free of a GPU"),
    ],
)
def test_requests_in_words(text: str, words: str) -> None:
    assert describe(GpuRequest.parse(text)) == words
