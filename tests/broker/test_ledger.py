"""The ledger on disk: what survives, and what each kind of bad file says."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpuslice.broker import Broker, Ledger, LedgerError, whole
from jupyter_gpuslice.broker.ledger import VERSION, backup
from jupyter_gpuslice.devices.process import Process
from jupyter_gpuslice.request import GpuRequest

from .conftest import gpu, kernel

ask = GpuRequest.parse


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Ledger]]:
    """Opens ledgers, and closes them after the test."""
    ledgers: list[Ledger] = []

    def opened(path: Path) -> Ledger:
        ledgers.append(Ledger.open(path))
        return ledgers[-1]

    yield opened
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "ledger.sqlite3"


def test_what_was_granted_is_there_after_a_restart(path: Path, clock, opened) -> None:
    ledger = opened(path)
    broker = Broker(whole([gpu(0)]), ledger, clock)
    held = broker.request(ask("0.5"), kernel(1), ttl=60)
    held = broker.activate(held.id, [Process.of(os.getpid())])
    waiting = [broker.request(ask("1"), kernel(n)) for n in (2, 3)]
    ended = broker.release(broker.request(ask("0.25"), kernel(4), priority=1).id)
    ledger.close()

    again = Broker(whole([gpu(0)]), opened(path), clock)
    assert again.get(held.id) == held
    assert [lease.id for lease in again.queue()] == [lease.id for lease in waiting]
    assert again.get(ended.id) == ended
    assert again.free() == broker.free()


def test_a_lease_on_a_device_that_is_gone_is_lost(path: Path, clock, opened) -> None:
    ledger = opened(path)
    lease = Broker(whole([gpu(0)]), ledger, clock).request(ask("1"), kernel())
    ledger.close()
    again = Broker(whole([gpu(1)]), opened(path), clock)
    assert again.get(lease.id).state == "lost"
    assert "GPU-0" in again.get(lease.id).detail


def test_only_its_owner_can_read_it(path: Path, opened) -> None:
    opened(path)
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_broker_is_refused_and_told_who(path: Path, opened) -> None:
    ledger = opened(path)
    with pytest.raises(LedgerError) as refused:
        opened(path)
    assert refused.value.reason == "ledger_locked"
    assert str(os.getpid()) in refused.value.message
    ledger.close()
    opened(path).close()


def test_the_lock_ends_with_its_process(path: Path, opened) -> None:
    code = f"""
        import sys, time
        from jupyter_gpuslice.broker import Ledger
        ledger = Ledger.open({str(path)!r})
        print("open", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            with pytest.raises(LedgerError) as refused:
                opened(path)
            assert str(child.pid) in refused.value.message
        finally:
            child.kill()
    opened(path).close()


@pytest.mark.parametrize("cut", [0, 10, 500, 5000])
def test_a_truncated_file_is_damaged_and_left_alone(path: Path, clock, cut: int, opened) -> None:
    ledger = opened(path)
    broker = Broker(whole([gpu(0)]), ledger, clock)
    for n in range(4):
        broker.request(ask("0.25"), kernel(n))
    ledger.close()
    with open(path, "r+b") as file:
        file.truncate(cut)
    with pytest.raises(LedgerError) as refused:
        opened(path)
    assert refused.value.reason == "ledger_damaged"
    assert refused.value.hint
    assert path.stat().st_size == cut


def test_garbage_is_damaged(path: Path, opened) -> None:
    path.parent.mkdir()
    path.write_bytes(os.urandom(8192))
    with pytest.raises(LedgerError) as refused:
        opened(path)
    assert refused.value.reason == "ledger_damaged"


def test_a_newer_file_is_left_alone(path: Path, opened) -> None:
    opened(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError) as refused:
        opened(path)
    assert refused.value.reason == "ledger_newer"
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written(tmp_path: Path, opened) -> None:
    # A folder in the way fails for root as well, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "ledger.sqlite3", Path("/proc/ledger.sqlite3")):
        with pytest.raises(LedgerError) as refused:
            opened(path)
        assert refused.value.reason == "ledger_read_only"
        assert str(path) in refused.value.message


def test_a_failed_write_changes_nothing(path: Path, clock, monkeypatch, opened) -> None:
    ledger = opened(path)
    broker = Broker(whole([gpu(0)]), ledger, clock)
    held = broker.request(ask("0.5"), kernel(1))
    news = []
    broker.subscribe(news.append)
    ledger._db.execute("PRAGMA query_only = ON")
    for change in (
        lambda: broker.request(ask("0.5"), kernel(2)),
        lambda: broker.release(held.id),
        lambda: broker.resize(held.id, ask("0.25")),
    ):
        with pytest.raises(LedgerError) as refused:
            change()
        assert refused.value.reason == "ledger_failed"
    assert news == []
    assert broker.leases() == [held]
    ledger._db.execute("PRAGMA query_only = OFF")
    assert broker.request(ask("0.5"), kernel(2)).state == "granted"


def test_a_device_that_fails_while_nothing_can_be_written_is_lost_at_the_next_word(
    path: Path, clock, opened
) -> None:
    ledger = opened(path)
    broker = Broker(whole([gpu(0), gpu(1)]), ledger, clock)
    held = broker.request(ask("1"), kernel(1))
    (uuid,) = {slice_.device for slice_ in held.slices}
    ledger._db.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerError) as refused:
        broker.device_lost(uuid, "gone")
    assert "cannot be written" in refused.value.message
    assert not broker.lost and broker.get(held.id).holds
    ledger._db.execute("PRAGMA query_only = OFF")
    assert [lease.id for lease in broker.device_lost(uuid, "gone")] == [held.id]
    waits = broker.request(ask("2"), kernel(2))
    ledger._db.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerError):
        broker.device_back(uuid)
    assert broker.lost
    ledger._db.execute("PRAGMA query_only = OFF")
    broker.device_back(uuid)
    assert broker.get(waits.id).holds


@pytest.mark.parametrize("body", ["{", "{}", "[]", "null", '{"id": 5, "request": "x"}'])
def test_a_lease_that_cannot_be_read_is_damage_and_told(path: Path, clock, opened, body) -> None:
    ledger = opened(path)
    held = Broker(whole([gpu(0)]), ledger, clock).request(ask("1"), kernel(1))
    ledger._db.execute("UPDATE lease SET body = ? WHERE id = ?", (body, held.id))
    ledger.close()
    # When it is opened already: a hub's service is ready for that then, and not later.
    with pytest.raises(LedgerError) as refused:
        opened(path)
    assert refused.value.reason == "ledger_damaged"
    assert "move the file away" in refused.value.hint


def test_spans_tell_what_was_held_waited_and_busy(clock) -> None:
    ledger = Ledger.open(None)
    broker = Broker(whole([gpu(0)]), ledger, clock)
    start = clock()
    first = broker.request(ask("0.5"), kernel(1))
    waits = broker.request(ask("1"), kernel(2, "ben"))
    clock.sleep(100)
    ledger.add_busy({first.id: 30.0})
    broker.resize(first.id, ask("0.25"))
    clock.sleep(100)
    broker.release(first.id)
    clock.sleep(100)
    spans = list(ledger.spans(start, clock()))
    told = [
        (s.user, s.kind, s.devices, s.start - start, s.stop and s.stop - start, s.busy_s)
        for s in spans
    ]
    assert told == [
        ("ana", "held", 0.5, 0, 100, 30),
        ("ben", "waited", 1, 0, 200, 0),
        ("ana", "held", 0.25, 100, 200, 0),
        ("ben", "held", 1, 200, None, 0),
    ]
    assert next(iter(ledger.spans(start + 250, clock()))).lease == waits.id


def test_an_older_ledger_is_brought_up_to_date(tmp_path):
    file = tmp_path / "ledger.sqlite"
    made = Ledger.open(file)
    broker = Broker(whole([gpu(0)]), made, lambda: 1000.0)
    lease = broker.request(GpuRequest.parse("0.5"), kernel())
    made.close()
    db = sqlite3.connect(file)
    db.executescript("DROP TABLE cordon; DROP INDEX span_user; PRAGMA user_version = 1;")
    db.close()
    ledger = Ledger.open(file)
    assert [found.id for found in ledger.live()] == [lease.id]
    assert ledger.cordoned() == {}
    ledger.set_cordoned({"GPU-0": "new fans"})
    ledger.close()
    assert Ledger.open(file).cordoned() == {"GPU-0": "new fans"}


def test_a_backup_of_a_ledger_in_use_is_a_ledger(tmp_path):
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    broker = Broker(whole([gpu(0)]), ledger, lambda: 1000.0)
    lease = broker.request(GpuRequest.parse("0.5"), kernel())
    broker.cordon("GPU-0", "new fans")
    backup(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
    broker.request(GpuRequest.parse("0.25"), kernel(2))
    assert [path.name for path in sorted(tmp_path.glob("copy*"))] == ["copy.sqlite"]
    assert (tmp_path / "copy.sqlite").stat().st_mode & 0o777 == 0o600
    copy = Ledger.open(tmp_path / "copy.sqlite")
    assert [found.id for found in copy.live()] == [lease.id]
    assert copy.cordoned() == {"GPU-0": "new fans"}


@pytest.mark.parametrize("source", ["none.sqlite", "folder", "text"])
def test_what_is_no_ledger_is_not_backed_up(tmp_path, source):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("something else")
    with pytest.raises(LedgerError):
        backup(tmp_path / source, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


def test_a_backup_never_writes_over_a_file(tmp_path):
    Ledger.open(tmp_path / "ledger.sqlite").close()
    (tmp_path / "copy.sqlite").write_text("precious")
    with pytest.raises(LedgerError, match="File exists"):
        backup(tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite")
    assert (tmp_path / "copy.sqlite").read_text() == "precious"
