from __future__ import annotations

import asyncio
import os

import pytest

from jupyter_gpuslice.broker.lease import Holder
from jupyter_gpuslice.devices import Process
from jupyter_gpuslice.server.api import ApiError, Caller, Holding, LeaseApi

from .support import make_runtime

ADA, BOB, ROOT = Caller("ada"), Caller("bob"), Caller("root", admin=True)


def resolve(caller: Caller, kind: str | None, holder_id: str | None) -> Holding:
    if kind == "kernel":
        if not caller.stands_for(holder_id):
            raise ApiError(403, "not_owner", "This kernel is not yours.")
        return Holding(Holder("kernel", holder_id, caller.user), [Process.of(os.getpid())])
    return Holding(Holder("session", caller.user, caller.user))


@pytest.fixture
def api():
    runtime = make_runtime()
    api = LeaseApi(runtime, resolve)

    async def start():
        await runtime.start()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    yield _On(loop, api)
    loop.run_until_complete(runtime.stop())
    loop.close()


class _On:
    """Calls the interface on the runtime's loop, as handlers do."""

    def __init__(self, loop, api):
        self._loop, self._api = loop, api

    def __getattr__(self, name):
        target = getattr(self._api, name)
        if not callable(target):
            return target

        async def call(*args):
            return target(*args)

        return lambda *args: self._loop.run_until_complete(call(*args))


def refused(function, *args) -> ApiError:
    with pytest.raises(ApiError) as caught:
        function(*args)
    assert caught.value.message
    assert set(caught.value.to_dict()) == {"message", "reason", "hint", "details"}
    return caught.value


def test_a_session_leases_and_gives_back(api):
    status, lease = api.create(ADA, {"request": "0.5"})
    assert status == 201
    assert lease["holder"] == {"kind": "session", "id": "ada", "user": "ada", "name": ""}
    assert [row["id"] for row in api.leases(ADA)] == [lease["id"]]
    assert api.change(ADA, lease["id"], {"request": "0.25"})["request"] == "0.25"
    assert api.change(ADA, lease["id"], {"ttl": "2h"})["expires"] is not None
    assert api.delete(ADA, lease["id"])["state"] == "released"
    assert api.leases(ADA) == []
    assert api.lease(ADA, lease["id"])["state"] == "released"


def test_what_does_not_fit_waits_or_is_refused_with_reasons(api):
    for _ in range(2):
        api.create(ADA, {"request": "1"})
    status, lease = api.create(ADA, {"request": "0.5"})
    assert (status, lease["state"], lease["position"]) == (202, "queued", 1)
    error = refused(api.create, ADA, {"request": "0.5", "wait": False})
    assert (error.status, error.reason) == (409, "insufficient_memory")
    assert "would_fit" in error.details
    assert refused(api.create, ADA, {"request": "h100:1"}).reason == "unknown_model"


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "0.5",
        {},
        {"request": "half"},
        {"request": None},
        {"request": {"fraction": 1}},
        {"request": True},
        {"request": "0"},
        {"request": "0.5", "wait": "yes"},
        {"request": "0.5", "ttl": -1},
        {"request": "0.5", "ttl": "soon"},
        {"request": "0.5", "ttl": True},
        {"request": "0.5", "ttl": 1e300},
        {"request": "0.5", "ttl": float("nan")},
        {"request": "0.5", "priority": 1.5},
        {"request": "0.5", "priority": 10**9},
        {"request": "0.5", "holder": "me"},
        {"request": "0.5", "holder": {"kind": "group", "id": "x"}},
        {"request": "0.5", "holder": {"kind": "kernel"}},
        {"request": "0.5", "holder": {"kind": "kernel", "id": 5}},
        {"request": "0.5", "user": "bob"},
    ],
)
def test_bad_bodies_change_nothing(api, body):
    assert refused(api.create, ADA, body).status == 400
    assert api.leases(ADA) == []


@pytest.mark.parametrize("call", ["lease", "delete", "change"])
def test_nobody_touches_anothers_lease(api, call):
    _, lease = api.create(ADA, {"request": "0.5"})
    extra = [{"request": "0.25"}] if call == "change" else []
    error = refused(getattr(api, call), BOB, lease["id"], *extra)
    assert (error.status, error.reason) == (403, "not_owner")
    assert "ada" not in repr(error.to_dict())
    assert api.leases(BOB) == []
    assert api.lease(ADA, lease["id"])["request"] == "0.5"
    assert api.lease(ROOT, lease["id"])["holder"]["user"] == "ada"
    assert refused(getattr(api, call), BOB, "nonsense", *extra).status == 404


def test_priority_is_for_admins(api):
    assert refused(api.create, ADA, {"request": "0.5", "priority": 1}).reason == "forbidden"
    assert api.create(ROOT, {"request": "0.5", "priority": 1})[0] == 201


def test_a_kernel_touches_its_own_alone(api):
    kernel = Caller("ada", kernel="k1")
    _, session = api.create(ADA, {"request": "0.25"})
    _, other = api.create(ADA, {"request": "0.25", "holder": {"kind": "kernel", "id": "k2"}})
    mine = {"request": "0.25", "holder": {"kind": "kernel", "id": "k1"}}
    status, lease = api.create(kernel, mine)
    assert (status, lease["state"]) == (201, "active")
    assert [row["id"] for row in api.leases(kernel)] == [lease["id"]]
    for foreign in (session, other):
        assert refused(api.delete, kernel, foreign["id"]).reason == "not_owner"
    theirs = {"request": "0.25", "holder": {"kind": "kernel", "id": "k2"}}
    assert refused(api.create, kernel, theirs).reason == "not_owner"
    assert refused(api.explain, kernel, theirs).reason == "not_owner"
    assert refused(api.create, kernel, mine).reason == "already_held"


def test_what_a_kernel_asks_for_takes_the_place_of_its_auto_lease(api):
    kernel = Caller("ada", kernel="k1")
    ref = {"kind": "kernel", "id": "k1"}
    _, auto = api.create(kernel, {"request": "auto", "holder": ref})
    assert api.create(kernel, {"request": "auto", "holder": ref})[1]["id"] == auto["id"]
    _, asked = api.create(kernel, {"request": "0.5", "holder": ref})
    assert asked["state"] == "active"
    assert [row["id"] for row in api.leases(kernel)] == [asked["id"]]


def test_a_refused_wish_leaves_the_auto_lease(api):
    kernel = Caller("ada", kernel="k1")
    ref = {"kind": "kernel", "id": "k1"}
    _, auto = api.create(kernel, {"request": "auto", "holder": ref})
    api.create(ADA, {"request": "1"})
    refused(api.create, kernel, {"request": "2", "holder": ref, "wait": False})
    assert api.lease(kernel, auto["id"])["state"] == "active"


def test_explain_counts_what_would_be_given_back(api):
    ref = {"kind": "kernel", "id": "k1"}
    api.create(ADA, {"request": "1", "holder": ref})
    api.create(ADA, {"request": "1"})
    assert api.explain(ADA, {"request": "1"})["fits"] is False
    assert api.explain(ADA, {"request": "1", "holder": ref})["fits"] is True
    assert api.explain(ADA, {"request": "3"})["never"] is True


def test_usage_by_user_group_and_day(api):
    api.create(ADA, {"request": "1"})
    api.create(BOB, {"request": "1"})
    api.create(BOB, {"request": "1"})
    assert [row["user"] for row in api.usage(ADA, "user")] == ["ada"]
    assert [row["user"] for row in api.usage(ROOT, "user")] == ["ada", "bob"]
    (row,) = api.usage(ADA, "day")
    assert set(row) == {"day", "held_s", "busy_s", "idle_s", "waited_s"}
    assert api.usage(ADA, "group")[0]["group"] == ""
    assert refused(api.usage, ADA, "colour").status == 400


def test_parking_is_refused_in_words(api):
    _, lease = api.create(ADA, {"request": "1"})
    assert refused(api.change, ADA, lease["id"], {"state": "parked"}).reason == "not_supported"
    assert refused(api.change, ADA, lease["id"], {}).status == 400


def test_without_a_broker_the_pool_says_why():
    problem = ApiError(503, "ledger_locked", "The ledger is in use.", "Stop the other one.")
    api = LeaseApi(None, resolve, problem=problem)
    pool = api.pool(ADA)
    assert (pool["devices"], pool["note"]) == ([], "The ledger is in use.")
    assert refused(api.create, ADA, {"request": "0.5"}) is problem
    assert refused(api.leases, ADA).status == 503
