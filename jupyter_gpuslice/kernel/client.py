"""HTTP to the server extension, from inside a kernel, with the standard library alone.

Where the server is stands in the kernel's environment: ``JUPYTER_GPUSLICE_URL`` is an ``http``,
``https`` or ``http+unix`` (percent-encoded path of a socket) address, ``JUPYTER_GPUSLICE_TOKEN`` a
capability for this kernel's own leases and groups, and ``JUPYTER_GPUSLICE_CERT`` the file of the
certificate that an ``https`` server is pinned to.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from .errors import GpuSliceError, NotReachableError

CONNECT_S = 10.0
"""How long a connection may take, and a call on it that says nothing about its length."""
CALL_S = 60.0

_NOT_UNDER = "This kernel was not started under the GPU slice extension of Jupyter Server."
_NOT_UNDER_HINT = (
    "Install jupyter_gpuslice where your Jupyter Server runs, check `jupyter server extension "
    "list`, and restart this kernel there."
)


class Client:
    """Calls to one server. One connection is kept open; any thread may call, one at a time."""

    def __init__(self, url: str, token: str, cert: str = "") -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme not in ("http", "https", "http+unix") or not self._parts.netloc:
            raise GpuSliceError(
                f"JUPYTER_GPUSLICE_URL is no address that can be used: {url!r}.", "bad_url"
            )
        self._base = self._parts.path.rstrip("/")
        self._token = token
        self._cert = cert
        self._kept: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Client:
        """The client of this kernel; ``GpuSliceError`` (``not_managed``) if it has no server."""
        url = environ.get("JUPYTER_GPUSLICE_URL", "")
        if not url:
            raise GpuSliceError(_NOT_UNDER, "not_managed", _NOT_UNDER_HINT)
        return cls(
            url,
            environ.get("JUPYTER_GPUSLICE_TOKEN", ""),
            environ.get("JUPYTER_GPUSLICE_CERT", ""),
        )

    def get(self, path: str, **query: str) -> Any:
        return self.call("GET", path, query=query)

    def listed(self, path: str) -> list[dict[str, Any]]:
        """``GET leases`` or ``GET groups``: the entries of its answer."""
        answer = self.get(path)
        entries = answer.get(path) if isinstance(answer, dict) else None
        return [entry for entry in entries or () if isinstance(entry, dict)]

    def post(self, path: str, body: Any = None, timeout: float | None = CALL_S) -> Any:
        return self.call("POST", path, body if body is not None else {}, timeout=timeout)

    def patch(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = CALL_S,
    ) -> Any:
        """One call and its decoded JSON answer (``None`` if it has no body).

        ``GpuSliceError`` carries the server's own words.
        """
        connection, _, response = self._send(method, path, body, query, timeout)
        with _worded(connection, method, path):
            data = response.read()
        self._keep(connection, response)
        return _decoded(data, method, path)

    def stream(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """A call that answers NDJSON, as a stream of messages; close it.

        ``timeout``: seconds of silence that end it with an error; ``None`` waits for ever.
        """
        connection, sock, response = self._send(method, path, body, query, timeout)
        return Stream(self, connection, sock, response, f"{method} {path}")

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        timeout: float | None,
    ) -> tuple[http.client.HTTPConnection, socket.socket, http.client.HTTPResponse]:
        target = f"{self._base}/{'/'.join(quote(part, safe='') for part in path.split('/'))}"
        if query:
            target += f"?{urlencode(query)}"
        headers = {"Authorization": f"gpuslice {self._token}", "Accept": "application/json"}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = self._take()
        with _worded(connection, method, path):
            if connection.sock is None:
                connection.connect()
            # http.client sets TCP_NODELAY itself when it connects.
            sock = connection.sock
            sock.settimeout(timeout)
            connection.request(method, target, body=payload, headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                data = response.read()
                self._keep(connection, response)
                raise _refusal(response.status, response.reason, data)
        return connection, sock, response

    def _take(self) -> http.client.HTTPConnection:
        """The connection kept, if the server has not closed it meanwhile, else a new one.

        A call that may have reached the server is never sent twice: a cell must not run twice.
        """
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            if kept.sock is not None and not select.select([kept.sock], [], [], 0)[0]:
                return kept
            kept.close()
        scheme, netloc = self._parts.scheme, self._parts.netloc
        if scheme == "http+unix":
            return _UnixConnection(unquote(netloc))
        host, port = self._parts.hostname or "", self._parts.port
        if scheme == "https":
            context = ssl.create_default_context(cafile=self._cert or None)
            if self._cert:
                # The certificate itself is pinned: what name it was made for adds nothing.
                context.check_hostname = False
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context)
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S)

    def _keep(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        if response.will_close or not response.isclosed():
            connection.close()
            return
        with self._lock:
            if self._kept is None:
                self._kept = connection
                return
        connection.close()


class Stream:
    """The messages of an NDJSON answer, read by a thread of its own.

    A ``KeyboardInterrupt`` in the reader's own loop therefore loses no message and leaves the
    stream whole: going on with ``next`` is safe.
    """

    def __init__(
        self,
        client: Client,
        connection: http.client.HTTPConnection,
        sock: socket.socket,
        response: http.client.HTTPResponse,
        what: str,
    ) -> None:
        self._client = client
        self._connection = connection
        self._sock = sock
        self._response = response
        self._what = what
        self._messages: list[Any] = []
        self._taken = 0
        self._ended = False
        self._error: GpuSliceError | None = None
        self._closed = False
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="gpuslice-stream", daemon=True)
        self._thread.start()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        while True:
            message = self.next()
            if message is None:
                return
            yield message

    def next(self, timeout: float | None = None) -> Any:
        """The next message, ``None`` at the end; ``TimeoutError`` after ``timeout`` seconds.

        ``GpuSliceError`` if the stream broke off.
        """
        with self._arrived:
            there = self._arrived.wait_for(
                lambda: self._taken < len(self._messages) or self._ended, timeout
            )
            if not there:
                raise TimeoutError
            if self._taken < len(self._messages):
                self._taken += 1
                message, self._messages[self._taken - 1] = self._messages[self._taken - 1], None
                if self._taken == len(self._messages):
                    self._messages.clear()
                    self._taken = 0
                return message
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Stop reading; if the answer is not at its end, its connection goes too."""
        self._closed = True
        if not self._ended:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _read(self) -> None:
        error = None
        try:
            with _worded(self._connection, *self._what.split(" ", 1)):
                parts: list[bytes] = []
                while True:
                    data = self._response.read1(1 << 16)
                    if not data:
                        break
                    # A line may be as long as a large variable: it is put together once.
                    head, newline, tail = data.rpartition(b"\n")
                    if newline:
                        self._add(b"".join([*parts, head]).split(b"\n"))
                        parts = []
                    parts.append(tail)
                self._add([b"".join(parts)])
                self._client._keep(self._connection, self._response)
        except GpuSliceError as broken:
            error = None if self._closed else broken
        except ValueError:
            error = GpuSliceError("The server's answer cannot be read.", "bad_answer")
            self._connection.close()
        with self._arrived:
            self._error = error
            self._ended = True
            self._arrived.notify_all()

    def _add(self, lines: list[bytes]) -> None:
        messages = [json.loads(line) for line in lines if line.strip()]
        if messages:
            with self._arrived:
                self._messages += messages
                self._arrived.notify_all()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _worded:  # noqa: N801 (used as a statement)
    """Turns what goes wrong on a connection into words, and drops the connection.

    Also on KeyboardInterrupt: a half-read answer must not be read by the next call.
    """

    def __init__(self, connection: http.client.HTTPConnection, method: str, path: str) -> None:
        self._connection = connection
        self._what = f"{method} {path}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or isinstance(error, GpuSliceError):
            return
        self._connection.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise NotReachableError(
                "The GPU slice server's certificate is not the one this kernel was given.",
                "not_reachable",
                "Restart the kernel, so that it gets the server's present address.",
            ) from None
        if isinstance(error, socket.timeout):
            raise NotReachableError(
                f"The GPU slice server does not answer ({self._what}).",
                "timeout",
                "It may be overloaded: try again, and see the server's log if it stays so.",
            ) from None
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise NotReachableError(
                f"The GPU slice server cannot be reached ({_plain(error)}).",
                "not_reachable",
                "Is the Jupyter Server that started this kernel still running?",
            ) from None


def _plain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, (http.client.RemoteDisconnected, http.client.IncompleteRead)):
        return "it closed the connection"
    return str(error) or type(error).__name__


def _decoded(data: bytes, method: str, path: str) -> Any:
    if not data.strip():
        return None
    try:
        return json.loads(data)
    except ValueError:
        raise GpuSliceError(
            f"The server's answer to {method} {path} is no JSON.",
            "bad_answer",
            "JUPYTER_GPUSLICE_URL may point at something else than the GPU slice extension.",
        ) from None


def _refusal(status: int, phrase: str, data: bytes) -> GpuSliceError:
    """The server's own words; what there is if the answer came from somebody else."""
    try:
        body = json.loads(data)
        if not isinstance(body, dict):
            raise ValueError
    except ValueError:
        body = {}
    message = str(body.get("message") or f"The server answered {status} {phrase}.")
    hint = str(body.get("hint") or "")
    if status in (401, 403) and not hint:
        hint = "If the server was restarted since, restart this kernel too."
    details = body.get("details")
    return GpuSliceError(
        message,
        str(body.get("reason") or f"http_{status}"),
        hint,
        details if isinstance(details, dict) else None,
    )
