"""Implements the journal: desired state, operations, incidents and audit in SQLite, one transaction per batch.

Invariants:
- A batch is durable as a whole when `commit` returns.
- When `commit` raises DiskError, nothing of the batch is written and it can be tried again.
- An entry that can never be written does not keep the rest of its batch from being written.
- A file of an older schema is kept, and a migrated copy is used; a file of a newer schema is refused.
- If a file is damaged, all its readable rows are kept, the damaged file stays beside the new one, and `damage` reports
  it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentrl.control.persistence import journal_repair
from agentrl.control.persistence.journal_schema import APPLICATION_ID, SCHEMA_VERSION, checksum, create, migrate
from agentrl.errors import AgentrlError, DiskError, VersionMismatchError

log = logging.getLogger(__name__)
Row = TypeVar("Row", bound=tuple[Any, ...])

BUSY_TIMEOUT_S = 5.0
_NEVER_WRITABLE = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeEncodeError,
)
"""Errors of the content of one entry, which no retry can repair; for example a time that is not a number."""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SENTENCES = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "it is not writable",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk gave an error (it may be full, or a file size limit was reached)",
    sqlite3.SQLITE_BUSY: "another program holds it",
    sqlite3.SQLITE_LOCKED: "another program holds it",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_NOTADB: "the file is damaged",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
}


@dataclass
class Batch:
    """The content of one transaction. A put of None removes the key; an event of a known id replaces it."""

    puts: list[tuple[str, str, bytes | None]] = field(default_factory=list)
    events: list[tuple[str, str, float, bytes]] = field(default_factory=list)

    def put(self, kind: str, key: str, body: bytes | None) -> None:
        self.puts.append((kind, key, body))

    def event(self, kind: str, id: str, at: float, body: bytes) -> None:
        self.events.append((kind, id, at, body))

    @property
    def empty(self) -> bool:
        return not (self.puts or self.events)


@dataclass(frozen=True)
class SetAside:
    """An entry that can never be written."""

    kind: str
    key: str
    why: str


@dataclass(frozen=True)
class JournalEvent:
    """One event of the run."""

    kind: str
    id: str
    at: float
    body: bytes


class Journal:
    """An open journal. Calls must not overlap, but may come from different threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection, damage: str) -> None:
        self.path = path
        self.damage = damage
        """If the file was damaged when it was opened: a sentence about the lost rows and the place of the old file."""
        self._db: sqlite3.Connection | None = connection
        """The connection; None after a failed `restore`."""
        self._opened = _file_id(path)

    @classmethod
    def open(cls, path: Path, *, at: float) -> Journal:
        """Open or create a journal. Raises DiskError, or VersionMismatchError for a file of another version."""
        with _disk_errors(path):
            journal_repair.finish_swap(path, at)
            try:
                connection = _connect(path)
            except sqlite3.DatabaseError as broken:
                if _code(broken) not in _DAMAGED:
                    raise
                damage = journal_repair.rebuild(path, at)
                log.critical("%s", damage)
                return cls(path, _connect(path), damage)
            return cls(path, connection, "")

    @classmethod
    def read_only(cls, path: Path) -> Journal:
        """Open a journal for reading while a coordinator may write to it. Raises DiskError."""
        with _disk_errors(path):
            return cls(path, sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True), "")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise _unusable(self.path, "its file was removed or replaced, and could not be restored")
        return self._db

    def restore(self) -> bool:
        """Write the file again if it was removed or replaced while it was open: the next coordinator reads the file.

        Returns whether this was needed. Raises DiskError if it failed; until a later call succeeds, a `commit` works or
        raises DiskError.
        """
        if self._db is not None and _file_id(self.path) == self._opened:
            return False
        draft = self.path.with_name(f"{self.path.name}.restored")
        with _disk_errors(self.path):
            if self._db is not None:
                draft.unlink(missing_ok=True)
                with contextlib.closing(sqlite3.connect(draft)) as copy:
                    self._db.backup(copy)
                # SQLite removes the files beside the journal by name, so the old connection ends before the new one.
                closed, self._db = self._db, None
                closed.close()
            if draft.exists():
                for suffix in ("-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                draft.rename(self.path)
            self.path.stat()  # a new empty journal would hide the loss
            self._db = _connect(self.path)
            self._opened = _file_id(self.path)
        return True

    def commit(self, batch: Batch) -> list[SetAside]:
        """Make a batch durable. If this raises DiskError, no part of the batch is written.

        Returns the entries that can never be written; all others are durable.
        """
        if batch.empty:
            return []
        gone = [(kind, key) for kind, key, body in batch.puts if body is None]
        with _disk_errors(self.path), self._transaction():
            return [
                *self._write("DELETE FROM state WHERE kind = ? AND key = ?", gone, lambda row: row),
                *self._write(
                    "INSERT OR REPLACE INTO state (kind, key, body, crc) VALUES (?, ?, ?, ?)",
                    _last_puts(batch.puts),
                    lambda row: (*row, checksum(*row)),
                ),
                *self._write(
                    "INSERT INTO events (kind, id, at, body, crc) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT (kind, id) DO UPDATE SET at = excluded.at, body = excluded.body, crc = excluded.crc",
                    batch.events,
                    lambda row: (*row, checksum(row[0], row[1], row[3])),
                ),
            ]

    def _write(self, sql: str, rows: list[Row], values: Callable[[Row], tuple[Any, ...]]) -> list[SetAside]:
        """Write all rows that can be written."""
        try:
            self._connection.executemany(sql, [values(row) for row in rows])
        except _NEVER_WRITABLE:
            return list(self._write_each(sql, rows, values))
        return []

    def _write_each(self, sql: str, rows: list[Row], values: Callable[[Row], tuple[Any, ...]]) -> Iterator[SetAside]:
        for row in rows:
            try:
                self._connection.execute(sql, values(row))
            except _NEVER_WRITABLE as refused:
                yield SetAside(str(row[0]), str(row[1]), str(refused))

    def all(self, kind: str) -> dict[str, bytes]:
        """Every key of a kind."""
        with _disk_errors(self.path):
            return dict(self._connection.execute("SELECT key, body FROM state WHERE kind = ? ORDER BY key", (kind,)))

    def get(self, kind: str, key: str) -> bytes | None:
        with _disk_errors(self.path):
            found = self._connection.execute(
                "SELECT body FROM state WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
        return None if found is None else bytes(found[0])

    def events(self, kinds: Iterable[str] = (), after_at: float = 0.0, limit: int = 200) -> list[JournalEvent]:
        """The newest `limit` events later than `after_at`, oldest first; without `kinds`, events of all kinds."""
        wanted = tuple(kinds)
        only = f"AND kind IN ({', '.join('?' * len(wanted))})" if wanted else ""
        with _disk_errors(self.path):
            found = self._connection.execute(
                f"SELECT kind, id, at, body FROM events WHERE at > ? {only} ORDER BY at DESC, seq DESC LIMIT ?",
                (after_at, *wanted, limit),
            ).fetchall()
        return [JournalEvent(*row) for row in reversed(found)]

    def prune(self, *, before_at: float, keep_newest: int, most: int = 500) -> int:
        """Remove at most `most` events that are older than `before_at` or not among the newest `keep_newest`.

        Returns the number of removed events. Small portions keep the event loop of the coordinator free.
        """
        with _disk_errors(self.path):
            (count,) = self._connection.execute("SELECT count(*) FROM events").fetchone()
            surplus = min(most, max(0, count - keep_newest))
            with self._transaction():
                # `at` is the wall clock and may jump, so the surplus is removed in the order of arrival.
                old = self._connection.execute(
                    "DELETE FROM events WHERE seq IN (SELECT seq FROM events ORDER BY seq LIMIT ?)", (surplus,)
                ).rowcount
                old += self._connection.execute(
                    "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE at < ? LIMIT ?)",
                    (before_at, most - surplus),
                ).rowcount
        return old

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # After some errors SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def refuse_other_version(path: Path) -> None:
    """Raises VersionMismatchError if a coordinator of this program would refuse the journal. It does not search for
    other faults, which a coordinator repairs or reports."""
    if path.exists():
        with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path)) as db:
            _version_of(db, path)


def _file_id(path: Path) -> tuple[int, int] | None:
    """Identifies a file apart from its name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _last_puts(puts: list[tuple[str, str, bytes | None]]) -> list[tuple[str, str, bytes]]:
    """The last put of each key, without the removals."""
    last = {(kind, key): body for kind, key, body in puts}
    return [(kind, key, body) for (kind, key), body in last.items() if body is not None]


def _connect(path: Path) -> sqlite3.Connection:
    # The files that SQLite makes beside the journal get the mode that it has then, and they hold the same secrets.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # Autocommit mode: Python must not open transactions by itself.
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        version = _version_of(db, path)
        if 0 < version < SCHEMA_VERSION:
            _keep(db, path.with_name(f"{path.name}.version-{version}"))
        _switch_to_wal(db)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(f"PRAGMA journal_size_limit = {4 << 20}")
        db.execute("BEGIN IMMEDIATE")
        if 0 < version < SCHEMA_VERSION:
            migrate(db, version)
            log.warning("the journal %s was migrated from version %d to %d", path, version, SCHEMA_VERSION)
        create(db)
        db.execute("COMMIT")
        path.chmod(0o600)
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _damaged(verdict)
    except BaseException:
        db.close()
        raise
    return db


def _version_of(db: sqlite3.Connection, path: Path) -> int:
    """The schema version of the file; 0 if it is new. Raises VersionMismatchError if it cannot be used."""
    # One transaction: another process may be creating the file.
    db.execute("BEGIN")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    db.execute("COMMIT")
    if tables and application != APPLICATION_ID:
        raise VersionMismatchError(f"{path} is a database, but not a journal of agentrl.", hint="Move it away.")
    if version > SCHEMA_VERSION:
        raise VersionMismatchError(
            f"The journal {path} has schema version {version}; this agentrl reads versions up to {SCHEMA_VERSION}.",
            hint="Use the agentrl that wrote it, or put its copy from before the upgrade in its place "
            f"({path.name}.version-{SCHEMA_VERSION}).",
        )
    return int(version)


def _keep(db: sqlite3.Connection, copy: Path) -> None:
    """Copy a journal before it is migrated, in case its user goes back to the previous version."""
    copy.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(copy)) as other:
        db.backup(other)
    copy.chmod(0o600)


def _switch_to_wal(db: sqlite3.Connection) -> None:
    """SQLite does not wait for other processes when it changes this mode, so this tries again."""
    for _ in range(100):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as busy:
            if _code(busy) != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(BUSY_TIMEOUT_S / 100)
    db.execute("PRAGMA journal_mode = WAL")


def _damaged(verdict: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(verdict)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _code(error: sqlite3.Error) -> int:
    """The primary result code; extended codes keep it in the lowest byte."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and the file system into DiskError. Errors in our own SQL pass unchanged."""
    try:
        yield
    except sqlite3.DatabaseError as failed:
        sentence = _SENTENCES.get(_code(failed))
        if sentence is None:
            raise
        raise _unusable(path, f"{sentence} ({failed})") from failed
    except OSError as failed:
        raise _unusable(path, failed.strerror or str(failed)) from failed


def _unusable(path: Path, why: str) -> AgentrlError:
    return DiskError(
        f"The journal {path} cannot be used: {why}.",
        hint=f"Free some space on the disk of {path.parent}; `agentrl doctor` shows how much there is.",
    )
