"""A real hub, its service and its users' servers, end to end; the devices are simulated."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from html import unescape
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import requests
import yaml

from jupyter_gpuslice.hub.handlers import MOST_STREAMS
from tests.hub.hubs import DEADLINE, Hub, eventually

pytestmark = pytest.mark.slow
WHOLE = 81408
HALF = WHOLE // 2
QUARTER = WHOLE // 4


@pytest.fixture(scope="module")
def hub(make_hub: Callable[..., Hub]) -> Hub:
    return make_hub()


@pytest.fixture(autouse=True)
def clean(hub: Hub) -> Iterator[None]:
    """Each test begins and ends with an empty pool."""
    yield
    for user in hub.hub("GET", "users").json():
        for name, server in user["servers"].items():
            if server["ready"] or server["pending"]:
                hub.end(user["name"], name)
    eventually(lambda: not hub.leases(), "an empty pool")


def login(hub: Hub, user: str) -> requests.Session:
    session = requests.Session()
    session.get(f"{hub.url}/hub/login", timeout=30)
    response = session.post(
        f"{hub.url}/hub/login",
        data={"username": user, "password": "x", "_xsrf": session.cookies["_xsrf"]},
        timeout=30,
        allow_redirects=False,
    )
    assert response.status_code == 302, response.text
    return session


def form_of(hub: Hub, session: requests.Session) -> str:
    response = session.get(f"{hub.url}/hub/spawn", timeout=30)
    response.encoding = "utf-8"
    return unescape(response.text)


def submit(
    hub: Hub, session: requests.Session, server: str = "", **fields: str
) -> requests.Response:
    """Send the spawn page's form; ``server`` is user/name for a named one."""
    session.get(f"{hub.url}/hub/spawn", timeout=30)
    xsrf = next(c.value for c in session.cookies if c.name == "_xsrf" and c.path == "/hub/")
    return session.post(
        f"{hub.url}/hub/spawn/{server}".rstrip("/"),
        params={"_xsrf": xsrf},
        data=fields,
        timeout=60,
        allow_redirects=False,
    )


def test_two_users_share_a_device_and_see_nothing_of_each_other(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    hub.run("ben", {"profile": "slice", "request": "0.5"})
    ana, ben = hub.user_token("ana"), hub.user_token("ben")
    mine, other = hub.lease_of("ana"), hub.lease_of("ben")
    assert {s["device"] for s in mine["slices"]} == {s["device"] for s in other["slices"]}
    assert hub.free_mib() == [0, WHOLE]
    assert mine["state"] == other["state"] == "active"

    assert [lease["id"] for lease in hub.leases(ana)] == [mine["id"]]
    assert hub.gpu("GET", f"leases/{mine['id']}", ana).json()["holder"]["user"] == "ana"
    shown = hub.gpu("GET", "pool", ana)
    assert other["id"] not in shown.text
    assert "ben" not in shown.text
    for method, path, body in [
        ("GET", f"leases/{other['id']}", None),
        ("PATCH", f"leases/{other['id']}", {"ttl": 60}),
        ("DELETE", f"leases/{other['id']}", None),
        ("GET", f"leases/{other['id']}/grant", None),
        ("PUT", f"leases/{other['id']}/processes", {"processes": []}),
        ("POST", "leases", {"request": "0.25"}),
        ("POST", "leases", {"request": "0.25", "holder": {"kind": "session", "id": "ben/"}}),
        ("POST", "leases", {"request": "0.25", "holder": {"kind": "kernel", "id": "k"}}),
        ("POST", "explain", {"request": "1", "holder": {"kind": "session", "id": "ben/"}}),
    ]:
        response = hub.gpu(method, path, ana, json=body)
        assert response.status_code == 403, (method, path, response.text)
        assert set(response.json()) == {"message", "reason", "hint", "details"}
        assert "ben" not in response.json()["message"]
    # Nor may a user change what the own profile gave.
    for method, path, body, status in [
        ("PATCH", f"leases/{mine['id']}", {"ttl": 86400}, 403),
        ("PATCH", f"leases/{mine['id']}", {"request": "1"}, 409),
        ("DELETE", f"leases/{mine['id']}", None, 409),
        ("PUT", f"leases/{mine['id']}/processes", {"processes": []}, 403),
        ("GET", f"leases/{mine['id']}/grant", None, 403),
    ]:
        assert hub.gpu(method, path, ana, json=body).status_code == status, (method, path)
    usage = hub.gpu("GET", "usage?by=user", ana).json()["usage"]
    assert [row["user"] for row in usage] == ["ana"]
    assert hub.lease_of("ben") == other | {"used": hub.lease_of("ben")["used"]}
    assert hub.gpu("GET", "leases", ben).json()["leases"][0]["id"] == other["id"]


def test_nobody_gets_in_without_a_token_that_is_for_the_service(hub: Hub) -> None:
    hub.user("ana")
    small = hub.user_token("ana", ["read:users!user"])
    for path in ("pool", "leases", "usage", "events", "availability", "leases/x", "leases/x/grant"):
        assert hub.gpu("GET", path).status_code == 401, path
        assert hub.gpu("GET", path, "wrong").status_code == 401, path
        assert hub.gpu("GET", path, small).status_code == 403, path
        assert hub.gpu("GET", path, hub.token).status_code == 403, path
    for secret in ("", "x", "wrong" * 10):
        response = requests.get(
            f"{hub.api}/pool", headers={"Authorization": f"gpuslice {secret}"}, timeout=30
        )
        assert response.status_code == 401
    assert hub.gpu("GET", "nothing/here").status_code == 404


def test_a_server_is_told_its_grant_and_asks_with_its_own_token(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.25"})
    lease = hub.lease_of("ana")
    env = hub.ask_server("ana", "env")
    grant = json.loads(env["JUPYTER_GPUSLICE_GRANT"])
    assert env["JUPYTER_GPUSLICE_LEASE"] == grant["lease"] == lease["id"]
    assert grant["slices"] == lease["slices"]
    assert grant["isolation"] == "simulated"
    [device] = grant["devices"]
    assert env["CUDA_VISIBLE_DEVICES"] == device["uuid"] == lease["slices"][0]["device"]
    assert grant["nearness"] == []
    assert "JUPYTER_GPUSLICE_HUB_SECRET" not in env
    own = requests.get(
        grant["url"] + "leases",
        headers={"Authorization": f"token {env['JUPYTERHUB_API_TOKEN']}"},
        timeout=30,
    )
    assert [found["id"] for found in own.json()["leases"]] == [lease["id"]]


def test_a_server_without_a_gpu_sees_none_and_holds_none(hub: Hub) -> None:
    hub.run("cleo", {"profile": "cpu"})
    assert hub.leases() == []
    env = hub.ask_server("cleo", "env")
    grant = json.loads(env["JUPYTER_GPUSLICE_GRANT"])
    assert (grant["lease"], grant["devices"], grant["slices"]) == (None, [], [])
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "JUPYTER_GPUSLICE_LEASE" not in env


def test_the_queue_is_told_and_served(hub: Hub) -> None:
    hub.run("ana", {"profile": "whole", "request": "2"})
    assert hub.spawn("ben", {"profile": "slice", "request": "0.5"}).status_code == 202
    assert hub.spawn("cleo", {"profile": "slice", "request": "0.25"}).status_code == 202
    events = hub.progress("cleo", lambda event: "position 2" in event["message"])
    assert "you wait for 25 % of a GPU (0.25), at position 2 in the queue" in events[-1]["message"]
    assert "Stop Server leaves the queue" in events[-1]["message"]
    assert events[1]["message"] == "Asking for 25 % of a GPU (0.25)."
    assert [(w["position"], w["request"]) for w in hub.pool()["queue"]] == [(1, "0.5"), (2, "0.25")]
    theirs = hub.gpu("GET", "pool", hub.user_token("cleo")).json()["queue"]
    assert [waiting["holder"]["user"] for waiting in theirs] == [None, "cleo"]
    hub.end("ana")
    hub.ready("ben")
    hub.ready("cleo")
    assert {hub.lease_of(user)["state"] for user in ("ben", "cleo")} == {"active"}


def test_a_cancelled_start_leaves_the_queue(hub: Hub) -> None:
    hub.run("ana", {"profile": "whole", "request": "2"})
    assert hub.spawn("ben", {"profile": "slice", "request": "0.5"}).status_code == 202
    assert len(hub.pool()["queue"]) == 1
    hub.end("ben")
    eventually(lambda: hub.pool()["queue"] == [], "an empty queue", 10)
    # The next start is a start like any other.
    hub.end("ana")
    hub.run("ben", {"profile": "slice", "request": "0.5"})


def test_the_owner_may_leave_the_queue(hub: Hub) -> None:
    hub.run("ana", {"profile": "whole", "request": "2"})
    assert hub.spawn("ben", {"profile": "slice", "request": "0.5"}).status_code == 202
    [lease] = hub.leases(hub.user_token("ben"))
    assert hub.gpu("DELETE", f"leases/{lease['id']}", hub.user_token("ben")).ok
    events = hub.progress("ben", lambda event: event.get("failed", False))
    assert "left the queue" in events[-1]["message"]


def test_an_impossible_request_is_refused_at_once(hub: Hub) -> None:
    began = time.monotonic()
    response = hub.spawn("ana", {"profile": "whole", "request": "3"})
    assert time.monotonic() - began < 5
    assert response.status_code == 409
    assert response.json()["message"].startswith("3 needs 3 GPUs, and the pool has 2")
    assert response.json()["message"].endswith("Write 1 or 2.")
    assert hub.leases() == []


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"profile": "big"}, 403, "is not for you"),
        ({"profile": "big", "request": "0.25"}, 403, "is not for you"),
        ({"profile": "slice", "request": "1"}, 400, "does not offer 1"),
        ({"profile": "slice", "request": "lots"}, 400, "neither a number"),
        ({"profile": "custom", "request": "2"}, 400, "at most 1 GPU"),
        ({"profile": "nope"}, 400, "There is no profile 'nope'"),
        ({"profile": ["slice"]}, 400, "is a text"),
        ({"profile": {"slug": "slice"}}, 400, "is a text"),
        ({"environment": {"A": "1"}}, 400, "There is no option 'environment'"),
        ({"requst": "0.5"}, 400, "Did you mean request?"),
    ],
)
def test_tampered_options_are_refused(
    hub: Hub, options: dict[str, Any], status: int, words: str
) -> None:
    response = hub.spawn("eve", options)
    assert response.status_code == status, response.text
    assert words in response.json()["message"]
    assert hub.leases() == []


def test_kubespawner_889_a_group_s_profile_is_had_by_its_members_and_by_no_way_else(
    hub: Hub,
) -> None:
    """Also kubespawner#589, z2jh#1734."""
    assert "For some" not in form_of(hub, login(hub, "eve"))
    assert submit(hub, login(hub, "eve"), choice="big/2").status_code == 403
    assert hub.spawn("eve", {"profile": "big"}).status_code == 403
    assert hub.spawn("eve", {"profile": "big"}, "named").status_code == 403
    assert hub.leases() == []
    assert "For some" in form_of(hub, login(hub, "mia"))
    hub.run("mia", {"profile": "big"})
    assert hub.lease_of("mia")["request"] == "2"


def test_no_options_are_the_default(hub: Hub) -> None:
    hub.run("dan")
    assert hub.lease_of("dan")["request"] == "0.5"


def test_options_of_one_start_do_not_leak_into_the_next(hub: Hub) -> None:
    hub.run("dan", {"profile": "slice", "request": "0.5"})
    assert hub.ask_server("dan", "env")["CUDA_VISIBLE_DEVICES"].startswith("GPU-sim")
    hub.end("dan")
    hub.run("dan", {"profile": "cpu"})
    assert hub.leases() == []
    env = hub.ask_server("dan", "env")
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "JUPYTER_GPUSLICE_LEASE" not in env
    assert "XLA_CLIENT_MEM_FRACTION" not in env


def test_operate_first_20_the_form_shows_what_is_free_and_starts_a_server(hub: Hub) -> None:
    """Also kubeflow#6217, swan-cern/jupyterhub-extensions#59, jupyterhub#3043, renku-ui#786."""
    hub.run("ana", {"profile": "whole", "request": "1"})
    session = login(hub, "flo")
    page = form_of(hub, session)
    assert "2 × Simulated A100-80GB" in page
    status = dict(re.findall(r'id="gpuslice-(\S+)-status">.*?</span>(.*?)</span>', page))
    assert status["slice-0.5"] == "2 of 4 free"
    assert status["whole-1"] == "1 of 2 free"
    assert status["whole-2"].startswith("Busy, 0 of 1 free: wait in the queue at position 1")
    assert "This can never be granted here" in status["whole-3"]
    assert status["cpu-0"] == "Starts at once"
    assert "For some" not in page
    assert re.search(r'value="whole/3"[^>]* disabled', page)
    assert re.search(r'value="slice/0.5"[^>]* checked', page)

    response = submit(hub, session, choice="custom/custom", **{"custom.custom": "8 GiB"})
    assert response.status_code == 302, unescape(response.text)
    hub.ready("flo")
    assert hub.lease_of("flo")["request"] == "8GiB"
    hub.end("flo")
    page = form_of(hub, session)
    assert re.search(r'value="custom/custom"[^>]* checked', page)
    assert 'value="8GiB"' in page


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"choice": "big/2"}, 403, "is not for you"),
        ({"choice": "slice/2"}, 400, "does not offer 2"),
        ({"choice": "custom/custom", "custom.custom": "1.5"}, 400, "0.5, 10GiB or 1"),
        ({"choice": "custom/custom", "custom.custom": "h100:2"}, 400, "at most 1 GPU"),
        ({"choice": "custom/custom", "custom.custom": " "}, 400, "is empty"),
        ({"choice": "<b>/1"}, 400, "There is no profile '<b>'"),
        ({"chioce": "slice/0.5"}, 400, "no such field"),
    ],
)
def test_a_tampered_form_is_refused_in_words(
    hub: Hub, fields: dict[str, str], status: int, words: str
) -> None:
    response = submit(hub, login(hub, "eve"), **fields)
    assert response.status_code == status
    [alert] = re.findall(r"spawn-error-msg[^>]*>(.*?)</p>", response.text, re.DOTALL)
    assert words in unescape(alert)
    assert "SpawnException" not in alert
    assert "<b>" not in alert
    assert "2x0.75" not in alert
    assert "h100:" not in alert.replace(fields.get("custom.custom", "-"), "")
    if "custom.custom" in fields:
        # What was chosen and written is still there.
        assert re.search(r'value="custom/custom"[^>]* checked', response.text)
        assert f'value="{fields["custom.custom"]}"' in response.text
    assert hub.leases() == []


def test_what_was_sent_is_kept_for_a_named_server_and_for_nobody_else(hub: Hub) -> None:
    session = login(hub, "eve")
    fields = {"choice": "custom/custom", "custom.custom": "7x7"}
    refused = submit(hub, session, "eve/second", **fields)
    assert refused.status_code == 400
    assert 'value="7x7"' in refused.text
    # Neither the next look at the page nor somebody else's shows it.
    assert "7x7" not in form_of(hub, session)
    other = submit(hub, login(hub, "flo"), choice="slice/9")
    assert other.status_code == 400
    assert "7x7" not in other.text


def test_what_the_service_refuses_at_once_is_kept_as_well(hub: Hub) -> None:
    fields = {"choice": "custom/custom", "custom.custom": "h100:0.5"}
    response = submit(hub, login(hub, "eve"), "eve/second", **fields)
    assert response.status_code == 409, response.text
    assert 'value="h100:0.5"' in response.text
    [alert] = re.findall(r"spawn-error-msg[^>]*>(.*?)</p>", response.text, re.DOTALL)
    assert "no h100 here" in alert
    assert "Write 0.5, 10GiB or 1." in alert
    assert "Would fit now: 2" not in alert, "the profile gives one at most"
    assert re.search(r'value="custom/custom"[^>]* checked', response.text)


def test_named_servers_have_leases_of_their_own(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.25"})
    hub.run("ana", {"profile": "slice", "request": "0.5"}, "second")
    first, second = hub.lease_of("ana"), hub.lease_of("ana", "second")
    assert (first["request"], second["request"]) == ("0.25", "0.5")
    assert first["holder"]["id"] != second["holder"]["id"]
    hub.end("ana", "second")
    eventually(lambda: len(hub.leases()) == 1, "the second's slice")
    assert hub.lease_of("ana")["id"] == first["id"]
    assert hub.lease_of("ana")["state"] == "active"


def test_a_killed_server_gives_its_slice_back_and_others_keep_theirs(hub: Hub) -> None:
    hub.run("ana", {"profile": "whole", "request": "1"})
    hub.run("ben", {"profile": "slice", "request": "0.5"})
    other = hub.lease_of("ben")
    child = hub.ask_server("ana", "child")
    server = hub.server("ana")
    server.kill()
    eventually(
        lambda: [lease["holder"]["user"] for lease in hub.leases()] == ["ben"], "ana's slice", 20
    )
    # What it left behind used its device: it is gone before the slice is anybody else's.
    assert not _runs(child)
    assert hub.lease_of("ben")["id"] == other["id"]
    assert hub.lease_of("ben")["state"] == "active"


def test_a_server_whose_time_is_over_ends_before_its_slice_is_free(hub: Hub) -> None:
    hub.run("ana", {"profile": "short"})
    server = hub.server("ana")
    assert hub.lease_of("ana")["expires"] is not None
    eventually(lambda: not hub.leases(), "the end", 40)
    assert not _runs(server.pid), "the slice was free while its server ran"


def test_a_server_that_does_not_come_up_holds_nothing(make_hub: Callable[..., Hub]) -> None:
    broken = make_hub(extra='c.Spawner.cmd = ["false"]\nc.Spawner.http_timeout = 3')
    response = broken.spawn("ana", {"profile": "slice"})
    assert response.status_code in (202, 500), response.text
    eventually(lambda: broken.leases() == [], "the slice", 30)
    assert broken.free_mib() == [WHOLE, WHOLE]


def test_the_service_s_page_shows_each_what_is_theirs(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    hub.run("ben", {"profile": "slice", "request": "0.25"})
    pages = {}
    for user in ("ana", "admin"):
        session = login(hub, user)
        response = session.get(f"{hub.url}/services/gpuslice/", timeout=30)
        assert response.ok, response.text
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        pages[user] = unescape(response.text)
    assert "Simulated A100-80GB" in pages["ana"]
    assert "What you hold" in pages["ana"]
    assert "ben" not in pages["ana"]
    assert "Who holds what" in pages["admin"]
    assert "ben" in pages["admin"]
    assert "ana" in pages["admin"]


@pytest.mark.parametrize("path", ["x", "api/v1/x", "api/v1/pool", "x/y?z=<b>"])
def test_an_address_that_is_none_leads_people_back_and_tells_programs(hub: Hub, path: str) -> None:
    address = f"{hub.url}/services/gpuslice/{path}"
    accept = "text/html,application/xhtml+xml,*/*;q=0.8"
    page = requests.get(address, headers={"Accept": accept}, timeout=30)
    assert page.status_code == (401 if path.endswith("pool") else 404)
    assert page.headers["Content-Type"].startswith("text/html")
    assert 'href="/services/gpuslice/"' in page.text
    assert "script-src" in page.headers["Content-Security-Policy"]
    for accept in ("*/*", "application/json"):
        answer = requests.get(address, headers={"Accept": accept}, timeout=30)
        assert answer.status_code == page.status_code
        assert set(answer.json()) == {"message", "reason", "hint", "details"}


def test_the_service_s_address_works_without_its_last_slash(hub: Hub) -> None:
    session = login(hub, "ana")
    response = session.get(f"{hub.url}/services/gpuslice", timeout=30)
    assert "GPUs of this machine" in response.text


def test_the_service_s_page_has_the_hub_s_bar_and_look(hub: Hub) -> None:
    for user in ("ana", "admin"):
        session = login(hub, user)
        text = session.get(f"{hub.url}/services/gpuslice/", timeout=30).text
        addresses = re.findall(r'(?:href|src)="(/hub/[^"]*)"', text)
        assert ("/hub/admin" in addresses) is (user == "admin")
        assert "/hub/logout" in addresses
        for address in addresses:
            if address != "/hub/logout":
                assert session.get(f"{hub.url}{address}", timeout=30).ok, address


def test_news_reach_a_user_s_server_over_one_stream(hub: Hub) -> None:
    token = hub.user_token("ana")
    with requests.get(
        f"{hub.api}/events",
        headers={"Authorization": f"token {token}"},
        stream=True,
        timeout=DEADLINE,
    ) as response:
        lines = (json.loads(line) for line in response.iter_lines() if line)
        assert next(lines)["schema"] == "pool"
        hub.run("ben", {"profile": "slice", "request": "0.25"})
        hub.run("ana", {"profile": "slice", "request": "0.5"})
        told = []
        for news in lines:
            assert "ben" not in json.dumps(news)
            if news["schema"] == "lease":
                told.append(news["data"]["lease"])
                if told[-1]["state"] == "active":
                    break
    assert {lease["holder"]["user"] for lease in told} == {"ana"}
    assert told[-1]["slices"][0]["memory_mib"] == HALF


def test_a_token_that_is_taken_back_ends_its_stream_of_news(hub: Hub) -> None:
    hub.end_of_news("ben")


def test_usage_is_summed_by_user_group_and_day(hub: Hub) -> None:
    hub.run("mia", {"profile": "slice", "request": "0.5"})
    hub.end("mia")
    admin = hub.admin()
    users = {row["user"]: row for row in hub.gpu("GET", "usage?by=user", admin).json()["usage"]}
    assert users["mia"]["held_s"] > 0
    groups = {row["group"]: row for row in hub.gpu("GET", "usage?by=group", admin).json()["usage"]}
    assert groups["ml"]["held_s"] > 0
    assert hub.gpu("GET", "usage?by=day", admin).ok
    assert hub.gpu("GET", "usage?by=moon", admin).status_code == 400


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_metrics_are_for_admins_and_scrapers(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    address = f"{hub.service_url}/services/gpuslice/metrics"
    for token, status in ((hub.user_token("ana"), 403), (hub.admin(), 200), (hub.token, 200)):
        response = requests.get(address, headers={"Authorization": f"token {token}"}, timeout=30)
        assert response.status_code == status, response.text
    held = re.findall(r"^gpuslice_device_held_bytes{.*} (.*)$", response.text, re.MULTILINE)
    assert sorted(float(value) for value in held) == [0, HALF * 2**20]
    assert "ana" not in response.text


def test_its_answers_are_what_the_openapi_document_says(hub: Hub) -> None:
    document = yaml.safe_load((files("jupyter_gpuslice.server") / "openapi.yaml").read_text())
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    lease = hub.lease_of("ana")["id"]
    for path, query in (
        ("/pool", ""),
        ("/leases", ""),
        ("/leases/{lease}", ""),
        ("/usage", "?by=day"),
        ("/availability", "?request=0.5&request=2"),
    ):
        operation = document["paths"][path]["get"]
        response = operation["responses"]["200"]
        if "$ref" in response:
            name = response["$ref"].rpartition("/")[2]
            response = document["components"]["responses"][name]
        schema = response["content"]["application/json"]["schema"]
        service = hub.service()
        assert service is not None
        secret = service.environ()["JUPYTER_GPUSLICE_HUB_SECRET"]
        who = f"token {hub.admin()}" if path != "/availability" else f"gpuslice {secret}"
        answer = requests.get(
            f"{hub.api}{path.replace('{lease}', lease)}{query}",
            headers={"Authorization": who},
            timeout=30,
        )
        assert answer.ok, answer.text
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(
            answer.json()
        )


def test_what_costs_the_broker_much_is_for_the_hub_alone(hub: Hub) -> None:
    for token in (hub.user_token("ana"), hub.admin()):
        assert hub.gpu("GET", "availability?request=64MiB", token).status_code == 403


def test_code_in_an_admin_s_server_is_no_admin(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    hub.run("admin", {"profile": "cpu"})
    lease = hub.lease_of("ana")["id"]
    token = hub.server("admin").environ()["JUPYTERHUB_API_TOKEN"]
    assert hub.leases(token) == []
    assert hub.gpu("GET", "pool", token).json()["admin"] is False
    assert hub.gpu("PATCH", f"leases/{lease}", token, json={"ttl": 1}).status_code in (403, 404)
    assert hub.gpu("DELETE", f"leases/{lease}", token).status_code in (403, 404)
    assert hub.lease_of("ana")["state"] == "active"


def test_an_admin_may_end_what_is_held_and_its_owner_stops_the_server(hub: Hub) -> None:
    hub.run("ana", {"profile": "slice", "request": "0.5"})
    lease, server = hub.lease_of("ana")["id"], hub.server("ana")
    assert hub.gpu("DELETE", f"leases/{lease}", hub.user_token("ana")).status_code == 409
    assert hub.gpu("DELETE", f"leases/{lease}", hub.admin()).status_code == 200
    eventually(lambda: not hub.leases(), "the slice")
    eventually(lambda: not server.is_running() or server.status() == "zombie", "its end")


def test_a_user_follows_the_news_so_many_times_and_no_more(hub: Hub) -> None:
    token = hub.user_token("ana")
    streams = [hub.gpu("GET", "events", token, stream=True) for _ in range(MOST_STREAMS)]
    try:
        assert {each.status_code for each in streams} == {200}
        refused = hub.gpu("GET", "events", token)
        assert (refused.status_code, refused.json()["reason"]) == (429, "too_many")
        other = hub.gpu("GET", "events", hub.user_token("ben"), stream=True)
        assert other.status_code == 200
        other.close()
    finally:
        for each in streams:
            each.close()
    eventually(lambda: hub.gpu("GET", "pool", token).ok, "an answer")


def test_a_body_that_cannot_be_read_is_no_fault_of_the_service(hub: Hub) -> None:
    for body in ("[" * 100_000, "{", "\xff"):
        answer = hub.gpu("POST", "explain", hub.user_token("ana"), data=body)
        assert answer.status_code == 400, answer.text
