"""The hub's pages and JupyterLab, by what a person sees and clicks."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from jupyter_gpuslice.demo.hub import DemoHub

START_MS = 90_000


def log_in(page: Page, hub: DemoHub, name: str) -> None:
    """Through the login form, to the spawn page."""
    password = next(user.password for user in hub.users if user.name == name)
    page.goto(f"{hub.url}hub/spawn")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()


class Lab:
    """JupyterLab with one notebook open."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sidebar = page.locator(".jp-gpuslice-sidebar")
        self.cells = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")

    def wait_idle(self) -> None:
        """Until the kernel is there and does nothing. Before that a cell would run too early."""
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=START_MS)

    def cell(self, start: str) -> Locator:
        """The code cell whose source starts with `start`."""
        editor = self.page.locator(".jp-InputArea-editor").filter(
            has_text=re.compile(rf"^\s*{re.escape(start)}")
        )
        return self.cells.filter(has=editor).first

    def run(self, start: str, timeout_ms: int = START_MS) -> str:
        """Run that cell to its end; the text of its output."""
        cell = self.cell(start)
        self.start(start)
        prompt = cell.locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=timeout_ms)
        assert cell.locator(".jp-RenderedText[data-mime-type*='stderr']").count() == 0, self.output(
            start
        )
        return self.output(start)

    def start(self, start: str) -> None:
        """Run that cell and do not wait."""
        cell = self.cell(start)
        cell.scroll_into_view_if_needed()
        cell.locator(".jp-InputArea-editor").click()
        self.page.keyboard.press("Control+Enter")

    def output(self, start: str) -> str:
        """What stands under that cell."""
        return self.cell(start).locator(".jp-Cell-outputArea").inner_text()

    def show_sidebar(self) -> None:
        """Open the GPU panel on the left."""
        if not self.sidebar.is_visible():
            self.page.get_by_role("tab", name="GPU slices").click()
        expect(self.sidebar).to_be_visible()

    def sidebar_width(self, pixels: int) -> None:
        """Drag the left area's edge until the panel is that wide, be it narrower than Lab likes."""
        self.page.add_style_tag(content=f"body {{ --jp-sidebar-min-width: {pixels}px; }}")
        # Lab reads the limit anew when the area is laid out again
        tab = self.page.get_by_role("tab", name="GPU slices")
        tab.click()
        expect(self.sidebar).to_be_hidden()
        tab.click()
        expect(self.sidebar).to_be_visible()
        before = self.sidebar.bounding_box()
        handle = self.page.locator("#jp-main-split-panel > .lm-SplitPanel-handle").first
        grip = handle.bounding_box()
        assert before is not None
        assert grip is not None
        x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + pixels - before["width"], y, steps=5)
        self.page.mouse.up()
        after = self.sidebar.bounding_box()
        assert after is not None
        assert abs(after["width"] - pixels) <= 2, f"the panel is {after['width']} px wide"

    def theme(self, name: str) -> None:
        """Choose a theme in the Settings menu."""
        self.page.get_by_role("menuitem", name="Settings", exact=True).click()
        entries = self.page.locator(".lm-Menu-itemLabel")
        entries.get_by_text("Theme", exact=True).hover()
        entries.get_by_text(name, exact=True).click()
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
