"""The main job, as a newcomer does it in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from jupyter_gpuslice.demo.hub import DemoHub

from .lab import START_MS, Lab, log_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Shoot = Callable[[str], None]


def test_spawn_page_offers_profiles_and_says_what_is_free(
    hub: DemoHub, page: Page, shoot: Shoot
) -> None:
    log_in(page, hub, "ben")
    expect(page.get_by_role("heading", name="A slice of a GPU")).to_be_visible()
    expect(page.get_by_role("radio", name="Half a GPU")).to_be_checked()
    body = page.locator("body")
    expect(body).to_contain_text(re.compile("simulated", re.IGNORECASE))
    expect(body).to_contain_text("2 × ")
    shoot("spawn-page")
    page.set_viewport_size({"width": 800, "height": 900})
    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"the page is {overflow} px too wide for 800 px"
    shoot("spawn-page-800")


def test_wrong_password_is_refused(hub: DemoHub, page: Page) -> None:
    page.goto(f"{hub.url}hub/login")
    page.get_by_label("Username").fill("ana")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("body")).to_contain_text("Invalid username or password")


def test_train_in_the_notebook_and_watch_the_sidebar(
    hub: DemoHub, page: Page, shoot: Shoot
) -> None:
    log_in(page, hub, "ana")
    page.get_by_role("radio", name="Half a GPU").check()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/user/ana/lab/**", timeout=START_MS, wait_until="commit")

    lab = Lab(page)
    lab.wait_idle()
    lab.show_sidebar()
    expect(lab.sidebar).to_contain_text("imulated")
    kernel = lab.sidebar.locator("[data-kernel-id]")
    expect(kernel).to_have_attribute("data-lease-state", "active")
    expect(kernel).to_contain_text("example.ipynb")

    # half a GPU is the whole pool here, which the panel and what is offered agree on
    pool = lab.sidebar.get_by_role("region", name="This session's pool")
    expect(pool.get_by_role("link")).to_have_attribute("href", "/services/gpuslice/")
    expect(lab.sidebar.get_by_role("region", name="This session's queue")).to_be_visible()
    page.get_by_role("button", name=re.compile("^GPU slice")).click()
    dialog = page.get_by_role("dialog")
    offers = dialog.get_by_role("radio")
    expect(offers).to_have_count(4)
    for offer, request in zip(offers.all(), ("none", "auto", "0.25", "0.5"), strict=True):
        expect(offer).to_have_value(request)
        offer.check()
        expect(dialog.locator("[data-verdict]")).to_have_attribute(
            "data-verdict", re.compile("fits|waits")
        )
    dialog.get_by_role("button", name="Cancel").click()

    assert re.search(r"simulated", lab.run("%gpu"), re.IGNORECASE)
    lab.run("%gpu why 2")

    # while the cell runs, the sidebar shows the group, its ranks, and devices at work
    lab.start("%%gpu train")
    group = lab.sidebar.locator("[data-group-id]")
    expect(group).to_have_attribute("data-group-state", "busy", timeout=START_MS)
    expect(group.locator("[data-rank]")).to_have_count(2)
    cell = lab.cell("%%gpu train")
    expect(cell.locator(".jp-Cell-outputArea")).to_contain_text("epoch  5", timeout=START_MS)
    cell.locator(".jp-Cell-outputArea").evaluate("node => node.scrollIntoView({block: 'end'})")
    shoot("lab-sidebar")
    expect(group).to_have_attribute("data-group-state", "busy")
    expect(cell.locator(".jp-InputArea-prompt")).to_have_text(
        re.compile(r"\[\d+\]"), timeout=START_MS
    )
    losses = [float(number) for number in re.findall(r"loss ([0-9.]+)", lab.output("%%gpu train"))]
    assert len(losses) >= 10
    assert losses[-1] < losses[0] / 2
    expect(group).to_have_attribute("data-group-state", "ready")

    pulled = lab.run("%gpu pull")
    assert f"{losses[-1]:.4f}" in pulled
    norms = re.findall(r"norm ([0-9.]+)", lab.run("%%gpu run"))
    assert len(norms) >= 1
    assert len(set(norms)) == 1

    # the panel in the notebook shows the same devices
    lab.run("from jupyter_gpuslice.widgets")
    panel = lab.cell("from jupyter_gpuslice.widgets").locator(".jp-OutputArea-output")
    expect(panel.first).to_contain_text("A100")
    panel.first.scroll_into_view_if_needed()
    shoot("panel")

    lab.theme("JupyterLab Dark")
    shoot("lab-sidebar-dark")
    lab.theme("JupyterLab Light")
    lab.sidebar_width(240)
    inside = lab.sidebar.evaluate("node => node.scrollWidth - node.clientWidth")
    assert inside <= 0, f"at 240 px the sidebar's content is {inside} px too wide"
    shoot("lab-sidebar-240")
    page.set_viewport_size({"width": 800, "height": 800})
    shoot("lab-800")
    page.set_viewport_size({"width": 1280, "height": 800})

    lab.run("%gpu stop")
    expect(group).to_have_count(0)
