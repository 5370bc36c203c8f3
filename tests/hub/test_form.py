"""The spawn page's form, without a hub."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from jupyter_gpuslice.hub.availability import Availability, DeviceKind, Offer
from jupyter_gpuslice.hub.choice import ChoiceError
from jupyter_gpuslice.hub.form import (
    Submitted,
    asked_about,
    options_from_form,
    spawn_form,
    status_words,
)
from jupyter_gpuslice.hub.profiles import parse_profiles
from jupyter_gpuslice.request import GpuRequest

PROFILES = parse_profiles(
    {
        "profiles": [
            {
                "slug": "gpu",
                "display_name": "<GPU> & co",
                "description": "<script>alert(1)</script>",
                "choices": [{"request": 0.5, "label": "<b>Half</b>"}, 1, "10GiB/50%"],
                "custom": True,
                "max": 1,
            },
            {"slug": "cpu", "display_name": "CPU", "request": 0},
            {"slug": "vip", "display_name": "Secret", "request": 8, "groups": ["vip"]},
        ]
    }
)
AVAILABLE = Availability(
    {
        "0.5": Offer(3, 4),
        "1": Offer(0, 2, position=2, estimate_s=720, message="Busy."),
        "10GiB/50%": Offer(0, 0, never=True, message="Too much for <this> machine."),
    },
    (DeviceKind("A100 <80>", "simulated", 2),),
    1,
)


class Page(HTMLParser):
    """Inputs and ids of a form; every tag that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inputs: list[dict[str, str]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts = 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "input":
            self.inputs.append(given)
        else:
            self.scripts += tag == "script"
            assert self.scripts <= 1  # our own
            assert tag not in ("b", "gpu", "this")
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def checked(self) -> list[str]:
        return [each["value"] for each in self.inputs if "checked" in each]

    def amounts(self) -> list[str]:
        return [each["value"] for each in self.inputs if each["type"] == "text"]


def page(last: Any = None, available: Availability = AVAILABLE, *groups: str) -> Page:
    return Page(spawn_form(PROFILES, available, last, "ana", groups))


def again(fields: Any, *, refused: bool = True, last: Any = None) -> Page:
    """The form as it is shown once more, after it was sent."""
    sent = Submitted(fields, refused)
    return Page(spawn_form(PROFILES, AVAILABLE, last, "ana", [], sent))


def test_choices_show_what_is_free_and_how_long_the_wait_is() -> None:
    seen = page()
    assert "2 × A100 <80> (simulated). 1 request waits in the queue." in seen.text
    assert "3 of 4 free" in seen.text
    assert "Busy, 0 of 2 free: wait in the queue at position 2, about 12 min" in seen.text
    assert "Too much for <this> machine." in seen.text
    assert "Starts at once" in seen.text
    assert "<b>Half</b>" in seen.text
    assert "Secret" not in seen.text
    assert "Secret" in page(None, AVAILABLE, "vip").text


def test_it_can_be_used_by_keyboard_and_screen_reader() -> None:
    seen = page()
    radios = [each for each in seen.inputs if each["type"] == "radio"]
    assert {each["name"] for each in radios} == {"choice"}
    assert len(seen.ids) == len(set(seen.ids))
    for each in seen.inputs:
        for described in each.get("aria-describedby", "").split():
            assert described in seen.ids
    disabled = [each["value"] for each in radios if "disabled" in each]
    assert disabled == ["gpu/10GiB/50%"]


def test_the_default_the_last_choice_and_an_own_amount_are_marked() -> None:
    assert page().checked() == ["gpu/0.5"]
    assert page({"profile": "gpu", "request": "1"}).checked() == ["gpu/1"]
    own = page({"profile": "gpu", "request": "0.3"})
    assert own.checked() == ["gpu/custom"]
    assert own.amounts() == ["0.3"]


@pytest.mark.parametrize(
    ("fields", "card", "amount"),
    [
        ({"choice": ["gpu/custom"], "custom.gpu": ["1.5"]}, "gpu/custom", "1.5"),
        ({"choice": ["gpu/custom"], "custom.gpu": ['"><b>']}, "gpu/custom", '"><b>'),
        ({"choice": ["gpu/custom"], "custom.gpu": [""]}, "gpu/custom", ""),
        # What stands in a field that is not chosen stays as well.
        ({"choice": ["gpu/1"], "custom.gpu": ["much"]}, "gpu/1", "much"),
        ({"choice": ["cpu/0"]}, "cpu/0", ""),
        # A link's query.
        ({"profile": ["gpu"], "request": ["7"]}, "gpu/custom", "7"),
        ({"profile": ["gpu"], "request": ["1"]}, "gpu/1", ""),
        # Cards that are not to be had give way to the default.
        ({"choice": ["gpu/10GiB/50%"], "custom.gpu": ["0.3"]}, "gpu/0.5", "0.3"),
        ({"choice": ["vip/8"]}, "gpu/0.5", ""),
        ({"choice": ["gpu/1", "gpu/2"]}, "gpu/0.5", ""),
        ({"choice_file": [{"filename": "x"}]}, "gpu/0.5", ""),
        ({"profile": ["cpu"], "request": ["9"]}, "gpu/0.5", ""),
    ],
)
def test_what_was_sent_stands_in_the_form_that_is_shown_again(
    fields: Any, card: str, amount: str
) -> None:
    seen = again(fields)
    assert seen.checked() == [card]
    assert seen.amounts() == [amount]
    assert "no longer offered" not in seen.text
    [text] = [each for each in seen.inputs if each["type"] == "text"]
    assert ("aria-invalid" in text) is (card == "gpu/custom")


def test_what_was_sent_counts_more_than_the_last_start() -> None:
    last = {"profile": "gpu", "request": "0.3"}
    assert again({"choice": ["cpu/0"]}, last=last).checked() == ["cpu/0"]
    assert "is-invalid" not in repr(again({"choice": ["gpu/custom"]}, refused=False).inputs)


@pytest.mark.parametrize(
    ("most", "words", "placeholder"),
    [
        (1, "At most 1 GPU.", "0.5 or 10GiB"),
        (4, "At most 4 GPUs.", "0.5 or 10GiB"),
        ("h100:1", "At most 1 H100.", "h100:0.5 or h100:10GiB"),
        (0.25, "At most 25 % of a GPU (0.25).", "0.25"),
        ("2x0.5", "At most 2 × 50 % of a GPU (2x0.5).", "0.5 or 2x0.5"),
        ("24GiB", "At most 24 GiB of a GPU (24GiB).", "10GiB or 24GiB"),
        ("a100:0.5", "At most 50 % of an A100 (a100:0.5).", "a100:0.5"),
        ("1g.10gb", "At most MIG 1g.10gb (1g.10gb).", "1g.10gb"),
    ],
)
def test_a_limit_says_of_what_and_the_examples_are_within_it(
    most: Any, words: str, placeholder: str
) -> None:
    profile = {"slug": "a", "request": 0, "custom": True, "max": most}
    profiles = parse_profiles({"profiles": [profile]})
    seen = Page(spawn_form(profiles, Availability(), None, "ana", []))
    assert words in seen.text
    assert [each["placeholder"] for each in seen.inputs if each["type"] == "text"] == [placeholder]


def test_the_examples_are_what_this_machine_can_grant() -> None:
    profile = {"slug": "a", "request": 0, "custom": True, "max": 1}
    profiles = parse_profiles({"profiles": [profile]})
    assert asked_about(profiles.all) == ["0", "0.5", "1", "10GiB"]
    small = Availability({"10GiB": Offer(0, 0, never=True, message="Too much.")})
    text = spawn_form(profiles, small, None, "ana", [])
    assert 'placeholder="0.5 or 1"' in text


@pytest.mark.parametrize(
    "last",
    [{"profile": "renamed"}, {"profile": "vip"}, {"profile": "gpu", "request": "4"}, {"x": 1}],
)
def test_a_last_choice_that_is_gone_is_dropped_with_a_note(last: Any) -> None:
    seen = page(last)
    assert "Your last choice is no longer offered" in seen.text
    assert seen.checked() == ["gpu/0.5"]


def test_what_can_never_fit_is_not_marked_even_if_it_was_the_last() -> None:
    assert page({"profile": "gpu", "request": "10GiB/50%"}).checked() == ["gpu/0.5"]


def test_without_the_service_it_can_still_be_chosen() -> None:
    seen = page(None, Availability(note="What is free is unknown."))
    assert "What is free is unknown." in seen.text
    assert "Availability unknown" in seen.text
    assert not [each for each in seen.inputs if "disabled" in each]


def test_nobody_s_form_says_so() -> None:
    closed = parse_profiles({"profiles": [{"slug": "a", "request": 1, "users": ["x"]}]})
    seen = Page(spawn_form(closed, AVAILABLE, None, "ana", []))
    assert "No profile of this hub is for you" in seen.text
    assert seen.inputs == []


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ({}, {}),
        ({"choice": ["gpu/10GiB/50%"]}, {"profile": "gpu", "request": "10GiB/50%"}),
        ({"choice": ["gpu"]}, {"profile": "gpu"}),
        (
            {"choice": ["gpu/custom"], "custom.gpu": [" 0.3 "]},
            {"profile": "gpu", "request": "0.3"},
        ),
        (
            {"choice": ["gpu/1"], "custom.gpu": ["0.3"], "_xsrf": ["x"]},
            {"profile": "gpu", "request": "1"},
        ),
        ({"profile": ["gpu"], "request": ["1"]}, {"profile": "gpu", "request": "1"}),
        # Nothing written is for the profile to refuse.
        ({"choice": ["gpu/custom"]}, {"profile": "gpu", "request": ""}),
    ],
)
def test_a_submitted_form_is_options(form: Any, options: dict[str, str]) -> None:
    assert options_from_form(form) == options


@pytest.mark.parametrize(
    "form",
    [
        {"choice": ["gpu/1", "gpu/2"]},
        {"choice": []},
        {"other": ["1"]},
        {"choice_file": [{"filename": "x"}]},
    ],
)
def test_a_form_that_is_not_ours_is_refused(form: Any) -> None:
    with pytest.raises(ChoiceError) as caught:
        options_from_form(form)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("offer", "kind"),
    [
        (Offer(), "unknown"),
        (Offer(1, 2), "free"),
        (Offer(0, 2), "busy"),
        # There is room, but others wait for it already.
        (Offer(1, 2, position=3), "busy"),
        (Offer(0, 0, never=True, message="No."), "never"),
    ],
)
def test_status(offer: Offer, kind: str) -> None:
    assert status_words(GpuRequest.parse("0.5"), offer)[0] == kind
