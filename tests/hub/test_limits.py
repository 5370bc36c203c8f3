"""Policies on a real hub: the form, REST and the broker hold users to them, by every way in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import requests

from .hubs import Hub, eventually

PROFILES = {
    "profiles": [
        {"slug": "part", "choices": [0.25, 0.5, 1], "custom": True, "max": 2, "default": True},
        {"slug": "cpu", "request": 0},
        {"slug": "idle", "request": 0, "idle": "1s", "users": ["ida"]},
    ],
    "policies": [
        {"concurrent": 0.5},
        {"groups": ["ml"], "concurrent": 2, "priority": 10},
        {"users": ["hans"], "concurrent": None, "gpu_hours_per_week": 0.006},
        {"users": ["leo"], "lifetime": "13s"},
        {"users": ["nora"], "concurrent": 0},
    ],
}

EXTRA = f"""
import sys
c.GpuSliceSpawner.profiles = {PROFILES!r}


def real_server(spawner):
    # Only a real server knows whether anybody uses it.
    if spawner.user.name == "ida":
        spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
        spawner.args = ["--allow-root"]


c.Spawner.pre_spawn_hook = real_server
"""


@pytest.fixture(scope="module")
def hub(make_hub: Callable[..., Hub]) -> Hub:
    hub = make_hub(extra=EXTRA)
    # JupyterServer looks once a minute whether it is used: this is seen at the end.
    hub.run("ida", {"profile": "idle"})
    return hub


def refusal(response: requests.Response, status: int) -> str:
    assert response.status_code == status, response.text
    message: str = response.json()["message"]
    return message


def spawn_page(hub: Hub, user: str) -> str:
    session = requests.Session()
    login = session.get(f"{hub.url}/hub/login", timeout=30)
    data = {"username": user, "password": "", "_xsrf": session.cookies["_xsrf"]}
    session.post(login.url, data=data, timeout=30)
    page = session.get(f"{hub.url}/hub/spawn/{user}/another", timeout=30)
    assert page.ok
    return page.text


def test_a_second_server_waits_until_the_first_one_gives_back(hub: Hub) -> None:
    hub.run("ana", {"request": "0.5"})
    assert hub.spawn("ana", {"request": "0.25"}, name="more").status_code == 202
    waiting = eventually(
        lambda: [x for x in hub.leases() if x["state"] == "queued"], "the second server's lease"
    )
    assert "You hold 0.5 GPUs already, and may hold 0.5 GPUs at once" in waiting[0]["detail"]
    # Nobody else waits for it.
    hub.run("mia", {"request": "1"})
    pool = hub.gpu("GET", "pool", hub.user_token("ana")).json()
    limits = {"concurrent": 0.5, "gpu_hours": None, "held": 0.5}
    told = pool["session"]["limits"]
    assert {key: told[key] for key in limits} == limits
    page = spawn_page(hub, "ana")
    assert "You hold 0.5 of 0.5 GPUs at once." in page
    assert "You may hold 0.5 GPUs at once." in page
    hub.end("ana")
    hub.ready("ana", "more")
    hub.end("ana", "more")
    hub.end("mia")


@pytest.mark.parametrize("request_", ["1", "2", "2x0.5"])
def test_more_than_the_limit_is_refused_by_rest(hub: Hub, request_: str) -> None:
    message = refusal(hub.spawn("ben", {"profile": "part", "request": request_}), 403)
    assert "You may hold 0.5 GPUs at once." in message
    assert not [x for x in hub.leases() if x["holder"]["user"] == "ben"]


def test_a_refused_choice_is_not_the_one_of_the_next_start(hub: Hub) -> None:
    """JupyterHub notes the options of every start that was asked for."""
    hub.run("rex", {"request": "0.25"})
    hub.end("rex")
    for wrong, status in (({"request": "1"}, 403), ({"request": "lots"}, 400), ({"x": 1}, 400)):
        refusal(hub.spawn("rex", wrong), status)
        hub.run("rex")
        assert hub.lease_of("rex")["request"] == "0.25"
        hub.end("rex")
    # Who never had a good one gets the default.
    refusal(hub.spawn("new", {"request": "lots"}), 400)
    hub.run("new")
    assert hub.lease_of("new")["request"] == "0.25"
    hub.end("new")


def test_memory_is_counted_by_the_broker_that_knows_the_devices(hub: Hub) -> None:
    assert "50GiB" in refusal(hub.spawn("ben", {"request": "50GiB"}), 409)
    hub.run("ben", {"request": "20GiB"})
    hub.end("ben")


def test_who_may_hold_no_gpu_starts_without_one(hub: Hub) -> None:
    assert "You may not hold a GPU." in refusal(hub.spawn("nora"), 403)
    hub.run("nora", {"profile": "cpu"})
    assert "You may not hold a GPU." in spawn_page(hub, "nora")
    hub.end("nora")


def test_a_group_has_more_and_goes_first(hub: Hub) -> None:
    hub.run("mia", {"request": "2"})
    lease = hub.lease_of("mia")
    assert lease["priority"] == 10
    hub.spawn("ana", {"request": "0.5"})
    hub.spawn("mia", {"request": "0.25"}, name="first")
    eventually(lambda: len(hub.pool()["queue"]) == 2, "both in the queue")
    assert hub.pool()["queue"][0]["holder"]["user"] == "mia"
    hub.end("ana")
    hub.end("mia", "first")
    hub.end("mia")


def test_nobody_writes_limits_or_priority_of_their_own(hub: Hub) -> None:
    token = hub.user_token("ben")
    asked = {"request": "1", "holder": {"kind": "session", "id": "ben/"}}
    for more in ({"limits": {"concurrent": 9}}, {"priority": 9}, {}):
        assert hub.gpu("POST", "leases", token, json={**asked, **more}).status_code == 403
    refused = hub.spawn("ben", {"request": "0.5", "limits": {"concurrent": 9}})
    assert "There is no option 'limits'" in refusal(refused, 400)


def test_a_lifetime_bounds_what_is_held(hub: Hub) -> None:
    before = time.time()
    hub.run("leo", {"request": "0.25"})
    assert hub.lease_of("leo")["expires"] < before + 60
    eventually(lambda: hub.model("leo") is None, "the end of leo's server")


def test_gpu_hours_end_a_server_and_the_next_start_is_refused(hub: Hub) -> None:
    hub.run("hans", {"request": "1"})
    lease = hub.lease_of("hans")
    assert lease["expires"] is not None
    eventually(lambda: hub.model("hans") is None, "the end of hans's server")
    ended = hub.gpu("GET", f"leases/{lease['id']}", hub.admin()).json()
    assert "0.006 GPU-hours of 7 days are used up" in ended["detail"] or not ended["slices"]
    message = refusal(hub.spawn("hans", {"request": "1"}), 409)
    assert "of your 0.006 GPU-hours of 7 days" in message and "come back in" in message
    assert "of 0.006 GPU-hours of the last 7 days" in spawn_page(hub, "hans")
    explained = hub.gpu("POST", "explain", hub.user_token("hans"), json={"request": "1"}).json()
    assert explained["reason"] == "over_quota"
    hub.run("hans", {"profile": "cpu"})
    hub.end("hans")


def test_a_server_that_nobody_uses_ends_by_itself(hub: Hub) -> None:
    def gone() -> Any:
        return hub.model("ida") is None

    end = time.monotonic() + 240
    while not gone():
        assert time.monotonic() < end, "the server of ida goes on"
        time.sleep(1)
