"""What a server does when its pool cannot be had, or was left by another one."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading

import pytest

from jupyter_gpuslice.broker.lease import Slice
from jupyter_gpuslice.broker.ledger import Ledger
from jupyter_gpuslice.devices import NoSource, SimulatedSource
from jupyter_gpuslice.server import opening
from jupyter_gpuslice.server.opening import ledger_name

from .support import until


class TestWithoutDevices:
    @pytest.fixture
    def simulate(self):
        return ""

    @pytest.fixture(autouse=True)
    def no_devices(self, monkeypatch):
        monkeypatch.setattr(
            opening, "open_devices", lambda *_: NoSource("No NVIDIA driver was found here.")
        )

    async def test_kernels_start_as_they_would_without_us(self, server):
        _, pool = await server.call("GET", "pool")
        assert pool["devices"] == []
        assert pool["note"] == "No NVIDIA driver was found here."
        kernel = await server.start_kernel()
        assert server.lease(kernel) is None
        out = await server.run(kernel, "import os; print('CUDA_VISIBLE_DEVICES' in os.environ)")
        assert out.strip() == "False"
        status, refused = await server.call("POST", "leases", {"request": "1"})
        assert (status, refused["reason"]) == (409, "no_devices")
        assert not [data for name, data in server.events if name == "notice"]


def _locked(path):
    return Ledger.open(path)


def _damaged(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 1000)


def _truncated(path):
    Ledger.open(path).close()
    path.write_bytes(b"")


def _newer(path):
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE lease (id)")
    db.execute("PRAGMA user_version = 99")
    db.close()


def _in_the_way(path):
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.write_text("a file where a folder should be")


class TestBadLedgers:
    @pytest.fixture(
        params=[
            (_locked, "ledger_locked"),
            (_damaged, "ledger_damaged"),
            (_truncated, "ledger_damaged"),
            (_newer, "ledger_newer"),
            (_in_the_way, "ledger_read_only"),
        ],
        ids=lambda param: param[0].__name__.strip("_"),
    )
    def bad(self, request, tmp_path):
        path = tmp_path / "kept" / "ledger.sqlite"
        make, reason = request.param
        holder = make(path)
        yield path, reason
        if holder is not None:
            holder.close()

    @pytest.fixture
    def gpuslice_config(self, bad):
        return {"ledger": str(bad[0])}

    async def test_the_server_runs_and_says_why(self, server, bad, jp_fetch):
        _, reason = bad
        status, pool = await server.call("GET", "pool")
        assert (status, pool["devices"]) == (200, [])
        assert pool["note"]
        status, refused = await server.call("POST", "leases", {"request": "0.5"})
        assert (status, refused["reason"]) == (503, reason)
        assert refused["message"] == pool["note"]
        assert (await server.call("GET", "groups"))[1] == {"groups": []}
        assert (await server.call("POST", "groups", {"workers": 1}))[0] == 503
        # There are devices, and nobody granted them: a kernel must not take them all.
        kernel = await server.start_kernel()
        out = await server.run(kernel, "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))")
        *said, visible = out.strip().splitlines()
        assert visible == "''"
        assert pool["note"] in " ".join(said)
        assert (await jp_fetch("api", "status")).code == 200


async def _open_with(monkeypatch, tmp_path, source, seconds=0.3):
    monkeypatch.setattr(opening, "open_devices", source)
    monkeypatch.setattr(opening, "DISCOVERY_SECONDS", seconds)
    import logging

    return await opening.open_pool(
        tmp_path / "ledger.sqlite",
        simulate="",
        reserve_mib=None,
        grant="",
        log=logging.getLogger(__name__),
    )


def test_a_driver_that_hangs_at_the_start_is_given_up_with_words(monkeypatch, tmp_path):
    free = threading.Event()

    async def main():
        ticks = []

        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.02)

        ticker = asyncio.create_task(tick())
        with pytest.raises(opening.ApiError) as caught:
            await _open_with(monkeypatch, tmp_path, lambda *_: free.wait())
        ticker.cancel()
        assert caught.value.reason == "devices_unanswered"
        assert len(ticks) > 5  # the server went on

    asyncio.run(main())
    free.set()


def test_a_driver_that_fails_at_the_start_is_told(monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("Driver/library version mismatch")

    async def main():
        with pytest.raises(opening.ApiError) as caught:
            await _open_with(monkeypatch, tmp_path, fail)
        assert caught.value.reason == "devices_failed"
        assert "mismatch" in caught.value.message

    asyncio.run(main())


def grant(fraction: int = 2) -> str:
    device = SimulatedSource("a100-80gb").devices()[0]
    slice_ = Slice(device.uuid, device.grantable_mib // fraction, 100 // fraction, 100 // fraction)
    return json.dumps(
        {
            "lease": "abc",
            "request": "0.5",
            "isolation": "simulated",
            "devices": [device.to_dict()],
            "slices": [slice_.to_dict()],
            "nearness": [],
            "url": "http://127.0.0.1:1/hub-base/services/gpuslice/api/v1/",
        }
    )


class TestGrant:
    @pytest.fixture(autouse=True)
    def granted(self, monkeypatch):
        monkeypatch.setenv("JUPYTER_GPUSLICE_GRANT", grant())

    async def test_the_pool_is_what_was_granted(self, server):
        _, pool = await server.call("GET", "pool")
        (device,) = pool["devices"]
        assert device["compute_percent"] == 50
        assert pool["session"]["entitled"]["text"] == "0.5"
        assert (await server.call("POST", "leases", {"request": "0.25"}))[0] == 201
        assert (await server.call("POST", "leases", {"request": "0.25"}))[0] == 201
        assert (await server.call("POST", "leases", {"request": "0.25"}))[0] == 202
        status, refusal = await server.call("POST", "leases", {"request": "1"})
        assert status == 409
        assert "the hub's spawn page" in refusal["hint"]
        assert pool["hub"] == "/hub-base/services/gpuslice/"


class TestBadGrant:
    @pytest.fixture(autouse=True, params=["{", "[]", "{}", '{"slices": [], "devices": 5}'])
    def granted(self, monkeypatch, request):
        monkeypatch.setenv("JUPYTER_GPUSLICE_GRANT", request.param)

    async def test_nothing_is_granted_and_the_words_are_clear(self, server):
        _, pool = await server.call("GET", "pool")
        assert pool["devices"] == []
        assert "grant" in pool["note"]


def test_each_session_of_a_hub_has_its_own_ledger():
    one = ledger_name({"JUPYTERHUB_USER": "ada"})
    two = ledger_name({"JUPYTERHUB_USER": "ada", "JUPYTERHUB_SERVER_NAME": "gpu"})
    odd = ledger_name({"JUPYTERHUB_USER": "../../etc/passwd"})
    assert len({one, two, odd}) == 3
    assert os.sep not in odd


async def test_kernels_that_start_before_the_pool_get_their_slice_from_it(
    fresh_factory, jp_serverapp, jp_fetch, monkeypatch
):
    from jupyter_gpuslice.server import provisioner

    from .conftest import Server

    monkeypatch.setattr(provisioner, "KNOWN_SECONDS", 0.1)
    server = Server(jp_serverapp, jp_fetch)
    assert (await server.call("GET", "pool"))[1]["note"]
    assert (await server.call("POST", "leases", {"request": "0.5"}))[1]["reason"] == "starting"
    kernel = await server.start_kernel()
    show = "import os; print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    assert (await server.run(kernel, show)).strip().splitlines()[-1] == "''"
    await server.app._start_jupyter_server_extension(jp_serverapp)
    await server.app.opened()
    lease = await until(lambda: server.lease(kernel), "it asks")
    assert lease.state == "active"
    assert lease.slices[0].device in await server.run(kernel, show)


class TestShare:
    """In a container that sees more than it was started for."""

    @pytest.fixture
    def simulate(self):
        return "a100-80gb:2"

    @pytest.fixture(autouse=True, params=["0.25", "2x0.25", "10GiB", "h100:0.25", "7x0.5"])
    def share(self, monkeypatch, request):
        monkeypatch.setenv("JUPYTER_GPUSLICE_SHARE", request.param)
        return request.param

    async def test_the_pool_is_no_more_than_the_share(self, server, share):
        _, pool = await server.call("GET", "pool")
        if share == "7x0.5":
            assert pool["devices"] == []
            assert "started for 7x0.5" in pool["note"]
            return
        assert pool["session"]["entitled"]["text"] == share
        assert len(pool["devices"]) == (2 if share == "2x0.25" else 1)
        memory, percent = (10240, 100) if share == "10GiB" else (20352, 25)
        for device in pool["devices"]:
            assert device["memory_mib"] == memory
            assert device["compute_percent"] == percent
        status, refusal = await server.call("POST", "leases", {"request": "0.5"})
        assert status == 409
        assert refusal["details"]["never"]
