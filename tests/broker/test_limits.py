"""What one user may hold, whatever is free."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpuslice.broker import Broker, Ledger, Limits, Refused, whole
from jupyter_gpuslice.broker.limits import WINDOW_SECONDS
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.request import GpuRequest

from .conftest import Clock, gpu, kernel

HOUR = 3600.0


def ask(broker: Broker, text: str, n: int = 1, user: str = "ana", **more: Any) -> Any:
    lease = broker.request(GpuRequest.parse(text), kernel(n, user), **more)
    # Its holder lives, so it does not expire for want of one.
    return broker.activate(lease.id, [Process(n, user)])


def of(concurrent: float | None = None, gpu_hours: float | None = None) -> dict[str, Any]:
    return {"limits": Limits(concurrent, gpu_hours)}


def test_a_user_holds_no_more_at_once_and_holds_nobody_up(make) -> None:
    broker = make(gpu(0), gpu(1))
    first = ask(broker, "1", 1, **of(1))
    second = ask(broker, "0.5", 2, **of(1))
    assert (first.state, second.state) == ("active", "queued")
    # A device is free, and who waits for their own limit does not keep others from it.
    assert ask(broker, "1", 3, user="ben").state == "active"
    assert "may hold 1 GPU at once" in broker.held_up(second)
    broker.release(first.id)
    assert broker.get(second.id).state == "active"
    assert broker.held_up(broker.get(second.id)) == ""


@pytest.mark.parametrize(
    ("text", "most", "fits"),
    [
        ("0.5", 0.5, True),
        ("0.25", 0.5, True),
        ("1", 0.5, False),
        ("2", 1, False),
        ("2", 2, True),
        ("2x0.5", 1, True),
        ("50GiB", 0.5, False),
        ("20GiB", 0.5, True),
        ("0.25", 0, False),
    ],
)
def test_what_is_more_than_a_limit_is_refused_at_once(
    make, text: str, most: float, fits: bool
) -> None:
    broker = make()
    if fits:
        assert ask(broker, text, **of(most)).state == "active"
        return
    with pytest.raises(Refused) as refused:
        ask(broker, text, **of(most))
    assert refused.value.reason == "over_quota"
    assert refused.value.details["never"]
    assert broker.leases() == []


def test_who_does_not_wait_is_refused_and_explain_says_the_same(make) -> None:
    broker = make()
    ask(broker, "1", 1, **of(1))
    with pytest.raises(Refused) as refused:
        ask(broker, "0.5", 2, wait=False, **of(1))
    assert refused.value.reason == "over_quota"
    explained = broker.explain(GpuRequest.parse("0.5"), user="ana", **of(1))
    assert (explained.fits, explained.reason) == (False, "over_quota")
    assert explained.message == refused.value.message
    assert broker.explain(GpuRequest.parse("0.5"), user="ben", **of(1)).fits


def test_gpu_hours_end_what_is_held_and_come_back_as_days_pass(make, clock: Clock) -> None:
    broker = make()
    lease = ask(broker, "0.5", **of(None, 2))
    assert broker.ends_at(lease) == pytest.approx(clock() + 4 * HOUR)
    clock.sleep(1 * HOUR)
    # A second lease makes them go faster, for both.
    other = ask(broker, "1", 2, **of(None, 2))
    assert broker.ends_at(lease) == pytest.approx(clock() + HOUR)
    assert broker.ends_at(other) == broker.ends_at(lease)
    broker.release(other.id)
    assert broker.ends_at(lease) == pytest.approx(clock() + 3 * HOUR)
    due = broker.tick()
    assert due == pytest.approx(clock() + 3 * HOUR)
    clock.now = due + 1
    broker.tick()
    ended = broker.get(lease.id)
    assert (ended.state, "2 GPU-hours of 7 days are used up" in ended.detail) == ("expired", True)
    assert broker.standing("ana").gpu_hours == pytest.approx(2, abs=0.01)
    with pytest.raises(Refused) as refused:
        ask(broker, "0.25", 3, **of(None, 2))
    assert refused.value.reason == "over_quota"
    assert "come back in" in refused.value.hint
    assert "You have used 2 of your 2 GPU-hours of 7 days" in refused.value.message
    # The first of them are seven days old now.
    clock.now = 1_000_000.0 + WINDOW_SECONDS + HOUR
    assert ask(broker, "0.25", 4, **of(None, 2)).state == "active"


def test_old_use_that_no_longer_counts_moves_the_end(make, clock: Clock) -> None:
    broker = make()
    before = ask(broker, "1", 1, **of(None, 10))
    clock.sleep(9 * HOUR)
    broker.release(before.id)
    clock.now = 1_000_000.0 + WINDOW_SECONDS
    lease = ask(broker, "1", 2, **of(None, 10))
    due = broker.tick()
    assert due == pytest.approx(clock() + HOUR)
    clock.now = due
    # In that hour an hour of last week has gone.
    assert broker.tick() == pytest.approx(clock() + HOUR)
    assert broker.get(lease.id).holds


def test_limits_outlive_the_broker(tmp_path, clock: Clock) -> None:
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    broker = Broker(whole([gpu(0)]), ledger, clock)
    ask(broker, "1", **of(1, 2))
    clock.sleep(HOUR)
    ledger.close()
    again = Broker(whole([gpu(0)]), Ledger.open(tmp_path / "ledger.sqlite"), clock)
    (found,) = again.leases()
    assert found.limits == Limits(1, 2)
    assert again.ends_at(found) == pytest.approx(clock() + HOUR)


@pytest.mark.parametrize(
    "wrong", [{"concurrent": -1}, {"gpu_hours": "many"}, {"concurrent": True}, {"gpu_hours": 1e12}]
)
def test_what_is_no_limit(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Limits.from_dict(wrong)


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "release", "sleep"]),
        st.sampled_from(["ana", "ben"]),
        st.sampled_from(["0.25", "0.5", "1", "2", "2x0.25", "20GiB"]),
        st.integers(0, 9),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(
    steps,
    st.sampled_from([None, 0.5, 1.0, 1.5, 3.0]),
    st.sampled_from([None, 1.0, 5.0]),
)
def test_no_user_ever_exceeds_a_limit(moves, concurrent, gpu_hours) -> None:
    clock = Clock()
    broker = Broker(whole([gpu(0), gpu(1)]), Ledger.open(None), clock)
    limits = Limits(concurrent, gpu_hours)
    for n, (move, user, text, number) in enumerate(moves):
        if move == "ask":
            try:
                ask(broker, text, n, user, limits=limits)
            except Refused as refused:
                assert refused.reason in ("over_quota", "insufficient_devices")
        elif move == "release" and broker.leases():
            leases = broker.leases()
            broker.release(leases[number % len(leases)].id)
        else:
            # As a runtime does: it looks again at the instant that the last look named.
            until = clock() + number * HOUR / 3
            while (due := broker.tick()) is not None and due <= until:
                clock.now = max(clock(), due)
            clock.now = until
            broker.tick()
        for who in ("ana", "ben"):
            standing = broker.standing(who)
            assert concurrent is None or standing.held <= concurrent + 1e-6
            assert gpu_hours is None or standing.gpu_hours <= gpu_hours + 0.01
    # Nobody waits for a device that is free and that their limits leave to them.
    for lease in broker.queue():
        assert broker.held_up(lease) or not broker.explain(lease.request).fits


def test_what_was_held_while_the_clock_was_wrong_does_not_bar_its_user_for_ever(
    make, clock: Clock
) -> None:
    """The clock was a year ahead when a lease ended, and was set right since."""
    broker = make()
    lease = ask(broker, "1", **of(gpu_hours=10))
    clock.now += 365 * 86400
    broker.release(lease.id)
    clock.now -= 365 * 86400 - 3600
    assert broker.standing("ana").gpu_hours == pytest.approx(1)
