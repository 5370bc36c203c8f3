"""The client against a real HTTP server."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import ssl
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from jupyter_gpuslice.kernel.client import Client
from jupyter_gpuslice.kernel.errors import GpuSliceError, NotReachableError


@pytest.fixture
def client(little: Any) -> Any:
    client = Client(little.url, "secret")
    yield client
    client.close()


def test_a_call_carries_token_and_body_and_keeps_its_connection(little: Any, client: Any) -> None:
    seen = []

    def leases(handler: Any) -> None:
        seen.append(handler.headers["Authorization"])
        handler.answer([{"id": "a"}])

    little.on("GET", "leases", leases)
    little.on("POST", "leases", lambda handler: handler.answer({"id": "b"}, 201))
    assert client.get("leases") == [{"id": "a"}]
    assert client.post("leases", {"request": "0.5"}) == {"id": "b"}
    assert seen == ["gpuslice secret"]
    assert little.asked[-1] == ("POST", "/gpuslice/api/v1/leases", {"request": "0.5"})
    assert len(little.connections) == 1


def test_paths_are_quoted(little: Any, client: Any) -> None:
    with pytest.raises(GpuSliceError, match="no such thing"):
        client.get("leases/a b?x#y")
    assert little.asked[-1][1] == "/gpuslice/api/v1/leases/a%20b%3Fx%23y"


def test_the_servers_words_are_the_error(little: Any, client: Any) -> None:
    body = {"message": "Not now.", "reason": "insufficient_memory", "hint": "Take 0.25."}
    little.on("POST", "leases", lambda handler: handler.answer(body, 409))
    with pytest.raises(GpuSliceError) as caught:
        client.post("leases", {})
    error = caught.value
    assert (error.message, error.reason, error.hint) == (
        "Not now.",
        "insufficient_memory",
        "Take 0.25.",
    )
    assert error._render_traceback_() == ["GpuSliceError: Not now.", "Take 0.25."]


def test_an_answer_of_somebody_else_is_told(little: Any, client: Any) -> None:
    def page(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "6")
        handler.end_headers()
        handler.wfile.write(b"<html>")

    little.on("GET", "pool", page)
    with pytest.raises(GpuSliceError) as caught:
        client.get("pool")
    assert caught.value.reason == "bad_answer"


def test_no_server_is_told_in_words() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(NotReachableError, match="cannot be reached"):
        Client(f"http://127.0.0.1:{port}/x", "t").get("pool")


def test_no_environment_says_what_to_do() -> None:
    with pytest.raises(GpuSliceError) as caught:
        Client.from_environment({})
    assert caught.value.reason == "not_managed"
    assert "Install jupyter_gpuslice" in caught.value.hint


@pytest.mark.parametrize("url", ["ftp://x/y", "nonsense", "http:///path"])
def test_a_bad_address_is_told(url: str) -> None:
    with pytest.raises(GpuSliceError, match="JUPYTER_GPUSLICE_URL"):
        Client(url, "t")


def test_a_slow_server_is_told(little: Any, client: Any) -> None:
    release = threading.Event()
    little.on("GET", "pool", lambda handler: (release.wait(20), handler.answer({})))
    with pytest.raises(NotReachableError, match="does not answer"):
        client.call("GET", "pool", timeout=0.2)
    release.set()


def test_a_connection_that_the_server_closed_is_made_anew(little: Any, client: Any) -> None:
    def once(handler: Any) -> None:
        handler.answer({"n": len(little.connections)})
        handler.close_connection = True

    little.on("GET", "pool", once)
    assert client.get("pool") == {"n": 1}
    time.sleep(0.2)
    assert client.get("pool") == {"n": 2}


def test_a_call_is_never_sent_twice(little: Any, client: Any) -> None:
    def drop(handler: Any) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    little.on("GET", "pool", lambda handler: handler.answer({}))
    little.on("POST", "groups/g/execute", drop)
    client.get("pool")
    with pytest.raises(NotReachableError):
        client.stream("POST", "groups/g/execute", {"code": "x"})
    assert [path for _, path, _ in little.asked].count("/gpuslice/api/v1/groups/g/execute") == 1


def test_a_stream_gives_messages_as_they_come_whatever_the_chunks(little: Any, client: Any) -> None:
    gate = threading.Event()

    def lines(handler: Any) -> None:
        handler.start_lines()
        handler.raw(b'{"n": 1}\n{"n"')
        gate.wait(20)
        handler.raw(b": 2}\n\n")
        handler.raw('{"text": "é"}'.encode())
        handler.end_lines()

    little.on("GET", "pool", lines)
    with client.stream("GET", "pool") as stream:
        assert stream.next(10) == {"n": 1}
        with pytest.raises(TimeoutError):
            stream.next(0.05)
        gate.set()
        assert list(stream) == [{"n": 2}, {"text": "é"}]
        assert stream.next() is None
    little.on("GET", "leases", lambda handler: handler.answer([]))
    assert client.get("leases") == []
    assert len(little.connections) == 1, "the stream's connection serves again"


def test_a_long_line_is_read_once_and_not_again_for_each_piece(little: Any, client: Any) -> None:
    """A line of 64 MiB in pieces: read in seconds, where joining at each piece takes minutes."""
    piece = b"x" * (1 << 16)

    def lines(handler: Any) -> None:
        handler.start_lines()
        handler.raw(b'{"n": 1}\n{"value": "')
        for _ in range(1024):
            handler.raw(piece)
        handler.raw(b'"}\n{"n": 2}\n')
        handler.end_lines()

    little.on("GET", "pool", lines)
    with client.stream("GET", "pool") as stream:
        began = time.monotonic()
        first, value, last = stream
        assert (first, last) == ({"n": 1}, {"n": 2})
        assert len(value["value"]) == 64 << 20
        assert time.monotonic() - began < 20


def test_a_stream_that_breaks_off_says_so(little: Any, client: Any) -> None:
    def lines(handler: Any) -> None:
        handler.start_lines()
        handler.line({"n": 1})
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    little.on("GET", "pool", lines)
    with client.stream("GET", "pool") as stream:
        assert stream.next(10) == {"n": 1}
        with pytest.raises(NotReachableError):
            stream.next(10)


def test_closing_a_stream_ends_it_at_once_and_the_server_hears(little: Any, client: Any) -> None:
    gone = threading.Event()

    def lines(handler: Any) -> None:
        handler.start_lines()
        handler.line({"n": 1})
        try:
            while True:
                handler.line({"more": True})
                time.sleep(0.02)
        except OSError:
            gone.set()
        handler.close_connection = True

    little.on("GET", "pool", lines)
    stream = client.stream("GET", "pool")
    assert stream.next(10) == {"n": 1}
    start = time.monotonic()
    stream.close()
    assert time.monotonic() - start < 2
    assert gone.wait(10)
    little.on("GET", "leases", lambda handler: handler.answer([]))
    assert client.get("leases") == []


def test_an_interrupt_loses_no_message(little: Any, client: Any) -> None:
    # A shell that runs the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _interrupted_stream(little, client)
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted_stream(little: Any, client: Any) -> None:
    count = 400

    def lines(handler: Any) -> None:
        handler.start_lines()
        for number in range(count):
            handler.line({"n": number})
            time.sleep(0.002)
        handler.end_lines()

    little.on("GET", "pool", lines)
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.05):
            os.kill(os.getpid(), signal.SIGINT)

    got: list[int] = []
    interrupts = 0
    with client.stream("GET", "pool") as stream:
        thread = threading.Thread(target=interrupt)
        thread.start()
        done = False
        while not done:
            try:
                while True:
                    message = stream.next()
                    if message is None:
                        done = True
                        stop.set()
                        break
                    got.append(message["n"])
            except KeyboardInterrupt:
                interrupts += 1
        try:
            thread.join()
        except KeyboardInterrupt:
            thread.join()
    assert interrupts > 3
    # An interrupt between taking a message and keeping it is the reader's own.
    assert len(got) >= count - interrupts
    assert got == sorted(got)


def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "a b.sock"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"path": "%s"}' % self.path.encode())

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.HTTPServer):
        address_family = socket.AF_UNIX

        def server_bind(self) -> None:
            self.socket.bind(str(path))

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        client = Client(f"http+unix://{quote(str(path), safe='')}/user/x/gpuslice/api/v1", "t")
        assert client.get("pool") == {"path": "/user/x/gpuslice/api/v1/pool"}
        server.shutdown()
        thread.join()


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that only signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anything")])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_file, key_file


def test_https_is_pinned_to_the_certificate(little: Any, tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path, "server")
    other, _ = _certificate(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    little.server.socket = context.wrap_socket(little.server.socket, server_side=True)
    little.on("GET", "pool", lambda handler: handler.answer({"devices": []}))
    url = little.url.replace("http://", "https://")
    assert Client(url, "t", str(cert)).get("pool") == {"devices": []}
    with pytest.raises(NotReachableError, match="certificate"):
        Client(url, "t", str(other)).get("pool")
