"""The spawn page's form, without a hub."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from jupyter_gpuslice.hub.availability import Availability, DeviceKind, Offer
from jupyter_gpuslice.hub.choice import ChoiceError
from jupyter_gpuslice.hub.form import options_from_form, spawn_form, status_words
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
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "input":
            self.inputs.append(given)
        else:
            assert tag not in ("script", "b", "gpu", "this")
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def checked(self) -> list[str]:
        return [each["value"] for each in self.inputs if "checked" in each]


def page(last: Any = None, available: Availability = AVAILABLE, *groups: str) -> Page:
    return Page(spawn_form(PROFILES, available, last, "ana", groups))


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
    assert [each["value"] for each in own.inputs if each["type"] == "text"] == ["0.3"]


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
        {"choice": ["gpu/custom"]},
        {"choice": ["gpu/custom"], "custom.gpu": [""]},
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
