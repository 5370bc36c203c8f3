"""The service's page of a hub on Kubernetes, in a browser: light and dark, wide and narrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fakes.kubernetes import Cluster
from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually
from tests.hub.kube.settings import A100, Setting

from .conftest import WAIT_MS, pictures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
__all__ = ["make_hub"]

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
UUID = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d144{}"


def furnish(cluster: Cluster) -> None:
    """Nodes of several stacks, as a cluster has them that has grown."""
    cluster.node("gpu-node-2.example.internal", gpus=8, labels=H100)
    cluster.node("gpu-node-3.example.internal", labels={"nvidia.com/gpu.product": "Tesla-V100"})
    register = [
        {"id": UUID.format(number), "devmem": 32768, "devcore": 100, "health": not number,
         "type": "NVIDIA-Tesla V100-PCIE-32GB"}
        for number in range(2)
    ]  # fmt: skip

    def hami(node: dict[str, Any]) -> None:
        node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps(register)}
        node["spec"]["unschedulable"] = True

    mig = {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu.shared": "8", "cpu": "8"}
    cluster.node("gpu-node-4.example.internal", labels=A100)
    cluster.change(
        "nodes", "gpu-node-4.example.internal", lambda n: n["status"].update(allocatable=mig)
    )
    cluster.change("nodes", "gpu-node-3.example.internal", hami)


def somebody(user: str, where: str, notes: dict[str, str], server: str = "") -> dict[str, Any]:
    told = {
        "gpuslice.jupyter.org/hub": "default",
        "gpuslice.jupyter.org/isolation": "hami",
        "hub.jupyter.org/username": user,
        "hub.jupyter.org/servername": server,
        **notes,
    }
    container = {"name": "notebook", "image": "x", "command": ["sleep", "600"]}
    return {
        "metadata": {"name": f"x-{user}", "annotations": told},
        "spec": {"containers": [container], "nodeName": where},
    }


@pytest.fixture(scope="module")
def setting(
    make_hub: Callable[..., Hub], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setting]:
    made = Setting(make_hub, tmp_path_factory.mktemp("kube"), "nvidia", prepare=furnish)
    yield made
    made.cluster.stop()


@pytest.fixture
def people(browser: Browser) -> Iterator[Callable[[], Page]]:
    """A browser for each."""
    contexts = []

    def one() -> Page:
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 800}))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT_MS)
        return page

    yield one
    for context in contexts:
        context.close()


def log_in(page: Page, hub: Hub, user: str) -> None:
    page.goto(f"{hub.url}/hub/login")
    page.get_by_label("Username").fill(user)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/hub/**")


def test_the_page_of_a_cluster(setting: Setting, people: Callable[[], Page]) -> None:
    hub, cluster = setting.hub, setting.cluster
    hub.run("ana", {"profile": "whole", "request": "1"})
    notes = {
        "gpuslice.jupyter.org/request": "8GiB/30%",
        "hami.io/vgpu-devices-allocated": f"{UUID.format(0)},NVIDIA,8192,30:;",
    }
    cluster.create(
        "pods", somebody("bernadette", "gpu-node-3.example.internal", notes, "experiments")
    )
    hub.run("cleo", {"profile": "whole", "request": "3"})
    for user in ("dora", "eve"):
        assert hub.spawn(user, {"profile": "whole", "request": "3"}).status_code in (201, 202)
    eventually(lambda: len(hub.leases()) == 5, "all of them")

    page = people()
    log_in(page, hub, "admin")
    page.goto(f"{hub.url}/services/gpuslice/")
    main = page.locator("main")
    expect(main).to_contain_text("GPUs of this cluster")
    expect(main.get_by_role("cell", name="bernadette", exact=True)).to_be_visible()
    expect(main).to_contain_text("takes no new servers")
    for chosen in ("light", "dark"):
        for width in (1280, 800, 400):
            page.set_viewport_size({"width": width, "height": 800})
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"the page is {overflow} px too wide for {width} px"
            page.wait_for_timeout(500)
            path = pictures(documented=False) / f"cluster-{chosen}-{width}.png"
            page.screenshot(path=path, full_page=True)
            if width == 1280:
                name = "cluster-page" if chosen == "light" else "cluster-page-dark"
                page.screenshot(path=pictures() / f"{name}.png", full_page=True)
        page.set_viewport_size({"width": 1280, "height": 800})
        page.get_by_role("button", name="Toggle dark mode").click()

    theirs = people()
    log_in(theirs, hub, "eve")
    theirs.goto(f"{hub.url}/services/gpuslice/")
    expect(theirs.locator("main")).to_contain_text("What you hold")
    expect(theirs.locator("main")).not_to_contain_text("bernadette")
    theirs.screenshot(path=pictures(documented=False) / "cluster-user.png", full_page=True)

    # It renews itself.
    rows = main.locator("table").nth(1).locator("tbody tr")
    before = rows.count()
    hub.end("ana")
    expect(rows.filter(has_text="ana")).to_have_count(0)
    assert rows.count() <= before
    cluster.delete("pods", "x-bernadette")
    setting.clean()
