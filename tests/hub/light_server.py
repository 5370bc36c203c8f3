"""A user's server that is up at once: it answers, and shows its environment. Run as a script.

``GET …/env`` tells the environment, ``GET …/child`` starts a process that outlives the server.
"""

from __future__ import annotations

import json
import os
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer: object = {}
        if self.path.endswith("/env"):
            answer = dict(os.environ)
        elif self.path.endswith("/child"):
            answer = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", os.environ.get("LIGHT_VERSION", ""))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    try:
        ThreadingHTTPServer((url.hostname or "127.0.0.1", url.port or 0), Handler).serve_forever()
    except KeyboardInterrupt:
        pass
