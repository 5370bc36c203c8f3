"""Converted profiles on other people's spawn pages: KubeSpawner's own, and fancy-profiles'."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml
from playwright.sync_api import Browser, Page

from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually
from tests.hub.kube.settings import Setting, limits

from .conftest import WAIT_MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
__all__ = ["make_hub"]

PROFILES = {
    "profiles": [
        {"slug": "cpu", "display_name": "No GPU", "request": 0, "default": True},
        {
            "slug": "gpu",
            "display_name": "Some <b> & more",
            "choices": [1, 2],
            "custom": True,
            "max": 4,
        },
    ]
}
CONFIG = """
from jupyter_gpuslice.hub.kube.profile_list import profile_list_of

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.profile_list = profile_list_of({file!r}, dialect="nvidia")
"""
FANCY = "import jupyterhub_fancy_profiles\njupyterhub_fancy_profiles.setup_ui(c)\n"


def by_kubespawner(page: Page, amount: str) -> None:
    page.get_by_text("Some ‹b› & more").click()
    page.locator("#profile-option-gpu--request").select_option(label="Another amount")
    page.locator("#profile-option-gpu--request--unlisted-choice").fill(amount)


def by_fancy_profiles(page: Page, amount: str) -> None:
    page.get_by_role("radio", name="Some ‹b› & more").check()
    page.get_by_role("combobox", name="GPU").click()
    page.get_by_role("option", name="Another amount").click()
    page.locator("#profile-option-gpu--request--unlisted-choice").fill(amount)


PAGES = {"kubespawner": ("", by_kubespawner), "fancy-profiles": (FANCY, by_fancy_profiles)}


@pytest.fixture(scope="module", params=PAGES)
def setting(
    request: pytest.FixtureRequest,
    make_hub: Callable[..., Hub],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Setting, Callable[[Page, str], None]]]:
    folder = tmp_path_factory.mktemp("lists")
    file = folder / "profiles.yaml"
    file.write_text(yaml.safe_dump(PROFILES, sort_keys=False))
    more, choose = PAGES[request.param]
    made = Setting(make_hub, folder, more=CONFIG.format(file=str(file)) + more)
    made.cluster.node("n2", gpus=4)
    yield made, choose
    made.clean()
    made.cluster.stop()


def test_an_amount_of_the_user_s_own_is_what_the_pod_asks_for(
    browser: Browser, setting: tuple[Setting, Callable[[Page, str], None]]
) -> None:
    made, choose = setting
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{made.hub.url}/hub/login?next=/hub/spawn")
    page.get_by_label("Username").fill("ana")
    page.get_by_label("Password").fill("x")
    page.get_by_role("button", name="Sign in").click()
    choose(page, "5")
    page.get_by_role("button", name="Start").last.click()
    # The page itself holds the field against the expression.
    page.wait_for_timeout(500)
    assert page.url.startswith(f"{made.hub.url}/hub/spawn")
    assert not made.pods()
    page.reload()
    choose(page, "3")
    page.get_by_role("button", name="Start").last.click()
    eventually(made.pods, "the pod")
    assert limits(made.pod("ana"))["nvidia.com/gpu"] == "3"
    context.close()
