# ruff: noqa: ASYNC240
"""Real kernels under a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from jupyter_gpuslice.devices import Process
from jupyter_gpuslice.request import GpuRequest

from .support import until

QUARTER = {"JUPYTER_GPUSLICE_REQUEST": "0.25"}
ENVIRONMENT = (
    "import os, json; print(json.dumps({k: v for k, v in os.environ.items()"
    " if k.startswith(('CUDA', 'JUPYTER_GPUSLICE', 'JUPYTER_GPUSLICE'))}))"
)


def quarter() -> dict[str, str]:
    return {**os.environ, **QUARTER}


async def environment(server, kernel_id) -> dict[str, str]:
    return json.loads((await server.run(kernel_id, ENVIRONMENT)).strip().splitlines()[-1])


async def test_eight_quarters_at_once_and_a_ninth_gets_its_slice_before_its_next_cell(server):
    kernels = [await server.start_kernel(env=quarter()) for _ in range(8)]
    ninth = await server.start_kernel(env=quarter())
    leases = [server.lease(kernel) for kernel in kernels]
    assert {lease.state for lease in leases} == {"active"}
    assert sum(s.memory_mib for lease in leases for s in lease.slices) == sum(
        member.memory_mib for member in server.broker.pool
    )
    waiting = server.lease(ninth)
    assert (waiting.state, server.broker.position(waiting.id)) == ("queued", 1)
    env = await environment(server, ninth)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    held = await environment(server, kernels[0])
    assert held["CUDA_VISIBLE_DEVICES"] == leases[0].slices[0].device
    _, pool = await server.call("GET", "pool")
    assert pool["queue"][0]["position"] == 1

    await server.serverapp.kernel_manager.shutdown_kernel(kernels[0])
    granted = await until(
        lambda: server.lease(ninth) if server.lease(ninth) and server.lease(ninth).holds else None,
        "the ninth is served",
    )
    env = await environment(server, ninth)
    assert env["CUDA_VISIBLE_DEVICES"] == granted.slices[0].device
    assert env["JUPYTER_GPUSLICE_LEASE"] == granted.id
    actions = {data["action"] for name, data in server.events if name == "lease"}
    assert actions == {"created", "changed", "ended"}


async def test_kill_9_frees_the_slice_within_the_promise(server):
    kernel = await server.start_kernel(env=quarter())
    manager = server.manager(kernel)
    manager.stop_restarter()
    lease = server.lease(kernel)
    os.kill(server.pid(kernel), signal.SIGKILL)
    began = time.monotonic()
    await until(lambda: not server.broker.get(lease.id).live, "the lease ends", 5)
    assert time.monotonic() - began < 5
    assert server.app.kernels.get(kernel) is None
    slices = server.app._folder.path / "slices"
    await until(lambda: not list(slices.glob(f"{kernel}*")), "its slice file goes too")


async def test_a_restarted_kernel_keeps_its_lease(server):
    kernel = await server.start_kernel(env=quarter())
    lease = server.lease(kernel)
    states = []
    server.app.runtime.subscribe(lambda news: states.append(news.lease and news.lease.state))

    old = server.pid(kernel)
    os.kill(old, signal.SIGKILL)
    await until(lambda: server.pid(kernel) != old, "the restarter brings it back")
    await until(
        lambda: [p.pid for p in server.lease(kernel).processes] == [server.pid(kernel)],
        "the new process holds the lease",
    )
    assert server.lease(kernel).slices == lease.slices
    env = await environment(server, kernel)
    assert env["CUDA_VISIBLE_DEVICES"] == lease.slices[0].device

    await server.serverapp.kernel_manager.restart_kernel(kernel)
    assert server.lease(kernel).id == lease.id
    assert [p.pid for p in server.lease(kernel).processes] == [server.pid(kernel)]
    await server.serverapp.kernel_manager.restart_kernel(kernel, now=True)
    await asyncio.sleep(1.0)
    assert server.lease(kernel).id == lease.id
    assert server.lease(kernel).slices == lease.slices
    assert "released" not in states


async def test_a_kernel_that_is_never_brought_back_loses_its_lease(server):
    kernel = await server.start_kernel(env=quarter())
    lease = server.lease(kernel)
    manager = server.manager(kernel)
    # As if its restarter hung: the lease does not wait for ever.
    manager._restarter._pcallback.stop()
    os.kill(server.pid(kernel), signal.SIGKILL)
    began = time.monotonic()
    await until(lambda: not server.broker.get(lease.id).live, "the lease ends", 8)
    assert time.monotonic() - began < 6.5


async def test_children_of_a_killed_kernel_go_before_its_slice_does(server):
    kernel = await server.start_kernel(env=quarter())
    server.manager(kernel).stop_restarter()
    code = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c',"
        " 'import time; time.sleep(600)'], start_new_session=True).pid)"
    )
    child = Process.of(int((await server.run(kernel, code)).strip()))
    lease = server.lease(kernel)
    alive = []
    server.app.runtime.subscribe(
        lambda news: (
            alive.append(child.alive())
            if news.lease and news.lease.id == lease.id and not news.lease.live
            else None
        )
    )
    os.kill(server.pid(kernel), signal.SIGKILL)
    await until(lambda: alive, "the lease ends", 10)
    assert alive == [False]


async def test_the_magics_are_there_and_the_users_own_extensions_too(server, jp_environ, tmp_path):
    profile = Path(os.environ["HOME"]) / ".ipython"
    if "IPYTHONDIR" in os.environ:
        profile = Path(os.environ["IPYTHONDIR"])
    folder = profile / "profile_default"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ipython_kernel_config.py").write_text(
        "c.InteractiveShellApp.extensions = ['autoreload']\n"
    )
    env = {**quarter(), "IPYTHONDIR": str(profile)}
    kernel = await server.start_kernel(env=env)
    out = await server.run(
        kernel,
        "m = get_ipython().magics_manager.magics;"
        " print('gpu' in m['line'], 'gpu' in m['cell'], 'autoreload' in m['line'])",
    )
    assert out.strip() == "True True True"
    out = await server.run(kernel, "%gpu request 0.5")
    assert "0.25" in out  # it has one already, and says so
    assert "Traceback" not in out


def write_spec(jp_data_dir, name, **spec) -> None:
    folder = Path(jp_data_dir) / "kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(
        json.dumps({"display_name": name, "language": "python", **spec})
    )


IPYKERNEL = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


async def test_a_kernel_without_this_package_has_the_magics(server, jp_data_dir):
    # As in an environment of its own: this package cannot be imported there.
    code = textwrap.dedent(
        """
        import runpy, sys

        class Absent:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name.partition(".")[0] == "jupyter_gpuslice":
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent)
        sys.argv[0] = "ipykernel_launcher"
        runpy.run_module("ipykernel_launcher", run_name="__main__")
        """
    )
    write_spec(jp_data_dir, "bare", argv=[sys.executable, "-c", code, "-f", "{connection_file}"])
    kernel = await server.start_kernel("bare", env=quarter())
    out = await server.run(
        kernel,
        "try:\n    import jupyter_gpuslice\nexcept ImportError: print('absent')\n"
        "print('gpu' in get_ipython().magics_manager.magics['line'])",
    )
    assert out.split() == ["absent", "True"]
    assert "session" in (await server.run(kernel, "%gpu")).lower()


async def test_a_kernel_of_another_language_gets_the_same_slice(server, jp_data_dir, tmp_path):
    seen = tmp_path / "seen.json"
    script = tmp_path / "kernel.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import json, os, time
            with open({str(seen)!r} + ".part", "w") as file:
                json.dump(dict(os.environ), file)
            os.rename({str(seen)!r} + ".part", {str(seen)!r})
            time.sleep(600)
            """
        )
    )
    write_spec(
        jp_data_dir,
        "other",
        argv=[sys.executable, str(script), "{connection_file}"],
        language="other",
        metadata={"gpuslice": {"request": "0.5"}},
    )
    kernel = await server.start_kernel("other")
    await until(seen.exists, "the kernel runs")
    env = json.loads(seen.read_text())
    lease = server.lease(kernel)
    assert str(lease.request) == "0.5"
    assert env["CUDA_VISIBLE_DEVICES"] == lease.slices[0].device
    file = Path(env["JUPYTER_GPUSLICE_SLICE"])
    content = json.loads(file.read_text())
    assert content["lease"]["id"] == lease.id
    assert os.stat(env["JUPYTER_GPUSLICE_SLICE"]).st_mode & 0o777 == 0o600
    assert "PYTHONPATH" not in env or "gpuslice" not in env["PYTHONPATH"]
    # It cannot put a changed slice in place by itself.
    server.broker.resize(lease.id, GpuRequest.parse("0.25"))
    await asyncio.sleep(0.1)
    assert (await server.call("GET", f"leases/{lease.id}"))[1]["needs_restart"] is True
    before, content = content, json.loads(file.read_text())
    assert content["version"] > before["version"]
    assert content["lease"]["request"] == "0.25"
    await server.serverapp.kernel_manager.shutdown_kernel(kernel, now=True)
    assert not server.broker.leases()


class Counting(LocalProvisioner):
    """A kernelspec's own provisioner."""

    launches = 0

    async def launch_kernel(self, cmd, **kwargs):
        type(self).launches += 1
        return await super().launch_kernel(cmd, **kwargs)


class _EntryPoint:
    name, value = "counting", "tests:Counting"

    def load(self):
        return Counting


async def test_a_kernelspec_with_a_provisioner_of_its_own_is_wrapped(server, jp_data_dir):
    factory = KernelProvisionerFactory.instance()
    factory.provisioners["counting"] = _EntryPoint()
    try:
        write_spec(
            jp_data_dir,
            "own",
            argv=IPYKERNEL,
            metadata={"kernel_provisioner": {"provisioner_name": "counting"}},
        )
        before = Counting.launches
        kernel = await server.start_kernel("own", env=quarter())
        assert Counting.launches == before + 1
        assert server.lease(kernel).state == "active"
        assert server.manager(kernel).provisioner.process.pid == server.pid(kernel)
        env = await environment(server, kernel)
        assert env["CUDA_VISIBLE_DEVICES"] == server.lease(kernel).slices[0].device
    finally:
        del factory.provisioners["counting"]


async def test_requests_come_from_the_notebook_then_the_kernelspec(
    server, jp_root_dir, jp_data_dir, jp_fetch
):
    write_spec(jp_data_dir, "half", argv=IPYKERNEL, metadata={"gpuslice": {"request": "0.5"}})
    notebook = nbformat.v4.new_notebook(metadata={"gpuslice": {"request": "10GiB"}})
    (jp_root_dir / "deep").mkdir()
    nbformat.write(notebook, jp_root_dir / "deep" / "work.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), jp_root_dir / "plain.ipynb")
    (jp_root_dir / "broken.ipynb").write_text("{")

    async def session(path):
        body = {
            "path": path,
            "name": path.rpartition("/")[2],
            "type": "notebook",
            "kernel": {"name": "half"},
        }
        response = await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))
        return json.loads(response.body)["kernel"]["id"]

    for path, request in [
        ("deep/work.ipynb", "10GiB"),
        ("plain.ipynb", "0.5"),
        ("broken.ipynb", "0.5"),
        ("missing.ipynb", "0.5"),
    ]:
        kernel = await session(path)
        lease = server.lease(kernel)
        assert str(lease.request) == request, path
        _, shown = await server.call("GET", f"leases/{lease.id}")
        assert shown["notebook"] == path
        assert shown["holder"]["name"] == path.rpartition("/")[2]
        await server.serverapp.kernel_manager.shutdown_kernel(kernel, now=True)


@pytest.mark.parametrize("request_", ["nonsense", "h100:1", "3"])
async def test_a_request_that_cannot_be_met_costs_the_kernel_its_device_and_nothing_else(
    server, request_
):
    kernel = await server.start_kernel(env={**os.environ, "JUPYTER_GPUSLICE_REQUEST": request_})
    assert server.lease(kernel) is None
    assert (await environment(server, kernel))["CUDA_VISIBLE_DEVICES"] == ""
    (notice,) = [data for name, data in server.events if name == "notice"]
    assert notice["kernel"] == kernel
    assert "without a GPU" in notice["message"]
    content = json.loads((server.app._folder.path / "slices" / f"{kernel}.json").read_text())
    assert content["lease"] is None
    assert content["message"] == notice["message"]


async def test_a_restart_that_ends_a_group_is_told_and_a_shutdown_is_not(server):
    async def group_of(kernel: str) -> None:
        body = {"name": "g", "workers": 1, "request": "0", "kernel": kernel}
        status, _ = await server.call("POST", "groups", body)
        assert status == 201

    def notices() -> list[str]:
        return [data["message"] for name, data in server.events if name == "notice"]

    kernel = await server.start_kernel()
    await group_of(kernel)
    await server.serverapp.kernel_manager.shutdown_kernel(kernel)
    other = await server.start_kernel()
    await group_of(other)
    assert not notices()
    await server.manager(other).restart_kernel()
    await until(lambda: bool(notices()), "nothing was said")
    (message,) = notices()
    assert "'g' ended when its notebook's kernel was restarted" in message


async def test_auto_is_what_is_free_and_nothing_where_none_was_wanted(server):
    first = await server.start_kernel()
    assert str(server.lease(first).request) == "auto"
    assert server.lease(first).state == "active"
    none = await server.start_kernel(env={**os.environ, "JUPYTER_GPUSLICE_REQUEST": "0"})
    assert server.lease(none) is None
    assert (await environment(server, none))["CUDA_VISIBLE_DEVICES"] == ""


async def test_a_launch_that_fails_leaves_nothing(server, jp_data_dir):
    write_spec(jp_data_dir, "gone", argv=["/nonexistent/kernel", "{connection_file}"])
    with pytest.raises(Exception, match="nonexistent"):
        await server.start_kernel("gone", env=quarter())
    assert not server.broker.leases()
