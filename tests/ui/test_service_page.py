"""The service's page in a browser: the hub's bar and theme, and who sees what."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from jupyter_gpuslice.demo.hub import SIMULATED, DemoHub

from .conftest import WAIT_MS, pictures
from .lab import START_MS, Lab, log_in

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


def theme(page: Page) -> str:
    return str(page.evaluate("document.documentElement.dataset.bsTheme"))


def test_the_page_has_the_hub_s_bar_theme_and_all_leases_for_an_admin(
    hub: DemoHub, page: Page, other: Page
) -> None:
    log_in(other, hub, "ana")
    other.get_by_role("button", name="Start").click()
    other.wait_for_url("**/user/ana/lab**", timeout=START_MS, wait_until="commit")
    Lab(other).wait_idle()
    # The example is as Lab would have saved it.
    other.wait_for_timeout(1000)
    expect(other.locator(".lm-TabBar-tab", has_text="example.ipynb")).to_be_visible()
    expect(other.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0)

    log_in(page, hub, "admin")
    page.get_by_role("button", name="Services").click()
    page.get_by_role("link", name="gpuslice").click()
    main = page.locator("main")
    expect(main).to_contain_text("Who holds what")
    expect(main.get_by_role("cell", name="ana", exact=True)).to_be_visible()
    assert page.locator("nav img").evaluate("image => image.naturalWidth") > 0, "the hub's logo"

    # The theme is the hub's: chosen here it holds there, and the other way round.
    assert theme(page) == "light"
    page.get_by_role("button", name="Toggle dark mode").click()
    assert theme(page) == "dark"
    page.get_by_role("link", name="Home").first.click()
    page.wait_for_url("**/hub/home")
    assert theme(page) == "dark"
    page.goto(f"{hub.url}services/gpuslice/")
    for chosen in ("dark", "light"):
        assert theme(page) == chosen
        for width in (1280, 800, 400):
            page.set_viewport_size({"width": width, "height": 800})
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"the page is {overflow} px too wide for {width} px"
            page.wait_for_timeout(500)  # the hub's look fades from one theme to the other
            page.screenshot(path=pictures(documented=False) / f"service-{chosen}-{width}.png")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_role("button", name="Toggle dark mode").click()
    page.get_by_role("button", name="Toggle dark mode").click()

    page.goto(f"{hub.url}services/gpuslice/nowhere")
    page.screenshot(path=pictures(documented=False) / "service-not-found.png")
    page.get_by_role("link", name="GPUs of this machine").click()
    expect(main).to_contain_text("Simulated A100-80GB")

    # It renews itself, and only the main part of it.
    rows = main.locator("table").nth(1).locator("tbody tr")
    expect(rows).to_have_count(1)
    other.goto(f"{hub.url}hub/home")
    other.get_by_role("button", name="Stop My Server").click()
    expect(main).to_contain_text("Nothing.", timeout=START_MS)
    expect(page.locator("nav")).to_have_count(1)

    page.get_by_role("button", name=re.compile("Logout")).click()
    page.wait_for_url("**/hub/log*")
