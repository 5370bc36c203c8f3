"""The demo's proxy passes on answers without an end, and big ones."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from jupyter_gpuslice.demo.hub import free_ports

BIG = 30 << 20


class Endless(RequestHandler):
    """Says something at once, the rest when the test lets it."""

    go_on = asyncio.Event()
    closed = asyncio.Event()

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Twice", "one")
        self.add_header("X-Twice", "two")
        self.write("data: position 3\n\n")
        await self.flush()
        while not self.go_on.is_set() and not self.closed.is_set():
            await asyncio.sleep(0.2)
            self.write(":keepalive\n\n")
            await self.flush()
        self.write("data: granted\n\n")

    def on_connection_close(self) -> None:
        self.closed.set()


class Big(RequestHandler):
    def get(self) -> None:
        self.write(b"x" * BIG)


class Empty(RequestHandler):
    def get(self) -> None:
        self.set_status(304)

    def post(self) -> None:
        self.set_status(201)
        self.write(self.request.body)


@asynccontextmanager
async def proxied(tmp_path):
    sock, port = bind_unused_port()
    server = HTTPServer(Application([("/endless", Endless), ("/big", Big), ("/empty", Empty)]))
    server.add_socket(sock)
    Endless.go_on, Endless.closed = asyncio.Event(), asyncio.Event()
    front, api = free_ports(2)
    argv = [sys.executable, "-m", "jupyter_gpuslice.demo.proxy", "--ip", "127.0.0.1"]
    argv += ["--port", str(front), "--api-ip", "127.0.0.1", "--api-port", str(api)]
    env = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": "secret"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)  # noqa: ASYNC220
    route = HTTPRequest(
        f"http://127.0.0.1:{api}/api/routes/",
        method="POST",
        headers={"Authorization": "token secret"},
        body=json.dumps({"target": f"http://127.0.0.1:{port}"}),
    )
    client = AsyncHTTPClient(force_instance=True, defaults={"request_timeout": 60})
    client.max_body_size = 2 * BIG
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                await client.fetch(route)
                break
            except (OSError, HTTPClientError):
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{front}", client
    finally:
        client.close()
        process.terminate()
        process.wait()
        server.stop()


async def test_each_piece_comes_when_it_is_sent(tmp_path) -> None:
    async with proxied(tmp_path) as (url, client):
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        answer = asyncio.ensure_future(
            client.fetch(f"{url}/endless", streaming_callback=pieces.put_nowait, request_timeout=60)
        )
        assert (await asyncio.wait_for(pieces.get(), 30)).startswith(b"data: position 3\n\n")
        assert not answer.done()
        Endless.go_on.set()
        text = b""
        while not text.endswith(b"data: granted\n\n"):
            text += await asyncio.wait_for(pieces.get(), 30)
        response = await answer
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers.get_list("X-Twice") == ["one", "two"]


async def test_a_browser_that_leaves_ends_the_request_behind_it(tmp_path) -> None:
    async with proxied(tmp_path) as (url, _):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"position 3")
        writer.close()
        await asyncio.wait_for(Endless.closed.wait(), 30)


async def test_twelve_endless_answers_leave_room_for_others(tmp_path) -> None:
    async with proxied(tmp_path) as (url, client):
        crowd = []
        for _ in range(12):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"position 3")
            crowd.append(writer)
        response = await client.fetch(f"{url}/empty", method="POST", body=b"abc")
        assert (response.code, response.body) == (201, b"abc")
        for writer in crowd:
            writer.close()


async def test_big_empty_and_missing_answers(tmp_path) -> None:
    async with proxied(tmp_path) as (url, client):
        size = 0

        def count(piece: bytes) -> None:
            nonlocal size
            size += len(piece)

        await client.fetch(f"{url}/big", streaming_callback=count)
        assert size == BIG
        response = await client.fetch(f"{url}/empty", raise_error=False)
        assert (response.code, response.body) == (304, b"")
        response = await client.fetch(f"{url}/nowhere", raise_error=False)
        assert response.code == 404
