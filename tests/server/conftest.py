from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from tornado.httpclient import HTTPClientError

from .support import until


@pytest.fixture
def simulate():
    """Devices of the server under test; a test module may say otherwise."""
    return "a100-80gb:2"


@pytest.fixture
def gpuslice_config():
    """Further settings of ``c.GpuSlice``."""
    return {}


@pytest.fixture
def jp_server_config(simulate, gpuslice_config):
    return {
        "ServerApp": {"jpserver_extensions": {"jupyter_gpuslice": True}},
        "GpuSlice": {"simulate": simulate, **gpuslice_config},
    }


@pytest.fixture
def fresh_factory():
    """The provisioner factory is one for the process; each server gets its own here."""
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


class Server:
    """A running server with the extension, and calls to it."""

    def __init__(self, serverapp: Any, fetch: Any) -> None:
        self.serverapp = serverapp
        self.fetch = fetch
        self.app = serverapp.web_app.settings["gpuslice_app"]
        self.events: list[tuple[str, dict[str, Any]]] = []

    @property
    def broker(self):
        return self.app.runtime.broker

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Status and decoded answer, whatever the status."""
        path, _, query = path.partition("?")
        params = dict(part.split("=") for part in query.split("&") if part)
        raw = options.pop("raw", None)
        if body is not None:
            raw = json.dumps(body)
        if raw is None and method in ("POST", "PATCH"):
            raw = "{}"
        try:
            response = await self.fetch(
                *("gpuslice/api/v1/" + path).split("/"),
                method=method,
                body=raw,
                params=params,
                request_timeout=60,
                **options,
            )
        except HTTPClientError as error:
            if error.response is None:
                raise
            response = error.response
        return response.code, json.loads(response.body)

    async def start_kernel(self, name: str | None = None, **options: Any) -> str:
        return await self.serverapp.kernel_manager.start_kernel(kernel_name=name, **options)

    def manager(self, kernel_id: str) -> Any:
        return self.serverapp.kernel_manager.get_kernel(kernel_id)

    def pid(self, kernel_id: str) -> int:
        return self.manager(kernel_id).provisioner.pid

    def lease(self, kernel_id: str) -> Any:
        return self.app.kernels.lease_of(kernel_id)

    async def run(self, kernel_id: str, code: str) -> str:
        """What a cell prints (and its error's words)."""
        client = self.manager(kernel_id).client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=60)
            text: list[str] = []

            def output(message):
                content = message["content"]
                if message["msg_type"] == "stream":
                    text.append(content["text"])
                elif message["msg_type"] in ("display_data", "execute_result"):
                    text.append(content["data"]["text/plain"])
                elif message["msg_type"] == "error":
                    text.append(f"{content['ename']}: {content['evalue']}")

            await client.execute_interactive(code, output_hook=output, timeout=60)
            return "".join(text)
        finally:
            client.stop_channels()


@pytest.fixture
def server(fresh_factory, jp_serverapp, jp_fetch, jp_asyncio_loop):
    found = Server(jp_serverapp, jp_fetch)
    app = found.app

    async def note(logger, schema_id, data):
        found.events.append((schema_id.split("/")[-2], data))

    async def start():
        for name in ("lease", "pool", "group", "notice"):
            schema = f"https://jupyter-gpuslice.readthedocs.io/schemas/{name}/v1"
            jp_serverapp.event_logger.add_listener(schema_id=schema, listener=note)
        await app._start_jupyter_server_extension(jp_serverapp)
        await app.opened()

    async def stop():
        await app.stop_extension()
        pending = [task for task in asyncio.all_tasks() if "gpuslice" in repr(task.get_coro())]
        assert not pending, pending

    jp_asyncio_loop.run_until_complete(start())
    yield found
    jp_asyncio_loop.run_until_complete(stop())


__all__ = ["until"]
