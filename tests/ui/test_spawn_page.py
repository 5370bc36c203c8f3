"""The spawn page in a browser: what was written stays, and what is free is told as it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from jupyter_gpuslice.demo.hub import SIMULATED, DemoHub

from .conftest import WAIT_MS, pictures
from .lab import START_MS, log_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hub() -> Iterator[DemoHub]:
    """A hub of these tests' own: nobody's server runs."""
    with DemoHub(SIMULATED) as hub:
        yield hub


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    """Somebody else's browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    yield page
    context.close()


def no_wider_than_the_window(page: Page) -> None:
    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"the page is {overflow} px too wide"


def test_a_refusal_keeps_what_was_written_and_counts_change_beside_it(
    hub: DemoHub, page: Page, other: Page
) -> None:
    log_in(page, hub, "ana")
    amount = page.get_by_role("textbox", name="Another amount")
    amount.fill("1.5")
    page.get_by_role("button", name="Start").click()
    alert = page.locator(".spawn-error-msg")
    expect(alert).to_contain_text("Write 0.5, 10GiB or 1.")
    expect(amount).to_have_value("1.5")
    expect(amount).to_be_focused()
    card = page.get_by_role("radio", name="Another amount")
    expect(card).to_be_checked()
    for width in (1280, 800):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.evaluate(f"document.documentElement.dataset.bsTheme = '{theme}'")
            no_wider_than_the_window(page)
            page.screenshot(
                path=pictures(documented=False) / f"spawn-refused-{theme}-{width}.png",
                full_page=True,
            )

    # Somebody takes both devices: the page says so, and nothing else on it moves.
    whole = page.locator("[id='gpuslice-whole-2-status']")
    expect(whole).to_have_text("1 of 1 free")
    amount.fill("0.3")
    log_in(other, hub, "ben")
    other.get_by_role("radio", name="Two GPUs").check()
    other.get_by_role("button", name="Start").click()
    expect(whole).to_have_text(re.compile("^Busy, 0 of 1 free: wait"), timeout=START_MS)
    expect(amount).to_have_value("0.3")
    expect(card).to_be_checked()
    expect(alert).to_be_visible()
    other.wait_for_url("**/user/ben/lab**", timeout=START_MS, wait_until="commit")
    assert page.url.startswith(f"{hub.url}hub/spawn"), "looking again starts nothing"
