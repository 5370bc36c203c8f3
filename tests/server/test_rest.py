"""The REST interface of a real server."""

from __future__ import annotations

import asyncio
import json

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.iostream import IOStream
from tornado.tcpclient import TCPClient

from jupyter_gpuslice.server.routes import routes

from .support import until

PATHS = [
    ("GET", "pool"),
    ("GET", "leases"),
    ("POST", "leases"),
    ("GET", "leases/abc"),
    ("PATCH", "leases/abc"),
    ("DELETE", "leases/abc"),
    ("POST", "explain"),
    ("GET", "usage"),
    ("GET", "groups"),
    ("POST", "groups"),
    ("GET", "groups/abc"),
    ("DELETE", "groups/abc"),
    ("POST", "groups/abc/interrupt"),
    ("POST", "groups/abc/reset"),
    ("POST", "groups/abc/execute"),
    ("POST", "kernels"),
    ("PATCH", "kernels/abc"),
    ("DELETE", "kernels/abc"),
    ("GET", "nonsense"),
]
SHAPE = {"message", "reason", "hint", "details"}


def test_the_list_of_calls_is_whole():
    assert (
        len({path.replace("abc", "x").split("?")[0] for _, path in PATHS}) == len(routes()) + 1
    )  # interrupt and reset share a route


@pytest.mark.parametrize(
    "authorization", ["", "token wrong", "gpuslice wrong", "gpuslice ", "Basic YTpi"]
)
async def test_nobody_comes_in_without_being_known(server, http_server_client, authorization):
    headers = {"Authorization": authorization} if authorization else {}
    for method, path in PATHS:
        response = await http_server_client.fetch(
            f"/a%40b/gpuslice/api/v1/{path}",
            method=method,
            headers=headers,
            body="{}" if method in ("POST", "PATCH") else None,
            raise_error=False,
            follow_redirects=False,
        )
        assert response.code in (401, 403), (method, path, response.code)
        assert set(json.loads(response.body)) == SHAPE
    assert not server.broker.leases()


async def test_an_authorizer_that_says_no_is_obeyed(server, monkeypatch):
    asked = []

    def deny(self, handler, user, action, resource):
        asked.append((action, resource))
        return False

    monkeypatch.setattr(type(server.serverapp.authorizer), "is_authorized", deny)
    for method, path in PATHS:
        status, body = await server.call(method, path)
        assert status == 403
        assert set(body) == SHAPE
    assert {resource for _, resource in asked} == {"gpuslice"}


async def test_the_life_of_a_lease(server):
    status, lease = await server.call("POST", "leases", {"request": "0.5", "ttl": "1h"})
    assert (status, lease["state"], lease["holder"]["kind"]) == (201, "active", "session")
    status, pool = await server.call("GET", "pool")
    assert status == 200
    assert pool["session"]["held"]["percent"] == 50
    assert [d["leases"] for d in pool["devices"] if d["leases"]] == [[lease["id"]]]
    assert (await server.call("GET", "leases"))[1]["leases"][0]["id"] == lease["id"]
    status, lease = await server.call("PATCH", f"leases/{lease['id']}", {"request": "1"})
    assert (status, lease["request"]) == (200, "1")
    assert (await server.call("POST", "leases", {"request": "1"}))[0] == 201
    status, queued = await server.call("POST", "leases", {"request": "1"})
    assert (status, queued["state"], queued["position"]) == (202, "queued", 1)
    assert queued["estimate_s"] == pytest.approx(3600, abs=60)
    status, refused = await server.call("POST", "leases", {"request": "1", "wait": False})
    assert status == 409
    assert set(refused) == SHAPE
    status, explained = await server.call("POST", "explain", {"request": "3"})
    assert (status, explained["never"]) == (200, True)
    assert (await server.call("DELETE", f"leases/{lease['id']}"))[1]["state"] == "released"
    assert (await server.call("GET", f"leases/{queued['id']}"))[1]["state"] == "active"
    status, usage = await server.call("GET", "usage?by=user")
    assert usage["usage"][0]["user"] == server.app.user
    assert (await server.call("GET", "usage?by=colour"))[0] == 400


@pytest.mark.parametrize("raw", ["{", "[" * 100_000, '{"request": 1e999}', "null", '"x"'])
async def test_bad_bodies_get_one_clear_message(server, raw):
    for path in ("leases", "explain", "groups", "kernels"):
        status, body = await server.call("POST", path, raw=raw)
        assert status == 400, (path, body)
        assert set(body) == SHAPE
        assert "Traceback" not in body["message"]


async def test_errors_have_one_shape_also_unexpected_ones(server, monkeypatch):
    assert (await server.call("GET", "nonsense"))[0] == 404
    status, body = await server.call("DELETE", "pool")
    assert (status, body["reason"]) == (405, "method_not_allowed")

    def broken(caller):
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(server.app.api, "pool", broken)
    status, body = await server.call("GET", "pool")
    assert (status, set(body), body["reason"]) == (500, SHAPE, "internal")
    assert "secret" not in json.dumps(body)


def capability(server, kernel_id):
    return {
        "headers": {"Authorization": f"gpuslice {server.app.kernels.tokens.for_kernel(kernel_id)}"}
    }


async def test_a_kernels_token_opens_its_own_lease_alone(server, http_server_client):
    mine = await server.start_kernel()
    other = await server.start_kernel()
    token = capability(server, mine)

    async def call(method, path, body=None):
        response = await http_server_client.fetch(
            f"/a%40b/gpuslice/api/v1/{path}",
            method=method,
            body=json.dumps(body) if body is not None else None,
            raise_error=False,
            **token,
        )
        return response.code, json.loads(response.body)

    assert (await call("GET", "pool"))[0] == 200
    leases = (await call("GET", "leases"))[1]["leases"]
    assert [lease["holder"]["id"] for lease in leases] == [mine]
    theirs = server.lease(other).id
    for method, body in [("GET", None), ("PATCH", {"request": "0.25"}), ("DELETE", None)]:
        status, answer = await call(method, f"leases/{theirs}", body)
        assert (status, answer["reason"]) == (403, "not_owner")
    holder = {"kind": "kernel", "id": other}
    assert (await call("POST", "leases", {"request": "1", "holder": holder}))[0] == 403
    assert (await call("POST", "leases", {"request": "1", "holder": {"kind": "session"}}))[0] == 403
    assert (await call("POST", "groups", {"workers": 1, "kernel": other}))[0] == 403
    # Its own it may change; no XSRF token is needed for that.
    status, lease = await call("POST", "leases", {"request": "0.5"})
    assert (status, lease["holder"]["id"]) == (201, mine)
    assert (await call("DELETE", f"leases/{lease['id']}"))[0] == 200
    # Jupyter's own interface stays closed to it.
    response = await http_server_client.fetch("/a%40b/api/kernels", raise_error=False, **token)
    assert response.code == 403
    # With the kernel goes the token.
    await server.serverapp.kernel_manager.shutdown_kernel(mine, now=True)
    assert (await call("GET", "pool"))[0] == 401


async def test_the_pool_is_followed_line_by_line(server, jp_base_url, jp_http_port):
    stream = await TCPClient().connect("127.0.0.1", jp_http_port)
    token = server.serverapp.identity_provider.token
    path = f"{jp_base_url}gpuslice/api/v1/pool?follow=1&token={token}"
    await stream.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = await stream.read_until(b"\r\n\r\n")
    assert b"200 OK" in head
    assert b"application/x-ndjson" in head

    async def chunk():
        size = int(await stream.read_until(b"\r\n"), 16)
        data = await stream.read_bytes(size)
        await stream.read_until(b"\r\n")
        return json.loads(data)

    first = await asyncio.wait_for(chunk(), 20)
    assert first["session"]["held"]["percent"] == 0
    await server.call("POST", "leases", {"request": "0.5"})
    held = 0
    while held != 50:
        held = (await asyncio.wait_for(chunk(), 20))["session"]["held"]["percent"]
    listeners = len(server.app.runtime._listeners)
    stream.close()
    await until(
        lambda: len(server.app.runtime._listeners) == listeners - 1, "the stream's end is seen"
    )


async def test_streams_and_kernel_websockets_do_not_wait_for_acknowledgements(
    server, jp_ws_fetch, monkeypatch
):
    told = []
    original = IOStream.set_nodelay

    def note(self, value):
        original(self, value)
        told.append((self.socket.getsockname()[1], value))

    monkeypatch.setattr(IOStream, "set_nodelay", note)
    kernel = await server.start_kernel()
    ws = await jp_ws_fetch("api", "kernels", kernel, "channels")
    # Of the two ends of the connection, the server's.
    assert (server.serverapp.port, True) in told
    ws.close()


async def test_metrics_leave_out_what_is_unknown(server, jp_fetch):
    await server.call("POST", "leases", {"request": "0.5"})
    text = (await jp_fetch("metrics")).body.decode()
    values = {
        line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("gpuslice_")
    }
    assert values["gpuslice_queue_length"] == 0
    assert values["gpuslice_leases"] == 1
    assert "gpuslice_device_memory_bytes" in values
    assert sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("gpuslice_device_held_bytes{")
    ) == pytest.approx(server.broker.leases()[0].slices[0].memory_mib * 2**20)
    from jupyter_gpuslice.server.measure import Measurement

    server.app.runtime.latest = Measurement()
    text = (await jp_fetch("metrics")).body.decode()
    assert "gpuslice_device_used_bytes{" not in text
    assert "gpuslice_device_memory_bytes{" in text


async def test_events_follow_the_schemas(server):
    _, lease = await server.call("POST", "leases", {"request": "0.5"})
    await server.call("DELETE", f"leases/{lease['id']}")
    await until(
        lambda: (
            ("ended", lease["id"])
            in [(d["action"], d["lease"]["id"]) for n, d in server.events if n == "lease"]
        ),
        "the events come",
    )
    actions = [data["action"] for name, data in server.events if name == "lease"]
    assert actions[0] == "created"
    assert actions[-1] == "ended"
    assert any(name == "pool" for name, _ in server.events)


async def test_a_group_runs_and_its_messages_stream(server):
    kernel = await server.start_kernel()
    status, group = await server.call(
        "POST", "groups", {"workers": 2, "request": "0.25", "kernel": kernel, "lend": True}
    )
    assert (status, group["state"]) == (201, "ready"), group
    assert not any(
        model["id"] in [r["kernel"] for r in group["ranks"]]
        for model in server.serverapp.kernel_manager.list_kernels()
    )
    lines = []
    request = HTTPRequest(
        f"http://127.0.0.1:{server.serverapp.port}{server.serverapp.base_url}"
        f"gpuslice/api/v1/groups/{group['id']}/execute",
        method="POST",
        body=json.dumps({"code": "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"}),
        headers={"Authorization": f"token {server.serverapp.identity_provider.token}"},
        streaming_callback=lambda data: lines.append(data),
        request_timeout=120,
    )
    await AsyncHTTPClient().fetch(request)
    messages = [json.loads(line) for line in b"".join(lines).splitlines()]
    assert messages[-1]["type"] == "done"
    assert messages[-1]["ok"] is True
    printed = {m["rank"]: m["text"].strip() for m in messages if m["type"] == "stream"}
    slices = server.broker.get(group["lease"]).slices
    assert set(printed) == {0, 1}
    assert all(slices[rank].device in text for rank, text in printed.items())
    assert (await server.call("GET", "groups"))[1]["groups"][0]["id"] == group["id"]
    assert (await server.call("POST", f"groups/{group['id']}/reset"))[0] == 200
    # The group goes with its notebook's kernel.
    await server.serverapp.kernel_manager.shutdown_kernel(kernel, now=True)
    await until(lambda: not server.broker.leases(), "all is free")
    assert (await server.call("GET", "groups"))[1] == {"groups": []}
    assert (await server.call("GET", f"groups/{group['id']}"))[0] == 404
