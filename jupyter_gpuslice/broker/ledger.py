"""The durable record of what was granted: SQLite in WAL mode, one process at a time.

A change is on disk before anybody hears of it, so a broker that dies at any point finds on its
return exactly what it had promised. The lock is a file of its own (``flock``), since SQLite's
locks end with a transaction.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from ..devices.process import Process
from ..request import GpuRequest
from .lease import LIVE, Holder, Lease, Slice
from .limits import Limits

VERSION = 2

_SCHEMA = """
CREATE TABLE lease (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    user TEXT NOT NULL,
    created REAL NOT NULL,
    ended REAL,
    body TEXT NOT NULL
);
CREATE INDEX lease_state ON lease (state);
CREATE TABLE span (
    lease TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('held', 'waited')),
    user TEXT NOT NULL,
    devices REAL NOT NULL,
    start REAL NOT NULL,
    stop REAL,
    busy_s REAL NOT NULL DEFAULT 0
);
CREATE INDEX span_lease ON span (lease, stop);
CREATE INDEX span_start ON span (start);
"""
_SINCE_2 = """
CREATE TABLE cordon (device TEXT PRIMARY KEY, why TEXT NOT NULL);
CREATE INDEX span_user ON span (user, stop);
"""
"""What version 2 added."""


class LedgerError(Exception):
    """The ledger cannot be used. ``reason``: locked, read_only, damaged, newer or failed."""

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reason = f"ledger_{reason}"
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Span:
    """A stretch of time in which a lease held (or waited for) so many devices' worth."""

    lease: str
    kind: Literal["held", "waited"]
    user: str
    devices: float
    start: float
    stop: float | None
    busy_s: float


@dataclass(frozen=True)
class Change:
    """One lease as it is from now on, and how many devices' worth it holds or waits for."""

    lease: Lease
    devices: float
    respan: bool
    """Whether what it holds or waits for differs from before: its open span ends."""


class Ledger:
    """Opened by :meth:`open`; every method raises :class:`LedgerError` when the disk fails."""

    def __init__(
        self, db: sqlite3.Connection, lock: IO[str] | None, path: Path | None, fresh: bool
    ) -> None:
        self._db = db
        self._lock = lock
        self.path = path
        self.fresh = fresh
        """Whether there was none before: the first start, or the file was lost."""

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None) -> Ledger:
        """The ledger at ``path`` (made if missing), or one in memory for ``None``."""
        if path is None:
            db = sqlite3.connect(":memory:", isolation_level=None)
            db.executescript(_SCHEMA + _SINCE_2)
            return cls(db, None, None, fresh=True)
        file = Path(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _lock(file)
        except OSError as error:
            raise LedgerError(
                "read_only",
                f"The ledger {file} cannot be written: {error.strerror}.",
                "Make its folder writable, or name another file for the ledger.",
            ) from error
        try:
            fresh = not file.exists()
            ledger = cls(_connect(file, fresh), lock, file, fresh)
        except BaseException:
            lock.close()
            raise
        try:
            # What cannot be read is found out here, where whoever opens it is ready for that.
            ledger.live()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    def live(self) -> list[Lease]:
        """The leases that have not ended, in the order in which they were asked for."""
        marks = ",".join("?" * len(LIVE))
        with _errors("read"):
            rows = self._db.execute(
                f"SELECT body FROM lease WHERE state IN ({marks}) ORDER BY seq",  # noqa: S608
                sorted(LIVE),
            ).fetchall()
        return [_load(row[0]) for row in rows]

    def get(self, lease_id: str) -> Lease | None:
        """A lease, ended or not."""
        with _errors("read"):
            row = self._db.execute("SELECT body FROM lease WHERE id = ?", (lease_id,)).fetchone()
        return _load(row[0]) if row else None

    def save(self, changes: Iterable[Change], now: float) -> None:
        """Write all changes or none."""
        with _errors("written"), self._transaction():
            for change in changes:
                lease = change.lease
                self._db.execute(
                    "INSERT INTO lease (id, state, user, created, ended, body)"
                    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                    " state = excluded.state, ended = excluded.ended, body = excluded.body",
                    (
                        lease.id,
                        lease.state,
                        lease.holder.user,
                        lease.created,
                        lease.ended_at,
                        _dump(lease),
                    ),
                )
                if change.respan:
                    self._respan(lease, change.devices, now)

    def _respan(self, lease: Lease, devices: float, now: float) -> None:
        self._db.execute(
            "UPDATE span SET stop = ? WHERE lease = ? AND stop IS NULL", (now, lease.id)
        )
        kind = "held" if lease.holds else "waited" if lease.state == "queued" else None
        if kind and devices > 0:
            self._db.execute(
                "INSERT INTO span (lease, kind, user, devices, start) VALUES (?, ?, ?, ?, ?)",
                (lease.id, kind, lease.holder.user, devices, now),
            )

    def add_busy(self, seconds: dict[str, float]) -> None:
        """Add measured busy device-seconds to the spans that the leases have open."""
        with _errors("written"), self._transaction():
            self._db.executemany(
                "UPDATE span SET busy_s = busy_s + ? WHERE lease = ? AND stop IS NULL"
                " AND kind = 'held'",
                [(busy, lease) for lease, busy in seconds.items()],
            )

    def spans(self, since: float, until: float) -> Iterator[Span]:
        """The spans that touch the time from ``since`` to ``until``."""
        with _errors("read"):
            rows = self._db.execute(
                "SELECT lease, kind, user, devices, start, stop, busy_s FROM span"
                " WHERE start < ? AND (stop IS NULL OR stop > ?) ORDER BY start",
                (until, since),
            ).fetchall()
        return (Span(*row) for row in rows)

    def cordoned(self) -> dict[str, str]:
        """The devices that are cordoned, by UUID, and why."""
        with _errors("read"):
            return dict(self._db.execute("SELECT device, why FROM cordon").fetchall())

    def set_cordoned(self, cordoned: Mapping[str, str]) -> None:
        """These devices are cordoned from now on, and no others."""
        with _errors("written"), self._transaction():
            self._db.execute("DELETE FROM cordon")
            self._db.executemany("INSERT INTO cordon VALUES (?, ?)", list(cordoned.items()))

    def held_by(self, user: str, since: float) -> list[Span]:
        """The spans in which a user held something after ``since``."""
        with _errors("read"):
            rows = self._db.execute(
                "SELECT lease, kind, user, devices, start, stop, busy_s FROM span"
                " WHERE user = ? AND (stop IS NULL OR stop > ?) AND kind = 'held' ORDER BY start",
                (user, since),
            ).fetchall()
        return [Span(*row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def backup(ledger: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a ledger as it is at one instant, also one that a broker is using; blocks.

    ``target`` is made anew, for its owner alone. :class:`LedgerError`.

    Source: https://www.sqlite.org/backup.html
    """
    file, copy = Path(ledger), Path(target)
    try:
        there = file.is_file()
    except OSError as error:
        raise LedgerError(
            "read_only",
            f"The ledger {file} cannot be read: {error.strerror}.",
            "Do this as root, or as the account that the broker runs as.",
        ) from error
    if not there:
        raise LedgerError("read_only", f"There is no ledger {file}.")
    try:
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise LedgerError(
            "read_only",
            f"The copy {copy} cannot be made: {error.strerror}.",
            "Name a file that is not there yet, in a folder that may be written.",
        ) from error
    try:
        with (
            _errors("copied"),
            closing(sqlite3.connect(file)) as source,
            closing(sqlite3.connect(copy)) as made,
        ):
            _check(source, file, fresh=False)
            source.backup(made)
            # A copy is one file: nothing of it stands in a log beside it.
            made.execute("PRAGMA journal_mode = DELETE")
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def _lock(file: Path) -> IO[str]:
    # Never removed: a process that waits on a removed lock file and one that makes it anew
    # would both hold "the" lock.
    lock = open(file.with_name(file.name + ".lock"), "a+")  # noqa: SIM115 (held for life)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read(20).strip() or "unknown"
        lock.close()
        raise LedgerError(
            "locked",
            f"The ledger {file} is in use by another broker (process {owner}).",
            "One broker serves a pool: stop the other one, or name another file for this ledger.",
        ) from None
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _connect(file: Path, fresh: bool) -> sqlite3.Connection:
    try:
        # The file exists before SQLite opens it, so that nobody else can read it meanwhile.
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise LedgerError(
            "read_only",
            f"The ledger {file} cannot be written: {error.strerror}.",
            "Make it writable, or name another file for the ledger.",
        ) from error
    # The ledger is written on an event loop, which must not stand still for another's lock; what
    # could not be written is tried again.
    db = sqlite3.connect(file, isolation_level=None, timeout=0.2)
    try:
        version = _check(db, file, fresh)
        db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode NORMAL survives the death of any process; only a power cut may lose the
        # last changes, and no holder outlives that.
        db.execute("PRAGMA synchronous = NORMAL")
        missing = {0: _SCHEMA + _SINCE_2, 1: _SINCE_2}.get(version)
        if missing:
            db.executescript(f"BEGIN; {missing} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.OperationalError as error:
        db.close()
        reason = "read_only" if "readonly" in str(error) else "failed"
        raise LedgerError(reason, f"The ledger {file} cannot be used: {error}.") from error
    except sqlite3.DatabaseError as error:
        db.close()
        raise _damaged(file, str(error)) from error
    except LedgerError:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, file: Path, fresh: bool) -> int:
    """The file's version; 0 for a new one."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise LedgerError(
            "newer",
            f"The ledger {file} was written by a newer version of jupyter_gpuslice "
            f"(format {version}; this one reads {VERSION}).",
            "Upgrade jupyter_gpuslice, or name another file for the ledger.",
        )
    if version == 0:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables or not fresh:
            # An empty file that was there before is a ledger that lost its contents.
            raise _damaged(file, "it is empty" if not tables else "it holds something else")
        return 0
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise _damaged(file, problem)
    return version


_MOVE_AWAY = "Stop what still holds its leases, move the file away and start again."


def _damaged(file: Path, why: str) -> LedgerError:
    return LedgerError(
        "damaged",
        f"The ledger {file} is damaged: {why}.",
        _MOVE_AWAY,
    )


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError("failed", f"The ledger cannot be {doing}: {error}.") from error


def _dump(lease: Lease) -> str:
    body = lease.to_dict()
    body |= {
        "queued_at": lease.queued_at,
        "ended_at": lease.ended_at,
        "ttl": lease.ttl,
        "activate_by": lease.activate_by,
        "processes": [process.to_dict() for process in lease.processes],
        "limits": lease.limits.to_dict(),
    }
    return json.dumps(body, separators=(",", ":"))


def _load(text: str) -> Lease:
    try:
        return _lease(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(
            "damaged",
            f"The ledger holds a lease that cannot be read: {type(error).__name__}: {error}.",
            _MOVE_AWAY,
        ) from error


def _lease(body: dict[str, Any]) -> Lease:
    return Lease(
        id=body["id"],
        request=GpuRequest.parse(body["request"]),
        holder=Holder.from_dict(body["holder"]),
        state=body["state"],
        created=body["created"],
        workers=body["workers"],
        priority=body["priority"],
        slices=tuple(Slice.from_dict(slice_) for slice_ in body["slices"]),
        isolation=body["isolation"],
        queued_at=body["queued_at"],
        granted_at=body["granted"],
        ended_at=body["ended_at"],
        expires=body["expires"],
        ttl=body["ttl"],
        activate_by=body["activate_by"],
        processes=tuple(Process.from_dict(process) for process in body["processes"]),
        limits=Limits.from_dict(body.get("limits") or {}),
        detail=body["detail"],
    )
