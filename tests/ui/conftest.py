from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from jupyter_gpuslice.demo.hub import SIMULATED, DemoHub

WAIT_MS = 60_000

# Without these Chromium looks for its maker's servers at every start.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """In place of pytest-jupyter's, which ends the loop that Playwright runs on."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """In place of pytest-jupyter's: there is no server in this process."""


# Package scope, not session: Playwright keeps an event loop in this thread while it runs, and
# tests of other packages run loops of their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = os.environ.get("GPUSLICE_TEST_CHROMIUM") or shutil.which("chromium")
    if not path:
        pytest.skip("needs Chromium: apt-get install chromium, or GPUSLICE_TEST_CHROMIUM=path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def hub() -> Iterator[DemoHub]:
    """A running demo with two simulated devices."""
    with DemoHub(SIMULATED) as hub:
        yield hub


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def page(browser: Browser, hub: DemoHub, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a fresh browser profile; an error of ours in its scripts fails the test.

    Of a test that failed it leaves a picture, and prints what the hub had to say.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{error.message}\n{error.stack}"))
    yield page
    if request.node.stash.get(FAILED, False):
        page.screenshot(path=pictures(documented=False) / f"failed-{request.node.name}.png")
        print(f"The page stood at {page.url}. The end of the hub's log:\n{hub.log_tail(60)}")
    context.close()
    ours = [error for error in errors if "gpuslice" in error]
    assert not ours, "\n".join(ours)


def pictures(documented: bool = True) -> Path:
    """Where pictures go: those of the documentation, and those to look at only."""
    asked = os.environ.get("GPUSLICE_SCREENSHOTS") if documented else ""
    folder = Path(asked) if asked else Path(__file__).parents[2] / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def shoot(page: Page) -> Callable[[str], None]:
    """Keep a picture of what the page shows, for people to look at and for the documentation."""

    def take(name: str) -> None:
        # a pointer left on a button would show its tooltip
        page.mouse.move(640, 1)
        page.wait_for_timeout(300)
        page.screenshot(path=pictures() / f"{name}.png")

    return take
