"""The OpenAPI document says what the server does."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from openapi_spec_validator import validate

import jupyter_gpuslice.server
from jupyter_gpuslice.hub import handlers
from jupyter_gpuslice.server.routes import BASE, UnknownHandler, routes

from .support import sleeper

FILE = Path(jupyter_gpuslice.server.__file__).with_name("openapi.yaml")


@pytest.fixture(scope="module")
def document():
    return yaml.safe_load(FILE.read_text())


def test_it_is_valid(document):
    validate(document)


METHODS = ("get", "post", "patch", "delete", "put")


def told(document, server: str) -> set[tuple[str, str]]:
    """Method and path of each operation that ``server`` shall have."""
    return {
        (method, re.sub(r"\{\w+\}", "{}", path))
        for path, item in document["paths"].items()
        for method in item
        if method in METHODS
        and item[method].get("x-served-by", item.get("x-served-by", server)) == server
    }


def test_every_route_of_a_server_is_in_it_and_nothing_else(document):
    there = set()
    for pattern, handler in routes():
        if handler is UnknownHandler:
            continue
        path = pattern.removeprefix(BASE).replace(r"([A-Za-z0-9_.-]{1,128})", "{}")
        choices = re.search(r"\((\w+)\|(\w+)\)", path)
        paths = [path.replace(choices[0], word) for word in choices.groups()] if choices else [path]
        there |= {(method, one) for method in METHODS if method in vars(handler) for one in paths}
    assert told(document, "server") == there


def test_every_route_of_the_hub_is_in_it_and_nothing_else(document):
    there = set()
    for pattern, handler, _ in handlers.routes("/", None, type("Door", (), {})):
        if pattern.startswith("/api/v1"):
            path = pattern.removeprefix("/api/v1").replace(r"([A-Za-z0-9_-]{1,64})", "{}")
            there |= {(method, path) for method in METHODS if method in vars(handler.__bases__[-1])}
    assert told(document, "hub") == there


def checker(document):
    def check(method: str, path: str, status: int, body) -> None:
        responses = document["paths"][path][method.lower()]["responses"]
        response = responses.get(str(status), responses["default"])
        if "$ref" in response:
            response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
        schema = response["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(
            body
        )

    return check


async def test_answers_are_as_it_says(server, document):
    check = checker(document)

    async def call(method, path, body=None, template=None, expected=None):
        status, answer = await server.call(method, path, body)
        assert status == expected, answer
        check(method, "/" + (template or path.partition("?")[0]), status, answer)
        return answer

    kernel = await server.start_kernel()
    await call("GET", "pool", expected=200)
    holder = {"kind": "kernel", "id": kernel}
    lease = await call("POST", "leases", {"request": "1", "holder": holder}, expected=201)
    await call("POST", "leases", {"request": "2"}, expected=202)
    await call("POST", "leases", {"request": "3"}, expected=409)
    await call("POST", "leases", {"request": "?"}, expected=400)
    await call("GET", "leases", expected=200)
    await call("GET", "pool", expected=200)
    one = f"leases/{lease['id']}"
    await call("GET", one, template="leases/{lease}", expected=200)
    await call("PATCH", one, {"request": "0.5"}, "leases/{lease}", 200)
    await call("PATCH", one, {"state": "parked"}, "leases/{lease}", 409)
    await call("DELETE", one, template="leases/{lease}", expected=200)
    await call("GET", "leases/none", template="leases/{lease}", expected=404)
    await call("POST", "explain", {"request": "1"}, expected=200)
    for by in ("user", "group", "day"):
        await call("GET", f"usage?by={by}", expected=200)
    group = await call("POST", "groups", {"workers": 1, "request": "0"}, expected=201)
    await call("GET", "groups", expected=200)
    one = f"groups/{group['id']}"
    await call("GET", one, template="groups/{group}", expected=200)
    await call("POST", f"{one}/interrupt", {}, "groups/{group}/interrupt", 200)
    await call("DELETE", one, template="groups/{group}", expected=200)
    await call("POST", "kernels", {"id": "visiting-kernel"}, expected=201)
    process = sleeper()
    try:
        body = {"pid": process.pid}
        await call("PATCH", "kernels/visiting-kernel", body, "kernels/{kernel}", 200)
        one = "kernels/visiting-kernel"
        await call("DELETE", one, template="kernels/{kernel}", expected=200)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
