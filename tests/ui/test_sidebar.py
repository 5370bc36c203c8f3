"""The panel with everything in it at once, as wide and as dark as people have it; and notices."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from .conftest import WAIT_MS, pictures
from .lab import Lab
from .server import LabServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = "a-name-that-is-longer-than-the-panel-is-wide.ipynb"
# What a process has in its first two seconds counts as what it starts with.
HOARD = "import time; time.sleep(3); hoard = b'x' * (700 << 20)"
TRAIN = "%%gpu train -n 2 0.25\nprint('here')"

# WCAG 2.5.3: what a control is called contains what it shows.
NAMELESS = """
() => {
  const plain = text => (text || '').replace(/[…×\\s]/g, '').toLowerCase();
  return [...document.querySelectorAll('[class*="jp-gpuslice-"]')]
    .flatMap(node => [node, ...node.querySelectorAll('button, a, input')])
    .filter(node => node.matches('button, a, input') && node.hasAttribute('aria-label'))
    .filter(node => !plain(node.getAttribute('aria-label')).includes(plain(node.innerText)))
    .map(node => node.outerHTML);
}
"""

# What is wider than its place, but for notebooks' names: these end in an ellipsis.
CUT = """
panel => [...panel.querySelectorAll('*')]
  .filter(node => node.clientWidth && node.scrollWidth > node.clientWidth + 1)
  .filter(node => getComputedStyle(node).overflowX !== 'visible')
  .filter(node => !node.matches('input, .jp-gpuslice-kernel .jp-gpuslice-name'))
  .map(node => node.outerHTML)
"""

# Contrast of texts with what is behind them (WCAG 1.4.3), where nothing is see-through.
PALE = """
panel => {
  const parse = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255)
      .map(v => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const over = (top, below) => {
    const a = top[3] ?? 1;
    return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a));
  };
  const ground = node => {
    const layers = [];
    for (; node; node = node.parentElement) {
      layers.push(parse(getComputedStyle(node).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const texts = [...panel.querySelectorAll('*')].filter(node =>
    node.getClientRects().length && !node.disabled &&
    [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim()));
  return texts.map(node => {
    const behind = ground(node);
    const text = over(parse(getComputedStyle(node).color), behind);
    const [a, b] = [light(text), light(behind)].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.innerText];
  }).filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => `${ratio.toFixed(2)} ${text}`);
}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LabServer]:
    server = LabServer(tmp_path)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """In place of the one of a hub's tests."""
    return context.new_page()


@pytest.fixture
def lab(server: LabServer, page: Page) -> Lab:
    """Everything at once: a slice that is exceeded, a group, two quarters, a queue."""
    server.notebook("train.ipynb", "256MiB", HOARD, TRAIN)
    server.notebook(LONG, "2x0.25")
    server.notebook("whole.ipynb", "1")
    page.goto(server.address("tree/train.ipynb"))
    lab = Lab(page)
    lab.wait_idle()
    lab.show_sidebar()
    lab.run("import time")
    lab.run("%%gpu train")
    server.start_kernel(LONG)
    server.start_kernel("whole.ipynb")
    return lab


def test_everything_fits_is_told_apart_and_said_in_words(
    server: LabServer, page: Page, lab: Lab
) -> None:
    panel = lab.sidebar
    uuids = [device["uuid"] for device in server.call("GET", "gpuslice/api/v1/pool")["devices"]]
    pool = panel.get_by_role("region", name="Pool", exact=True)
    kernels = panel.get_by_role("region", name="My kernels")
    for uuid in uuids:
        begin = re.escape(uuid.removeprefix("GPU-sim-")[:8])
        expect(pool.get_by_title(uuid)).to_have_text(re.compile(f"A100-80GB {begin}$"))
        expect(kernels.get_by_title(uuid).first).to_contain_text(re.compile(begin))
    expect(pool).to_contain_text("0.5 GiB of each GPU is kept")
    train = kernels.locator("[data-kernel-id]").filter(has_text="train.ipynb")
    expect(train.get_by_role("note")).to_contain_text("more device memory than its slice")
    expect(kernels).to_contain_text("Compute of 2 GPUs")
    waits = kernels.locator("[data-lease-state=queued]")
    expect(waits).to_contain_text("whole.ipynb")
    expect(panel.get_by_role("region", name="Queue")).to_contain_text("yours: whole.ipynb")

    waits.get_by_role("button", name="Change the request").click()
    field = panel.get_by_role("textbox", name="Request")
    expect(field).to_be_focused()
    assert field.evaluate("node => node.selectionEnd - node.selectionStart") == len("1")
    page.keyboard.type("0.5")
    expect(field).to_have_value("0.5")
    expect(panel.locator(".jp-gpuslice-verdict")).not_to_have_attribute("data-verdict", "pending")

    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.set_viewport_size({"width": 1280, "height": 800})
        lab.theme(theme)
        word = theme.rpartition(" ")[2].lower()
        for width in (240, 320):
            for window in (1280, 800):
                page.set_viewport_size({"width": window, "height": 1600})
                lab.sidebar_width(width)
                page.mouse.move(640, 1)
                page.wait_for_timeout(300)
                name = f"sidebar-{word}-{width}-{window}.png"
                page.screenshot(path=pictures(documented=False) / name)
                wide = panel.evaluate("node => node.scrollWidth - node.clientWidth")
                assert wide <= 0, f"{name}: {wide} px too wide"
                assert panel.evaluate(CUT) == []
                assert panel.evaluate(PALE) == [], name
    assert page.evaluate(NAMELESS) == []

    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("button", name=re.compile("^GPU slice: 256MiB")).click()
    dialog = page.locator(".jp-gpuslice-dialog-body")
    verdict = dialog.locator("[data-verdict]")
    expect(verdict).not_to_have_attribute("data-verdict", "pending")
    page.screenshot(path=pictures(documented=False) / "slice-dialog.png")
    assert dialog.evaluate(CUT) == []
    assert dialog.evaluate(PALE) == []
    assert page.evaluate(NAMELESS) == []


def test_a_notice_is_shown_in_one_of_the_tabs(
    server: LabServer, context: BrowserContext, page: Page
) -> None:
    server.notebook("again.ipynb", "128MiB", TRAIN)
    page.goto(server.address("tree/again.ipynb"))
    lab = Lab(page)
    lab.wait_idle()
    lab.run("%%gpu train")
    pages = [page, context.new_page(), context.new_page()]
    for other in pages[1:]:
        other.bring_to_front()
        other.goto(server.address(""))
        expect(other.locator(".jp-gpuslice-status")).to_contain_text("held")
    kernel = next(
        session["kernel"]["id"]
        for session in server.call("GET", "api/sessions")
        if session["path"] == "again.ipynb"
    )
    server.call("POST", f"api/kernels/{kernel}/restart")
    shown = [each.get_by_role("alert").filter(has_text="kernel was restarted") for each in pages]
    end = time.monotonic() + 30
    while not sum(notice.count() for notice in shown):
        assert time.monotonic() < end, f"the notice never came:\n{server.log_tail()}"
        page.wait_for_timeout(100)
    page.wait_for_timeout(1000)
    assert sum(notice.count() for notice in shown) == 1
    (front,) = [each for each, notice in zip(pages, shown, strict=True) if notice.count()]
    expect(front.get_by_role("alert")).to_contain_text("again.ipynb: The group 'train' ended")
    front.bring_to_front()
    front.get_by_role("button", name="Show GPU slices").click()
    expect(Lab(front).sidebar).to_be_visible()
