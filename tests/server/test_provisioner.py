"""Every kernel is wrapped, whoever else has a say; and kernels outside the server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import textwrap

import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from jupyter_gpuslice.server.address import server_address
from jupyter_gpuslice.server.provisioner import GpuSliceProvisioner, notebook_request

from .support import until


class OtherFactory(KernelProvisionerFactory):
    """Another extension's."""

    made = 0

    def create_provisioner_instance(self, kernel_id, kernel_spec, parent):
        type(self).made += 1
        return super().create_provisioner_instance(kernel_id, kernel_spec, parent)


class Theirs(LocalProvisioner):
    pass


class _EntryPoint:
    name, value = "theirs", "tests:Theirs"

    def load(self):
        return Theirs


class TestAnotherFactory:
    @pytest.fixture
    def fresh_factory(self):
        KernelProvisionerFactory.clear_instance()
        other = OtherFactory.instance()
        other.provisioners["theirs"] = _EntryPoint()
        other.default_provisioner_name = "theirs"
        yield other
        del other.provisioners["theirs"]
        OtherFactory.clear_instance()

    async def test_is_kept_inside(self, server, caplog):
        made = OtherFactory.made
        kernel = await server.start_kernel()
        assert OtherFactory.made == made + 1
        provisioner = server.manager(kernel).provisioner
        assert isinstance(provisioner, GpuSliceProvisioner)
        assert type(provisioner.inner) is Theirs
        assert server.lease(kernel).state == "active"


class TestAsTheDefault:
    @pytest.fixture(autouse=True)
    def ours(self, monkeypatch):
        monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuslice")

    async def test_kernels_are_wrapped_once(self, server):
        kernel = await server.start_kernel()
        provisioner = server.manager(kernel).provisioner
        assert isinstance(provisioner, GpuSliceProvisioner)
        assert type(provisioner.inner) is LocalProvisioner
        assert server.lease(kernel).state == "active"


async def test_one_line_tells_of_anothers_choice(fresh_factory, caplog):
    from jupyter_gpuslice.server.provisioner import wrap_every_kernel

    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "theirs"
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            wrap_every_kernel(factory, "server", logging.getLogger("x"))
    assert len([r for r in caplog.records if "theirs" in r.getMessage()]) == 1


async def test_outside_any_session_it_is_the_inner_provisioner(monkeypatch, fresh_factory):
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuslice")
    manager = AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel()
    try:
        assert isinstance(manager.provisioner, GpuSliceProvisioner)
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        text = []
        await client.execute_interactive(
            "import os; print([k for k in os.environ if 'GPUSLICE' in k or 'CUDA' in k])",
            output_hook=lambda m: text.append(m["content"].get("text", "")),
        )
        client.stop_channels()
        assert "".join(text).strip() == "[]"
    finally:
        await manager.shutdown_kernel(now=True)


PAPERMILL = textwrap.dedent(
    """
    import asyncio, sys
    from jupyter_client.manager import AsyncKernelManager

    async def main():
        manager = AsyncKernelManager(kernel_name="python3")
        await manager.start_kernel()
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        await client.execute_interactive(
            "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True);"
            "get_ipython().run_line_magic('gpu', '')",
            output_hook=lambda m: print(m["content"].get("text", ""), end="", flush=True),
        )
        await asyncio.to_thread(sys.stdin.readline)
        client.stop_channels()
        await manager.shutdown_kernel(now=True)

    asyncio.run(main())
    """
)


async def outside(server, env):
    """A process that starts a kernel by itself, as papermill does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PAPERMILL,
        env={**env, "JUPYTER_DEFAULT_PROVISIONER_NAME": "gpuslice"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    device = (await asyncio.wait_for(process.stdout.readline(), 90)).decode().strip()
    return process, device


async def test_a_kernel_that_a_kernel_starts_takes_its_lease_from_the_session(server):
    kernel = await server.start_kernel(env={**os.environ, "JUPYTER_GPUSLICE_REQUEST": "0.25"})
    text = await server.run(
        kernel,
        "import os, json; print(json.dumps({k: v for k, v in os.environ.items()"
        " if 'GPUSLICE' in k}))",
    )
    env = {**os.environ, **json.loads(text.strip().splitlines()[-1])}
    process, device = await outside(server, env)
    leases = {lease.holder.id: lease for lease in server.broker.leases()}
    assert len(leases) == 2
    (child,) = [lease for id_, lease in leases.items() if id_ != kernel]
    assert child.state == "active"
    assert device == child.slices[0].device
    process.stdin.write(b"\n")
    await asyncio.wait_for(process.wait(), 60)
    await until(lambda: not server.broker.get(child.id).live, "its lease is free")
    assert server.lease(kernel).state == "active"


async def test_a_terminal_is_part_of_the_session(server, jp_root_dir):
    terminals = server.serverapp.web_app.settings["terminal_manager"]
    env = terminals.make_term_env()
    assert env["CUDA_VISIBLE_DEVICES"].split(",") == [
        member.device.uuid for member in server.broker.pool
    ]
    process, device = await outside(server, env)
    (lease,) = server.broker.leases()
    assert device == lease.slices[0].device
    # However it dies, the slice is free again.
    process.kill()
    await process.wait()
    await until(lambda: not server.broker.leases(), "its lease is free")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"metadata": null}',
        '{"metadata": {"gpuslice": "0.5"}}',
        '{"metadata": {"gpuslice": []}}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_odd_notebooks_say_nothing(tmp_path, text):
    path = tmp_path / "odd.ipynb"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert notebook_request(path) is None
    assert notebook_request(tmp_path) is None
    os.mkfifo(tmp_path / "pipe.ipynb")


class _App:
    sock = ""
    certfile = ""
    ip = "localhost"
    port = 8888
    base_url = "/base/"


@pytest.mark.parametrize(
    ("changes", "environ", "url"),
    [
        ({}, {}, "http://localhost:8888/base/gpuslice/api/v1"),
        ({"ip": ""}, {}, "http://127.0.0.1:8888/base/gpuslice/api/v1"),
        ({"ip": "0.0.0.0"}, {}, "http://127.0.0.1:8888/base/gpuslice/api/v1"),
        ({"ip": "::"}, {}, "http://[::1]:8888/base/gpuslice/api/v1"),
        ({"certfile": "/c.pem"}, {}, "https://localhost:8888/base/gpuslice/api/v1"),
        ({"sock": "/run/j.sock"}, {}, "http+unix://%2Frun%2Fj.sock/base/gpuslice/api/v1"),
        (
            {"base_url": "/user/ada/"},
            {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:5432/user/ada/"},
            "http://127.0.0.1:5432/user/ada/gpuslice/api/v1",
        ),
        (
            {"base_url": "/user/ada/"},
            {"JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:5432/user/ada/"},
            "http://127.0.0.1:5432/user/ada/gpuslice/api/v1",
        ),
    ],
)
def test_kernels_are_told_an_address_that_works(changes, environ, url):
    app = _App()
    vars(app).update(changes)
    found = server_address(app, environ)
    assert found["JUPYTER_GPUSLICE_URL"] == url
    assert found.get("JUPYTER_GPUSLICE_CERT") == (changes.get("certfile") or None)
