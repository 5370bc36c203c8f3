"""A person at a browser, as far as a script can be one: pages, forms, cookies, websocket.

Nothing here knows the demo's internals or holds a token: a visitor gets at a server by logging in,
as everybody does. Every wait ends by a deadline with a message that says what was waited for.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import websocket

from .hub import DemoError

REQUEST_SECONDS = 30


# ---- forms ---------------------------------------------------------------------------------------


@dataclass
class Form:
    """One HTML form: where it goes, what it would send untouched, and what could be chosen.

    `choices` maps a radio group's or a select's name to the values that are offered.
    """

    action: str = ""
    values: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)


class _FormParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._inside = False
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("action", "")))
            self._inside = True
        elif self._inside and tag == "select":
            self._select = given.get("name", "")
        elif self._inside and tag == "option" and self._select:
            self._offer(self._select, given, "selected")
        elif self._inside and tag in ("input", "textarea") and given.get("name"):
            kind = given.get("type", "text")
            if kind in ("radio", "checkbox"):
                self._offer(given["name"], given, "checked")
            elif kind not in ("submit", "button", "image", "reset", "file"):
                self.forms[-1].values[given["name"]] = given.get("value", "")

    def _offer(self, name: str, given: dict[str, str], chosen: str) -> None:
        form = self.forms[-1]
        value = given.get("value", "on")
        if "disabled" in given:
            return
        offered = form.choices.setdefault(name, [])
        offered.append(value)
        # a select without a chosen option sends its first one
        if chosen in given or (chosen == "selected" and len(offered) == 1):
            form.values[name] = value

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
        elif tag == "select":
            self._select = ""


def forms_of(html: str) -> list[Form]:
    """The forms of a page, in order."""
    parser = _FormParser()
    parser.feed(html)
    return parser.forms


# ---- pages and REST ------------------------------------------------------------------------------


class Visitor:
    """Somebody with a browser at a hub. `hub` is its address, with a slash at the end."""

    def __init__(self, hub: str, name: str) -> None:
        self.hub = hub
        self.name = name
        self.home = urljoin(hub, f"user/{name}/")
        self._session = requests.Session()
        # only this hub is spoken to: a proxy that the environment names has no part in it
        self._session.trust_env = False

    def close(self) -> None:
        self._session.close()

    def get(self, path: str) -> requests.Response:
        """GET a page or a resource; DemoError for any answer but success."""
        return self._ask("GET", self._url(path))

    def json(self, path: str) -> Any:
        """GET and decode JSON."""
        answer = self.get(path)
        try:
            return answer.json()
        except ValueError:
            raise DemoError(f"{answer.url} did not answer with JSON.") from None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A REST call as a page's script makes it: cookies, and the XSRF token in a header."""
        url = self._url(path)
        headers = {"X-XSRFToken": self.xsrf(url), "Referer": self._url("hub/home")}
        answer = self._ask(method, url, json=body, headers=headers)
        return answer.json() if answer.content else None

    def submit(self, page: requests.Response, form: Form) -> requests.Response:
        """Send a form of a page that was read."""
        url = urljoin(page.url, form.action)
        return self._ask("POST", url, data=form.values, headers={"Referer": page.url})

    def log_in(self, password: str) -> None:
        """Through the login page's form. DemoError if the hub does not let us in."""
        page = self.get("hub/login")
        form = next((f for f in forms_of(page.text) if "password" in f.values), None)
        if form is None:
            raise DemoError(f"{page.url} has no login form.")
        form.values.update(username=self.name, password=password)
        landed = self.submit(page, form)
        if urlsplit(landed.url).path.endswith("/login"):
            raise DemoError(f"The hub refused the login of {self.name}.")

    def progress(self, seconds: float) -> Iterator[dict[str, Any]]:
        """The events of this visitor's server as it starts, to the last. DemoError on failure."""
        deadline = time.monotonic() + seconds
        path = f"hub/api/users/{self.name}/server/progress"
        url = self._url(path)
        with self._ask(
            "GET",
            url,
            params={"_xsrf": self.xsrf(url)},
            headers={"Accept": "text/event-stream", "Referer": self._url("hub/home")},
            stream=True,
            timeout=seconds,
        ) as answer:
            for line in lines_of(answer):
                if time.monotonic() > deadline:
                    raise DemoError(f"The server was not ready within {seconds:.0f} s.")
                if not line.startswith("data:"):
                    continue
                event = json.loads(line.removeprefix("data:"))
                if event.get("failed"):
                    raise DemoError(f"The server did not start: {event.get('message')}")
                yield event
                if event.get("ready"):
                    return
        raise DemoError("The hub ended its report before the server was ready.")

    def xsrf(self, url: str) -> str:
        """The XSRF token that goes with `url`: hub and servers have one each, told by path."""
        path = urlsplit(url).path
        tokens = [
            (len(cookie.path), cookie.value or "")
            for cookie in self._session.cookies
            if cookie.name == "_xsrf" and path.startswith(cookie.path)
        ]
        return max(tokens)[1] if tokens else ""

    def kernel(self, name: str = "python3") -> Kernel:
        """Start a kernel on this visitor's server and connect to it."""
        model = self.call("POST", f"user/{self.name}/api/kernels", {"name": name})
        return Kernel(self, model["id"])

    def connect(self, path: str) -> websocket.WebSocket:
        """A websocket with this visitor's cookies."""
        url = self._url(path)
        request = self._session.prepare_request(requests.Request("GET", url))
        parts = urlsplit(self.hub)
        try:
            return websocket.create_connection(
                "ws" + url.removeprefix("http"),
                timeout=REQUEST_SECONDS,
                cookie=request.headers.get("Cookie", ""),
                origin=f"{parts.scheme}://{parts.netloc}",
                http_no_proxy=[parts.hostname],
            )
        except (websocket.WebSocketException, OSError) as error:
            raise DemoError(f"No connection to {url.partition('?')[0]}: {error}") from error

    def _url(self, path: str) -> str:
        return urljoin(self.hub, path)

    def _ask(self, method: str, url: str, **how: Any) -> requests.Response:
        """One request and its answer; DemoError for none, or any but success."""
        try:
            answer = self._session.request(method, url, **{"timeout": REQUEST_SECONDS, **how})
        except requests.RequestException as error:
            where = url.partition("?")[0]
            raise DemoError(f"{method} {where} got no answer: {type(error).__name__}.") from error
        return self._checked(answer)

    @staticmethod
    def _checked(answer: requests.Response) -> requests.Response:
        if answer.ok:
            return answer
        words = ""
        if answer.headers.get("Content-Type", "").startswith("application/json"):
            words = f": {answer.json().get('message', '')}"
        # without the query, where tokens may stand
        where = answer.url.partition("?")[0]
        raise DemoError(f"{answer.request.method} {where} answered {answer.status_code}{words}")


def lines_of(answer: requests.Response) -> Iterator[str]:
    """The lines of an answer as they come; DemoError when it breaks off."""
    try:
        yield from answer.iter_lines(decode_unicode=True)
    except requests.RequestException as error:
        raise DemoError(f"The answer broke off: {type(error).__name__}.") from error


# ---- kernels -------------------------------------------------------------------------------------


@dataclass
class CellResult:
    """What a cell left behind: everything it wrote, as text, and its error if it had one."""

    text: str
    error: str = ""


class Kernel:
    """A kernel of the visitor's server, over the server's websocket."""

    def __init__(self, visitor: Visitor, kernel_id: str) -> None:
        self.id = kernel_id
        self._visitor = visitor
        self._session = uuid.uuid4().hex
        self._socket = visitor.connect(
            f"user/{visitor.name}/api/kernels/{kernel_id}/channels?session_id={self._session}"
        )

    def close(self) -> None:
        self._socket.close()

    def run(
        self, code: str, seconds: float, on_text: Callable[[str], None] | None = None
    ) -> CellResult:
        """Run a cell to its end. DemoError when it is not over within `seconds`.

        on_text is called with every piece of text as it comes.
        """
        sent = self._send(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": True,
            },
        )
        deadline = time.monotonic() + seconds
        result = CellResult("")
        replied = idle = False
        while not (replied and idle):
            message = self._receive(deadline, code)
            if message is None or message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_reply":
                replied = True
                if content["status"] != "ok" and not result.error:
                    result.error = f"{content.get('ename')}: {content.get('evalue')}"
            elif kind == "status":
                idle = content["execution_state"] == "idle"
            elif kind == "error":
                result.error = f"{content['ename']}: {content['evalue']}"
            else:
                text = _text_of(kind, content)
                result.text += text
                if text and on_text is not None:
                    on_text(text)
        return result

    def _send(self, kind: str, content: dict[str, Any]) -> str:
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": kind,
            "username": self._visitor.name,
            "session": self._session,
            "date": datetime.now(timezone.utc).isoformat(),
            "version": "5.3",
        }
        self._socket.send(
            json.dumps(
                {
                    "header": header,
                    "parent_header": {},
                    "metadata": {},
                    "content": content,
                    "channel": "shell",
                    "buffers": [],
                }
            )
        )
        return msg_id

    def _receive(self, deadline: float, code: str) -> dict[str, Any] | None:
        first = code.strip().splitlines()[0]
        left = deadline - time.monotonic()
        if left <= 0:
            raise DemoError(f"The cell {first!r} was not over in time.")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv()
        except websocket.WebSocketTimeoutException:
            raise DemoError(f"The cell {first!r} was not over in time.") from None
        except websocket.WebSocketException as error:
            raise DemoError(f"The kernel's connection broke during {first!r}: {error}") from error
        # messages with buffers come as bytes (widgets' state): no text is in them
        return None if isinstance(data, bytes) or not data else json.loads(data)


def _text_of(kind: str, content: dict[str, Any]) -> str:
    if kind == "stream":
        return str(content["text"])
    if kind in ("display_data", "execute_result", "update_display_data"):
        return str(content["data"].get("text/plain", "")) + "\n"
    return ""
