"""The demo's proxy: configurable-http-proxy for Python, with answers passed on as they come.

The package (0.4) reads an answer to its end before it passes it on, within 20 seconds, for at most
ten at a time. A server that waits in the queue tells its position in an answer without an end, so
here each piece goes on at once.
"""

from __future__ import annotations

from configurable_http_proxy import configproxy
from configurable_http_proxy.cli import main as run
from configurable_http_proxy.handlers import ProxyHandler
from tornado.httpclient import AsyncHTTPClient
from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError

# Of one connection, or not true any more once the answer has been decoded.
NOT_PASSED_ON = frozenset(
    ("content-length", "transfer-encoding", "content-encoding", "connection", "keep-alive")
)
MOST_CONNECTIONS = 1000
MOST_BYTES = 1 << 33


class StreamingProxyHandler(ProxyHandler):  # type: ignore[misc]
    """Passes an answer on piece by piece."""

    async def call_proxy(self, path: str | None = None) -> None:
        url = await self.get_target_url(path)
        if url is None:
            return
        request = self._get_proxy_request(url)
        request.request_timeout = 0
        head: list[str] = []

        def take_line(line: str) -> None:
            if line.startswith("HTTP/"):
                # The lines of a "100 Continue" may come before those of the answer itself.
                head.clear()
                self.set_status(int(line.split()[1]))
            elif line.strip():
                head.append(line)

        async def take(piece: bytes) -> None:
            if not self._headers_written:
                self._take_headers(HTTPHeaders.parse("".join(head)))
            self.write(piece)
            # Raises when the browser is gone, which ends the request to the target as well.
            await self.flush()

        request.header_callback = take_line
        request.streaming_callback = take
        try:
            response = await AsyncHTTPClient().fetch(request, raise_error=False)
        except StreamClosedError:
            return
        except Exception as error:
            if not self._headers_written:
                await self.handle_proxy_error(503, error)
            return
        if response.code == 599:
            if not self._headers_written:
                await self.handle_proxy_error(503, response.error)
            return
        if not self._headers_written:
            self.set_status(response.code)
            self._take_headers(response.headers)
        self.finish()

    def _take_headers(self, headers: HTTPHeaders) -> None:
        ours = {name.lower() for name, _ in self._headers.get_all()}
        for name, value in headers.get_all():
            if name.lower() in NOT_PASSED_ON:
                continue
            if name.lower() in ours:
                self.set_header(name, value)
            else:
                self.add_header(name, value)


def main() -> None:
    """Run the proxy as the package's own command does, with its arguments."""
    AsyncHTTPClient.configure(None, max_clients=MOST_CONNECTIONS, max_body_size=MOST_BYTES)
    configproxy.ProxyHandler = StreamingProxyHandler
    run()


if __name__ == "__main__":
    main()
