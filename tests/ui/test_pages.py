"""The hub's pages around a start: waiting in the queue, and the pool's own page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from jupyter_gpuslice.demo.hub import SIMULATED, DemoHub

from .conftest import WAIT_MS, pictures
from .lab import START_MS, log_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Shoot = Callable[[str], None]


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


def start(page: Page, choice: str) -> None:
    page.get_by_role("radio", name=choice).check()
    page.get_by_role("button", name="Start").click()


def stop(page: Page, hub: DemoHub) -> None:
    page.goto(f"{hub.url}hub/home")
    page.get_by_role("button", name="Stop My Server").click()
    expect(page.get_by_role("button", name=re.compile("Start"))).to_be_visible(timeout=START_MS)


def test_a_start_waits_in_the_queue_in_plain_sight(
    hub: DemoHub, page: Page, other: Page, shoot: Shoot
) -> None:
    log_in(page, hub, "ana")
    start(page, "Two GPUs")
    page.wait_for_url("**/user/ana/lab**", timeout=START_MS, wait_until="commit")

    # The page says beforehand what the wait is, and the progress page afterwards.
    log_in(other, hub, "ben")
    expect(other.locator("body")).to_contain_text(re.compile("position 1", re.IGNORECASE))
    other.evaluate("document.documentElement.dataset.bsTheme = 'dark'")
    other.screenshot(path=pictures() / "spawn-page-dark.png")
    start(other, "Half a GPU")
    expect(other.locator("body")).to_contain_text(
        re.compile("position 1", re.IGNORECASE), timeout=START_MS
    )
    other.wait_for_timeout(500)
    other.screenshot(path=pictures() / "spawn-queued.png")

    # The pool's page shows everybody's place to nobody but its owner.
    page.goto(f"{hub.url}services/gpuslice/")
    expect(page.locator("body")).to_contain_text("Simulated A100-80GB")
    assert "ben" not in page.inner_text("body")
    shoot("pool-page")
    page.set_viewport_size({"width": 800, "height": 900})
    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"the page is {overflow} px too wide for 800 px"
    page.emulate_media(color_scheme="dark")
    shoot("pool-page-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 800})

    # When the devices are given back, the one who waits gets his half.
    stop(page, hub)
    other.wait_for_url("**/user/ben/lab**", timeout=START_MS, wait_until="commit")
    stop(other, hub)
