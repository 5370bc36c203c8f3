"""What the broker grants, queues, refuses and takes back."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuslice.broker import Broker, Holder, Ledger, Policy, PoolDevice, Refused
from jupyter_gpuslice.broker.draft import Draft
from jupyter_gpuslice.broker.explain import _each
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.request import GpuRequest

from .conftest import gpu, kernel

ask = GpuRequest.parse


def test_eight_quarters_on_two_devices_and_a_ninth_waits(make) -> None:
    broker = make()
    leases = [broker.request(ask("0.25"), kernel(n)) for n in range(8)]
    assert {lease.state for lease in leases} == {"granted"}
    ninth = broker.request(ask("0.25"), kernel(9))
    assert ninth.state == "queued"
    assert broker.position(ninth.id) == 1
    broker.release(leases[3].id)
    assert broker.get(ninth.id).state == "granted"
    assert broker.get(ninth.id).slices == leases[3].slices
    assert broker.queue() == []


def test_a_slice_is_memory_and_compute(make) -> None:
    broker = make(gpu(0, memory_mib=81920, reserve_mib=920))
    (slice_,) = broker.request(ask("0.25"), kernel()).slices
    assert (slice_.memory_mib, slice_.compute_percent, slice_.compute_cap_percent) == (
        20250,
        25,
        25,
    )
    (slice_,) = broker.request(ask("10GiB"), kernel()).slices
    assert (slice_.memory_mib, slice_.compute_percent, slice_.compute_cap_percent) == (
        10240,
        0,
        100,
    )
    (slice_,) = broker.request(ask("10GiB/50%"), kernel()).slices
    assert (slice_.memory_mib, slice_.compute_percent, slice_.compute_cap_percent) == (
        10240,
        50,
        50,
    )


def test_bursts_lift_the_cap_and_nothing_else(make) -> None:
    broker = make(policy=Policy(bursts=True))
    (slice_,) = broker.request(ask("0.25"), kernel()).slices
    assert (slice_.compute_percent, slice_.compute_cap_percent) == (25, 100)


def test_nobody_overtakes_on_the_same_devices(make) -> None:
    broker = make(gpu(0))
    half = broker.request(ask("0.5"), kernel(1))
    big = broker.request(ask("1"), kernel(2))
    small = broker.request(ask("0.25"), kernel(3))
    assert [big.state, small.state] == ["queued", "queued"]
    assert [broker.position(big.id), broker.position(small.id)] == [1, 2]
    broker.release(half.id)
    assert broker.get(big.id).state == "granted"
    assert broker.position(small.id) == 1


def test_those_who_need_other_devices_are_not_held_up(make) -> None:
    broker = make(gpu(0), gpu(1, "NVIDIA H100 80GB HBM3"))
    broker.request(ask("a100:1"), kernel(1))
    assert broker.request(ask("a100:0.5"), kernel(2)).state == "queued"
    assert broker.request(ask("h100:0.5"), kernel(3)).state == "granted"


def test_priority_goes_first_and_equals_keep_their_order(make) -> None:
    broker = make(gpu(0))
    held = broker.request(ask("1"), kernel(0))
    waiting = [broker.request(ask("1"), kernel(n), priority=p) for n, p in ((1, 0), (2, 5), (3, 5))]
    assert [lease.id for lease in broker.queue()] == [waiting[n].id for n in (1, 2, 0)]
    broker.release(held.id)
    assert broker.get(waiting[1].id).state == "granted"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3", "insufficient_devices"),
        ("81GiB", "insufficient_memory"),
        ("h100:0.5", "unknown_model"),
        ("1g.10gb", "unknown_profile"),
        ("1MiB", "too_small"),
        ("3x0.1", "insufficient_devices"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(make, text: str, reason: str) -> None:
    broker = make()
    with pytest.raises(Refused) as refused:
        broker.request(ask(text), kernel())
    assert refused.value.reason == reason
    assert refused.value.details["never"] is True
    assert refused.value.message and refused.value.hint
    for option in refused.value.details["would_fit"]:
        assert broker.explain(ask(option)).fits
    assert broker.leases() == []


def test_without_devices_everything_is_refused(make, clock) -> None:
    from jupyter_gpuslice.broker import Broker, Ledger

    broker = Broker([], Ledger.open(None), clock)
    for text in ("auto", "0.5", "1g.10gb", "10GiB"):
        with pytest.raises(Refused) as refused:
            broker.request(ask(text), kernel())
        assert refused.value.reason == "no_devices"


@pytest.mark.parametrize("text", ["0.6", "50GiB/10%", "10GiB/60%", "2x0.6", "2", "auto"])
def test_why_not_now_says_what_binds_and_what_fits(make, text: str) -> None:
    broker = make()
    for n in range(2):
        broker.request(ask("2x0.25") if text != "auto" else ask("2"), kernel(n)) if (
            text != "auto" or n == 0
        ) else None
    answer = broker.explain(ask(text))
    assert not answer.fits and not answer.never
    assert answer.position == 1
    assert answer.reason in ("insufficient_memory", "insufficient_compute", "insufficient_devices")
    assert answer.message and "position 1" in answer.hint
    for option in answer.would_fit:
        assert option == "0" or broker.explain(ask(option)).fits
    with pytest.raises(Refused) as refused:
        broker.request(ask(text), kernel(), wait=False)
    assert refused.value.reason == answer.reason


def test_would_fit_is_the_most_that_fits(make) -> None:
    broker = make(gpu(0))
    broker.request(ask("0.35"), kernel())
    assert broker.explain(ask("1")).would_fit == ("0.65", "52GiB")


def test_two_slices_lie_on_two_devices(make) -> None:
    broker = make()
    lease = broker.request(ask("2x0.5"), kernel())
    assert {s.device for s in lease.slices} == {"GPU-0", "GPU-1"}


def test_a_bundle_takes_the_nearest_devices(make) -> None:
    near = {("GPU-1", "GPU-3"): 0}
    broker = make(
        *(gpu(n) for n in range(4)),
        nearness=lambda a, b: near.get((min(a, b), max(a, b)), 4),
    )
    assert {s.device for s in broker.request(ask("2"), kernel()).slices} == {"GPU-1", "GPU-3"}


def test_a_slice_goes_where_the_least_is_left_over(make) -> None:
    broker = make()
    first = broker.request(ask("0.5"), kernel(1))
    second = broker.request(ask("0.25"), kernel(2))
    assert second.slices[0].device == first.slices[0].device
    assert broker.request(ask("1"), kernel(3)).state == "granted"


def test_a_group_starts_whole_and_spreads(make) -> None:
    broker = make()
    group = Holder("group", "g", "ana")
    lease = broker.request(ask("0.5"), group, workers=2)
    assert {lease.slices_of(0)[0].device, lease.slices_of(1)[0].device} == {"GPU-0", "GPU-1"}
    waiting = broker.request(ask("0.5"), group, workers=3)
    assert (waiting.state, waiting.slices) == ("queued", ())
    with pytest.raises(Refused) as refused:
        broker.request(ask("0.5"), group, workers=5)
    assert refused.value.details["never"]


def test_auto_takes_what_is_free_of_one_device(make) -> None:
    broker = make()
    broker.request(ask("0.25"), kernel(1))
    (slice_,) = broker.request(ask("auto"), kernel(2)).slices
    assert (slice_.device, slice_.memory_mib, slice_.compute_percent) == ("GPU-1", 81920, 100)
    (slice_,) = broker.request(ask("auto"), kernel(3)).slices
    assert (slice_.memory_mib, slice_.compute_percent) == (61440, 75)
    assert broker.request(ask("auto"), kernel(4)).state == "queued"


def test_auto_for_a_group_is_shared_evenly(make) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("auto"), Holder("group", "g", "ana"), workers=3)
    assert {s.memory_mib for s in lease.slices} == {81920 // 3}
    assert sum(s.compute_percent for s in lease.slices) <= 100


def test_an_auto_lease_gives_way_and_comes_back(make) -> None:
    broker = make(gpu(0))
    own = broker.request(ask("auto"), kernel(1))
    group = broker.request(
        ask("0.5"), Holder("group", "g", "ana"), workers=2, wait=False, instead_of=own.id
    )
    assert broker.get(own.id).state == "queued"
    late = broker.request(ask("0.5"), kernel(2))
    broker.release(group.id)
    assert broker.get(late.id).holds
    (slice_,) = broker.get(own.id).slices
    assert slice_.memory_mib == 40960


def test_giving_way_in_vain_changes_nothing(make) -> None:
    broker = make(gpu(0))
    broker.request(ask("0.5"), kernel(1))
    own = broker.request(ask("auto"), kernel(2))
    with pytest.raises(Refused):
        broker.request(ask("0.75"), kernel(3), wait=False, instead_of=own.id)
    assert broker.get(own.id) == own


def test_only_auto_gives_way(make) -> None:
    broker = make()
    lease = broker.request(ask("0.5"), kernel())
    with pytest.raises(Refused) as refused:
        broker.request(ask("0.5"), kernel(2), instead_of=lease.id)
    assert refused.value.reason == "wrong_state"


def test_resize_grows_in_place_or_not_at_all(make) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("0.25"), kernel(1))
    other = broker.request(ask("0.25"), kernel(2))
    assert broker.resize(lease.id, ask("0.75")).slices[0].memory_mib == 61440
    with pytest.raises(Refused) as refused:
        broker.resize(other.id, ask("0.5"))
    assert refused.value.reason == "insufficient_memory"
    assert broker.get(other.id) == other


def test_resize_stays_on_its_device(make) -> None:
    broker = make()
    broker.request(ask("0.5"), kernel(1))
    lease = broker.request(ask("1"), kernel(2))
    assert broker.resize(lease.id, ask("0.5")).slices[0].device == lease.slices[0].device


def test_a_shrunk_lease_lets_the_next_one_in(make) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("1"), kernel(1))
    waiting = broker.request(ask("0.5"), kernel(2))
    broker.resize(lease.id, ask("0.5"))
    assert broker.get(waiting.id).state == "granted"


def test_growing_does_not_overtake_the_queue(make) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("0.5"), kernel(1))
    broker.request(ask("0.75"), kernel(2))
    with pytest.raises(Refused) as refused:
        broker.resize(lease.id, ask("0.75"))
    assert refused.value.reason == "queue"


def test_a_waiting_lease_may_ask_for_less(make) -> None:
    broker = make(gpu(0))
    broker.request(ask("0.5"), kernel(1))
    waiting = broker.request(ask("1"), kernel(2))
    assert broker.resize(waiting.id, ask("0.5")).state == "granted"


def test_time_ends_a_grant(make, clock) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("1"), kernel(1), ttl=60)
    broker.activate(lease.id, [Process.of(os.getpid())])
    waiting = broker.request(ask("1"), kernel(2), ttl=600)
    last = broker.request(ask("1"), kernel(3))
    assert broker.estimate(waiting.id) == 60
    assert broker.estimate(last.id) == 660
    assert broker.tick() == clock() + 60
    clock.sleep(60)
    broker.tick()
    assert broker.get(lease.id).state == "expired"
    assert broker.get(waiting.id).expires == clock() + 600


def test_an_unknown_wait_is_unknown(make) -> None:
    broker = make(gpu(0))
    broker.request(ask("1"), kernel(1))
    waiting = broker.request(ask("1"), kernel(2))
    assert broker.estimate(waiting.id) is None
    assert "unknown" in broker.explain(ask("1")).hint


def test_a_grant_that_nobody_takes_up_expires(make, clock) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("1"), kernel(1))
    clock.sleep(broker.policy.activate_within)
    broker.tick()
    assert broker.get(lease.id).state == "expired"
    assert broker.free()["GPU-0"].memory_mib == 81920


def test_extend(make, clock) -> None:
    broker = make(gpu(0))
    lease = broker.request(ask("1"), kernel(1), ttl=60)
    clock.sleep(30)
    assert broker.extend(lease.id, 60).expires == clock() + 60
    with pytest.raises(Refused):
        broker.extend(lease.id, float("nan"))


def test_a_lease_that_was_lost_is_adopted_if_it_fits(make, clock) -> None:
    process = Process.of(os.getpid())
    lost = make()
    lease = lost.activate(lost.request(ask("0.75"), kernel(1)).id, [process])
    broker = make()
    assert broker.adopt(lease)
    assert not broker.adopt(lease), "it is known"
    assert not broker.adopt(lease.changed(id="other")), "the rest of the device is too small"
    assert not broker.adopt(lease.changed(id="third", slices=())), "it holds nothing"
    foreign = make(gpu(7))
    assert not foreign.adopt(lease), "the device is not here"
    assert broker.free()[lease.slices[0].device].compute_percent == 25
    assert [ended.id for ended in broker.process_gone(process)] == [lease.id]


def test_the_end_of_the_process_is_the_end_of_the_lease(make) -> None:
    broker = make(gpu(0))
    child = subprocess.Popen(["sleep", "600"])
    process = Process.of(child.pid)
    lease = broker.activate(broker.request(ask("1"), kernel(1)).id, [process])
    assert (lease.state, process.alive()) == ("active", True)
    child.kill()
    child.wait()
    assert not process.alive()
    assert [ended.id for ended in broker.process_gone(process)] == [lease.id]
    assert broker.get(lease.id).state == "released"


def test_a_group_lives_as_long_as_one_of_its_processes(make) -> None:
    broker = make()
    lease = broker.request(ask("1"), Holder("group", "g", "ana"), workers=2)
    one, two = Process(1, "a"), Process(2, "b")
    broker.activate(lease.id, [one, two])
    assert broker.process_gone(one) == []
    assert broker.get(lease.id).holds
    assert [ended.id for ended in broker.process_gone(two)] == [lease.id]


def test_a_parked_lease_gives_its_slices_back_and_waits_to_resume(make) -> None:
    broker = make(gpu(0))
    process = Process.of(os.getpid())
    lease = broker.activate(broker.request(ask("0.75"), kernel(1)).id, [process])
    other = broker.request(ask("1"), kernel(2))
    assert broker.park(lease.id).slices == ()
    assert broker.get(lease.id).state == "parked"
    assert broker.get(other.id).holds
    assert broker.resume(lease.id).state == "queued"
    assert broker.position(lease.id) == 1
    broker.release(other.id)
    assert broker.get(lease.id).state == "active"
    for change in (broker.resume, lambda id_: broker.park(broker.request(ask("0.1"), kernel()).id)):
        with pytest.raises(Refused) as refused:
            change(lease.id)
        assert refused.value.reason == "wrong_state"
    broker.park(lease.id)
    assert [ended.id for ended in broker.process_gone(process)] == [lease.id]


def test_a_lost_device_ends_its_leases_and_is_not_granted(make) -> None:
    broker = make()
    leases = [broker.request(ask("1"), kernel(n)) for n in range(2)]
    broker.device_lost("GPU-0", "The driver says GPU_IS_LOST.")
    states = {broker.get(lease.id).state for lease in leases}
    assert states == {"lost", "granted"}
    waiting = broker.request(ask("1"), kernel(3))
    assert waiting.state == "queued"
    assert broker.free()["GPU-0"].memory_mib == 0
    broker.device_back("GPU-0")
    assert broker.get(waiting.id).state == "granted"


def test_ended_leases_stay_as_they_are(make) -> None:
    broker = make()
    lease = broker.request(ask("0.5"), kernel())
    ended = broker.release(lease.id)
    assert broker.release(lease.id) == ended
    for change in (
        lambda: broker.resize(lease.id, ask("1")),
        lambda: broker.activate(lease.id, []),
    ):
        with pytest.raises(Refused) as refused:
            change()
        assert refused.value.reason == "wrong_state"
    with pytest.raises(Refused) as refused:
        broker.release("nobody's")
    assert refused.value.reason == "not_found"


def test_news_comes_in_order_and_tells_who_moved_up(make) -> None:
    broker = make(gpu(0))
    news: list[tuple[str, str, int | None]] = []
    first = broker.request(ask("1"), kernel(1))
    second = broker.request(ask("1"), kernel(2))
    third = broker.request(ask("1"), kernel(3))
    stop = broker.subscribe(
        lambda lease: news.append((lease.id, lease.state, broker.position(lease.id)))
    )
    broker.release(first.id)
    assert news == [
        (first.id, "released", None),
        (second.id, "granted", None),
        (third.id, "queued", 1),
    ]
    stop()
    broker.release(second.id)
    assert len(news) == 3


def test_a_listener_may_change_something(make) -> None:
    broker = make(gpu(0))
    seen = []

    def listen(lease) -> None:
        seen.append((lease.holder.id, lease.state))
        if lease.state == "granted":
            broker.release(lease.id)

    broker.subscribe(listen)
    broker.request(ask("1"), kernel(1))
    assert seen == [("k1", "granted"), ("k1", "released")]


def test_mig_devices_are_granted_by_profile(make) -> None:
    migs = [
        gpu(n, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9856).__class__(
            f"MIG-{n}", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "mig", 9856, profile="1g.10gb"
        )
        for n in range(2)
    ]
    broker = make(*migs)
    lease = broker.request(ask("1g.10gb"), kernel(1))
    assert lease.slices[0].device == "MIG-0"
    assert broker.request(ask("a100:1g.10gb"), kernel(2)).holds
    assert broker.request(ask("1g.10gb"), kernel(3)).state == "queued"
    with pytest.raises(Refused) as refused:
        broker.request(ask("0.5"), kernel(4))
    assert "profile" in refused.value.message


def test_what_others_wait_for_does_not_count_as_free(make) -> None:
    broker = make(gpu(0), gpu(1))
    broker.request(ask("0.5"), kernel(1))
    broker.request(ask("0.75"), kernel(2))
    broker.request(ask("2x0.25"), kernel(3))
    broker.request(ask("0.75"), kernel(4))
    answer = broker.explain(ask("0.25"))
    assert answer.reason == "queue" if not answer.fits else answer.would_fit == ()
    for option in answer.would_fit:
        assert broker.explain(ask(option)).fits


@pytest.mark.parametrize("text", ["1", "2", "0.75", "80GiB", "h100:0.5", "1g.10gb"])
@pytest.mark.parametrize("own", ["auto", "0.5", "0.25"])
def test_what_the_asker_would_give_back_counts_in_every_answer(clock, text: str, own: str) -> None:
    """In half a GPU: whatever is refused, nothing less is offered than what is held already."""
    half = [PoolDevice(gpu(0), 40960, 50)]
    broker = Broker(half, Ledger.open(None), clock, elsewhere="Ask the hub.")
    lease = broker.request(ask(own), kernel())
    answers = [broker.explain(ask(text), instead_of=lease.id).to_dict()]
    with pytest.raises(Refused) as refused:
        broker.resize(lease.id, ask(text))
    answers.append(refused.value.details)
    if own == "auto":
        with pytest.raises(Refused) as refused:
            broker.request(ask(text), kernel(), instead_of=lease.id)
        answers.append(refused.value.details)
    for answer in answers:
        assert answer["would_fit"] == ["0.5", "40GiB"]
        assert answer["never"] and answer["hint"].endswith("Ask the hub.")
    assert broker.get(lease.id) == lease


def test_what_fits_is_told_for_the_workers_that_were_asked_for(make) -> None:
    broker = make()
    answer = broker.explain(ask("1"), workers=5)
    assert answer.would_fit == ("0.3", "26GiB")
    assert "5 workers of 0.3 or 26GiB, or 2 workers as asked for." in answer.hint
    for option in answer.would_fit:
        assert broker.explain(ask(option), workers=5).fits
    many = broker.explain(ask("0.5"), workers=1024)
    assert many.would_fit == ("160MiB",) and "4 workers as asked for" in many.hint


@given(st.lists(st.integers(0, 9000), max_size=5), st.integers(1, 40))
def test_each_worker_s_memory_is_the_most_there_can_be(rooms: list[int], workers: int) -> None:
    def holds(size: int) -> bool:
        return sum(room // size for room in rooms) >= workers

    size = _each(rooms, workers)
    assert size == 0 or holds(size)
    assert not holds(size + (1024 if size >= 1024 else 1))


def test_all_waits_are_found_out_once_until_something_changes(make, clock, monkeypatch):
    """Everybody who looks at the pool asks for the place and the wait of every waiting lease."""
    broker = make(gpu(0))
    held = broker.request(ask("1"), kernel(0), ttl=600)
    waiting = [broker.request(ask("1"), kernel(n), ttl=60) for n in range(1, 201)]
    replays = []
    turns = Draft.turns
    monkeypatch.setattr(Draft, "turns", lambda self: replays.append(1) or turns(self))
    for _ in range(2):
        places = [(broker.position(x.id), broker.estimate(x.id)) for x in waiting]
        assert places[0] == (1, 600) and places[-1] == (200, 600 + 199 * 60)
    assert len(replays) == 1
    # Time passes, and nothing has to be found out anew for that.
    clock.sleep(100)
    assert (broker.estimate(waiting[0].id), broker.position(held.id)) == (500, None)
    assert len(replays) == 1
    broker.release(waiting[0].id)
    assert broker.position(waiting[1].id) == 1
    assert broker.estimate(waiting[1].id) == 500
    assert len(replays) == 2


def test_a_cordon_and_a_lost_device_change_the_waits(make, clock):
    broker = make(gpu(0))
    broker.request(ask("1"), kernel(0), ttl=600)
    waiting = broker.request(ask("1"), kernel(1))
    assert broker.estimate(waiting.id) == 600
    broker.cordon("GPU-0")
    assert broker.estimate(waiting.id) is None
    broker.uncordon("GPU-0")
    assert broker.estimate(waiting.id) == 600


@pytest.mark.parametrize(
    ("text", "fits", "words"),
    [
        ("0.5", True, "0.5 is held already."),
        ("0.25", True, "0.25 fits now in place of 0.5."),
        ("0.75", False, ""),
    ],
)
def test_what_is_held_already_does_not_wait_behind_others(make, text, fits, words):
    broker = make(gpu(0))
    mine = broker.request(ask("0.5"), kernel(1))
    broker.request(ask("1"), kernel(2))
    answer = broker.explain(ask(text), instead_of=mine.id)
    assert (answer.fits, words in answer.message) == (fits, True), answer
    assert "0" not in answer.would_fit
    # What it says is what happens.
    if fits and text != "0.5":
        assert str(broker.resize(mine.id, ask(text)).request) == text
    elif not fits:
        with pytest.raises(Refused):
            broker.resize(mine.id, ask(text))


def test_nothing_is_no_offer(make):
    broker = make(gpu(0))
    broker.request(ask("1"), kernel(1))
    answer = broker.explain(ask("0.5"))
    assert (answer.would_fit, answer.to_dict()["would_fit"]) == ((), [])
    assert "Nothing would fit now." in answer.hint
