"""A hub and the accounts of its machine take their slices from one broker."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator

import pytest
import requests

from jupyter_gpuslice.hub.handlers import MOST_STREAMS
from tests.hub.conftest import make_hub
from tests.hub.hubs import Hub, eventually

from .test_workstation import Broker

__all__ = ["make_hub"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    if broker.process.poll() is None:
        broker.stop()


@pytest.fixture(scope="module")
def hub(make_hub: Callable[..., Hub], broker: Broker) -> Hub:
    port = "int(c.LeasedSpawner.service_url.split(':')[2].split('/')[0])"
    again = f"configure(c, profiles='profiles.yaml', port={port}, broker={str(broker.socket)!r})"
    return make_hub(extra=again, simulate="h100-80gb:4")


def test_a_hubs_server_has_its_slice_of_the_machines_broker(hub: Hub, broker: Broker) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    (lease,) = broker.leases()
    assert (lease["holder"]["user"], lease["state"], lease["request"]) == ("ana", "active", "0.5")
    assert broker.free() == 0.5
    # The hub's own page, REST interface and metrics are those of the broker.
    assert hub.lease_of("ana")["id"] == lease["id"]
    assert [device["name"] for device in hub.pool()["devices"]] == [
        device["name"] for device in broker.ask("pool")["devices"]
    ]
    page = requests.get(
        f"{hub.service_url}/services/gpuslice/",
        headers={"Authorization": f"token {hub.admin()}"},
        timeout=30,
    )
    assert page.status_code == 200 and "ana" in page.text and "A100" in page.text
    scrape = hub.gpu("GET", "../../metrics", hub.admin())
    assert scrape.status_code == 200 and "gpuslice_device_held_bytes" in scrape.text
    # And the grant leads the server to the hub's service, not to a socket it may not use so.
    environ = hub.server("ana").environ()
    assert json.loads(environ["JUPYTER_GPUSLICE_GRANT"])["url"].startswith(hub.service_url)


def test_what_a_user_may_not_do_is_not_done_through_the_hub_either(
    hub: Hub, broker: Broker
) -> None:
    lease = hub.lease_of("ana")
    ben = hub.user_token("ben")
    assert hub.leases(ben) == []
    assert hub.gpu("GET", f"leases/{lease['id']}", ben).status_code == 403
    assert hub.gpu("DELETE", f"leases/{lease['id']}", ben).status_code == 403
    assert hub.gpu("PATCH", "pool", ben, json={"cordoned": True}).status_code == 403
    assert hub.gpu("GET", "metrics/../pool").status_code == 401
    # Nobody asks for somebody else by writing the header themselves.
    told = {"Gpuslice-For": json.dumps({"user": "ana", "admin": True, "hub": True})}
    answer = requests.get(
        f"{hub.api}/leases",
        headers={"Authorization": f"token {ben}", **told},
        timeout=30,
    )
    assert answer.json() == {"leases": []}
    asked = {"request": "1", "holder": {"kind": "session", "id": "ben/"}}
    assert hub.gpu("POST", "leases", ben, json=asked).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "pool%20HTTP/1.1%0d%0aGpuslice-For:%20x",
        "leases%3fx",
        "leases/%0d%0a",
        "leases/%23",
        "leases/a%20b/grant",
        "leases/%C3%A9",
        "../metrics%20",
    ],
)
def test_addresses_that_lead_nowhere_are_refused_and_nothing_else(hub: Hub, path: str) -> None:
    answer = requests.get(
        f"{hub.api}/{path}",
        headers={"Authorization": f"token {hub.user_token('ben')}"},
        timeout=30,
    )
    assert answer.status_code == 404, (path, answer.status_code, answer.text)


def test_a_reader_too_many_of_the_news_is_refused_in_the_brokers_words(
    hub: Hub, broker: Broker
) -> None:
    headers = {"Authorization": f"token {hub.user_token('mia')}"}
    readers = []
    try:
        for _ in range(MOST_STREAMS):
            reader = requests.get(f"{hub.api}/events", headers=headers, stream=True, timeout=30)
            next(reader.iter_content(1))
            readers.append(reader)
        refused = requests.get(f"{hub.api}/events", headers=headers, timeout=30)
        assert (refused.status_code, refused.json()["reason"]) == (429, "too_many")
    finally:
        for reader in readers:
            reader.close()


def test_news_come_through_line_for_line(hub: Hub, broker: Broker) -> None:
    with requests.get(
        f"{hub.api}/events",
        headers={"Authorization": f"token {hub.user_token('ana')}"},
        stream=True,
        timeout=60,
    ) as news:
        lines = news.iter_lines()
        first = json.loads(next(lines))
        assert first["schema"] == "pool" and first["data"]["pool"]["user"] == "ana"
        hub.run("ana", {"profile": "slice", "request": "0.25"}, name="second")
        for line in lines:
            told = json.loads(line) if line else {}
            if told.get("schema") == "lease" and told["data"]["lease"]["state"] == "active":
                break
    hub.end("ana", "second")


def test_a_token_that_is_taken_back_ends_its_stream_of_news(hub: Hub, broker: Broker) -> None:
    hub.end_of_news("cleo")


def test_a_full_machine_is_told_on_the_progress_page_and_the_turn_comes(
    hub: Hub, broker: Broker
) -> None:
    hub.run("mia", {"profile": "slice", "request": "0.5"})
    assert hub.spawn("ben", {"profile": "slice", "request": "0.5"}).status_code == 202
    hub.progress("ben", lambda event: "position 1 in the queue" in event["message"])
    hub.end("mia")
    hub.ready("ben")
    hub.end("ben")
    eventually(lambda: broker.free() == 0.5, "what ben gave back")


def test_a_hub_that_stops_leaves_what_its_servers_hold_and_finds_it_again(
    hub: Hub, broker: Broker
) -> None:
    lease = hub.lease_of("ana")
    assert hub.process is not None
    hub.process.send_signal(signal.SIGKILL)
    hub.process.wait()
    assert [each["id"] for each in broker.leases()] == [lease["id"]]
    hub.start()
    assert hub.lease_of("ana")["id"] == lease["id"]


def test_a_broker_that_is_stopped_costs_starts_with_a_gpu_and_nothing_else(
    hub: Hub, broker: Broker
) -> None:
    lease = hub.lease_of("ana")
    broker.stop()
    page = requests.get(
        f"{hub.service_url}/services/gpuslice/",
        headers={"Authorization": f"token {hub.admin()}"},
        timeout=30,
    )
    assert (page.status_code, "does not answer" in page.text) == (200, True)
    assert hub.gpu("GET", "pool", hub.admin()).json()["reason"] == "unreachable"
    hub.run("cleo", {"profile": "cpu"})
    broker.start()
    assert hub.lease_of("ana")["id"] == lease["id"]
    hub.end("ana")
    eventually(lambda: broker.free() == 1, "what ana gave back")
