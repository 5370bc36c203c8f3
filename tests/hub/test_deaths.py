"""The hub, its service and its servers are killed, and what was promised holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests

from tests.hub.hubs import Hub, eventually

pytestmark = pytest.mark.slow
WHOLE = 81408


@pytest.fixture(scope="module")
def hub(make_hub: Callable[..., Hub]) -> Hub:
    return make_hub()


def test_a_service_that_is_killed_comes_back_and_knows_what_runs(hub: Hub) -> None:
    hub.run("ana", {"profile": "whole", "request": "1"})
    hub.run("ben", {"profile": "slice", "request": "0.5"})
    assert hub.spawn("cleo", {"profile": "whole", "request": "1"}).status_code == 202
    ana, cleo = hub.lease_of("ana"), hub.lease_of("cleo")
    assert cleo["state"] == "queued"
    server = hub.server("ben")
    service = hub.service()
    assert service is not None
    service.kill()
    server.kill()  # nobody is there to see it

    def back() -> bool:
        fresh = hub.service()
        return fresh is not None and fresh.pid != service.pid and answers(hub)

    eventually(back, "another service")
    # What ended meanwhile is free at once, what lives keeps its lease, who waits is served.
    assert hub.lease_of("ana")["slices"] == ana["slices"]
    assert hub.lease_of("ana")["state"] == "active"
    eventually(lambda: "ben" not in users(hub), "the dead server's slice", 5)
    hub.ready("cleo")
    assert hub.lease_of("cleo")["id"] == cleo["id"]
    assert hub.free_mib() == [0, 0]
    hub.end("cleo")
    hub.end("ana")
    assert hub.free_mib() == [WHOLE, WHOLE]


def test_a_ledger_that_is_lost_costs_nobody_the_slice_that_runs(hub: Hub) -> None:
    hub.run("ana", {"profile": "whole", "request": "1"})
    ana = hub.lease_of("ana")
    service = hub.service()
    assert service is not None
    for file in hub.root.glob("*gpuslice.sqlite*"):
        if file.suffix != ".lock":
            file.unlink()
    service.kill()
    eventually(lambda: (hub.service() or service).pid != service.pid and answers(hub), "another")
    assert hub.lease_of("ana")["id"] == ana["id"]
    assert hub.lease_of("ana")["slices"] == ana["slices"]
    assert sorted(hub.free_mib()) == [0, WHOLE]
    hub.server("ana").kill()
    eventually(lambda: hub.free_mib() == [WHOLE, WHOLE], "the dead server's slice", 10)
    hub.end("ana")


def test_a_start_waits_for_a_service_that_is_slow(hub: Hub) -> None:
    service = hub.service()
    assert service is not None
    service.kill()
    began = time.monotonic()
    hub.run("dan", {"profile": "slice", "request": "0.5"})
    assert hub.lease_of("dan")["state"] == "active"
    assert time.monotonic() - began < 60
    hub.end("dan")


def test_a_service_that_does_not_answer_is_named_and_not_counted(
    make_hub: Callable[..., Hub],
) -> None:
    hub = make_hub(
        extra="c.GpuSliceSpawner.service_timeout = 1\nc.Spawner.consecutive_failure_limit = 2\n"
        "service_poll = 600"
    )
    service = hub.service()
    assert service is not None
    service.kill()
    for _ in range(3):
        response = hub.spawn("ana", {"profile": "slice"})
        assert response.status_code == 503
        assert "GPU service does not answer" in response.json()["message"]
    # Who needs no GPU is not held up.
    hub.run("ana", {"profile": "cpu"})


def test_a_hub_that_is_killed_takes_its_service_with_it_and_the_next_one_goes_on(
    make_hub: Callable[..., Hub],
) -> None:
    hub = make_hub()
    hub.run("ana", {"profile": "whole", "request": "1"})
    hub.run("ben", {"profile": "slice", "request": "0.5"})
    assert hub.spawn("cleo", {"profile": "whole", "request": "2"}).status_code == 202
    ana = hub.lease_of("ana")
    servers = {user: hub.server(user) for user in ("ana", "ben")}
    service = hub.service()
    assert service is not None
    assert hub.process is not None
    proxies = [
        each for each in hub.family() if "configurable_http_proxy" in " ".join(each.cmdline())
    ]
    hub.process.kill()
    hub.process.wait()
    psutil.wait_procs([service], 10)
    assert not service.is_running(), "the service outlived its hub"
    assert all(server.is_running() for server in servers.values())
    servers["ben"].kill()
    for proxy in proxies:
        proxy.kill()
    psutil.wait_procs(proxies, 10)

    hub.start()
    hub.ready("ana")
    assert hub.lease_of("ana")["slices"] == ana["slices"]
    assert hub.lease_of("ana")["id"] == ana["id"]
    assert "ben" not in users(hub)
    # The start that waited died with its hub: it does not stand in the way of others for long.
    eventually(lambda: hub.pool()["queue"] == [], "the end of the forgotten start", 45)
    hub.run("ben", {"profile": "slice", "request": "0.5"})
    # The new hub stops what the old one started, and the slice is free when it has ended.
    hub.end("ana")
    eventually(lambda: "ana" not in users(hub), "ana's slice", 10)
    assert not servers["ana"].is_running() or servers["ana"].status() == psutil.STATUS_ZOMBIE


def test_a_service_without_its_hub_ends_at_once(hub: Hub) -> None:
    """As after a crash of the hub just when the service starts: it must not keep the ledger."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    environ = {
        **os.environ,
        "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/gpuslice/",
        "JUPYTERHUB_API_TOKEN": "x",
        "JUPYTER_GPUSLICE_HUB_SECRET": "x",
        "JUPYTER_GPUSLICE_HUB_SETTINGS": json.dumps(
            {"hub": {"pid": gone.pid, "created": "never"}, "ledger": str(hub.root / "other.sqlite")}
        ),
    }
    service = subprocess.Popen([sys.executable, "-m", "jupyter_gpuslice.hub.service"], env=environ)
    try:
        service.wait(30)
    finally:
        if service.poll() is None:
            service.send_signal(signal.SIGKILL)
            service.wait()


def users(hub: Hub) -> set[str]:
    return {lease["holder"]["user"] for lease in hub.leases()}


def answers(hub: Hub) -> bool:
    try:
        return hub.gpu("GET", "pool", hub.admin()).ok
    except requests.ConnectionError:
        return False


def test_a_service_that_hangs_holds_up_nobody_who_needs_no_gpu(hub: Hub) -> None:
    """Also not with more starts than the hub's own HTTP client has places."""
    service = hub.service()
    assert service is not None
    service.suspend()
    try:
        users = [f"hung{number}" for number in range(14)]
        for user in users:
            hub.user(user)
        asked = {"profile": "slice", "request": "0.25"}
        with ThreadPoolExecutor(len(users)) as pool:
            answers = list(pool.map(lambda user: hub.spawn(user, asked), users))
        assert {answer.status_code for answer in answers} == {202}
        began = time.monotonic()
        hub.run("free", {"profile": "cpu"})
        assert time.monotonic() - began < 20
        hub.end("free")
    finally:
        service.resume()
    for user in users:
        hub.end(user)
    eventually(lambda: not hub.leases(), "an empty pool")


def test_many_who_start_at_once_get_what_there_is_and_nothing_twice(hub: Hub) -> None:
    users = [f"many{number}" for number in range(12)]
    with ThreadPoolExecutor(len(users)) as pool:
        answers = list(
            pool.map(lambda user: hub.spawn(user, {"profile": "slice", "request": "0.25"}), users)
        )
    assert {answer.status_code for answer in answers} <= {201, 202}
    eventually(lambda: len(hub.leases()) == len(users), "a lease for each")

    def states() -> list[str]:
        return sorted(lease["state"] for lease in hub.leases())

    eventually(lambda: states() == ["active"] * 8 + ["queued"] * 4, "eight of twelve")
    for device in hub.pool()["devices"]:
        held = [
            slice_["memory_mib"]
            for lease in hub.leases()
            for slice_ in lease["slices"]
            if slice_["device"] == device["uuid"]
        ]
        assert sum(held) <= device["memory_mib"]
        assert device["free_mib"] == device["memory_mib"] - sum(held)
    for user in users:
        hub.end(user)
    eventually(lambda: not hub.leases(), "an empty pool")


def test_a_ledger_that_cannot_be_used_costs_no_login_and_no_server_without_a_gpu(
    make_hub: Callable[..., Hub],
) -> None:
    hub = make_hub()
    hub.stop()
    ledger = hub.root / "jupyter_gpuslice.sqlite"
    kept = ledger.read_bytes()
    for each in hub.root.glob("jupyter_gpuslice.sqlite-*"):
        each.unlink()
    ledger.write_bytes(b"no database" * 1000)
    hub.start()
    hub.run("cpu", {"profile": "cpu"})
    answer = hub.gpu("GET", "pool", "whatever")
    assert (answer.status_code, answer.json()["reason"]) == (503, "ledger")
    response = hub.spawn("ana", {"profile": "slice"})
    words = response.text
    if response.status_code == 202:
        words = hub.progress("ana", lambda event: bool(event.get("failed")))[-1]["message"]
    assert "ledger" in words
    assert str(ledger) not in words, "where it lies is for the log"
    assert "No GPU is granted" in hub.log()

    ledger.write_bytes(kept)
    eventually(lambda: hub.gpu("GET", "pool", hub.user_token("ana")).ok, "the ledger again")
    hub.run("ana", {"profile": "slice", "request": "0.5"})
