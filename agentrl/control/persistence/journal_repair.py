"""Repairs a damaged journal: copies every row with a valid checksum to a new file.

An empty journal would lose the desired state and the numbers of incarnations. If the coordinator refused to start, the
run would have no coordinator until a person repairs it.

Invariants:
- The damaged file stays beside the new one as `journal.sqlite.corrupt-TIME`.
- After a crash at any point the next opening completes the repair and never starts with an empty journal.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.control.persistence.atomic_file import sync_directory
from agentrl.control.persistence.journal_schema import checksum, create

_STATE = "SELECT rowid, kind, key, body, crc FROM state NOT INDEXED ORDER BY rowid"
_EVENTS = "SELECT seq, kind, id, body, crc, at FROM events NOT INDEXED ORDER BY seq"


def rebuild(path: Path, at: float) -> str:
    """Replace a damaged journal by one with all its readable rows. Returns a sentence about it."""
    state, events = _readable(path)
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as db:
        # Write one plain file without a log beside it, so that one rename moves everything.
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("BEGIN IMMEDIATE")
        create(db)
        db.executemany("INSERT OR REPLACE INTO state (kind, key, body, crc) VALUES (?, ?, ?, ?)", state)
        db.executemany("INSERT OR REPLACE INTO events (seq, kind, id, body, crc, at) VALUES (?, ?, ?, ?, ?, ?)", events)
        db.execute("COMMIT")
    draft.rename(_rebuilt(path))
    kept = finish_swap(path, at)
    return (
        f"The journal {path} was damaged: {len(state)} entries of state and {len(events)} events could be read and "
        f"were carried over, anything else is lost. The damaged file is kept as {kept}."
    )


def finish_swap(path: Path, at: float) -> Path | None:
    """Put the rebuilt journal in place, if there is one; it also completes a swap that a crash interrupted."""
    rebuilt = _rebuilt(path)
    if not rebuilt.exists():
        return None
    kept = _kept(path, at)
    # The log is moved first: SQLite would apply a remaining log into the new file.
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{kept}{suffix}")
    rebuilt.rename(path)
    sync_directory(path.parent)
    return kept


def _rebuilt(path: Path) -> Path:
    return path.with_name(f"{path.name}.rebuilt")


def _kept(path: Path, at: float) -> Path:
    """A free name: older damaged files are kept too."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    for number in range(1000):
        kept = path.with_name(f"{path.name}.corrupt-{stamp}{f'-{number}' if number else ''}")
        if not kept.exists():
            return kept
    return kept


def _readable(path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    state: dict[int, tuple[Any, ...]] = {}
    events: dict[int, tuple[Any, ...]] = {}
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path)) as db:
        # A damaged page ends a scan, so the rows after it are read from the other end.
        for direction in ("ASC", "DESC"):
            state |= {row[0]: row[1:5] for row in _whole_rows(db, f"{_STATE} {direction}")}
            events |= {row[0]: row for row in _whole_rows(db, f"{_EVENTS} {direction}")}
    return [state[rowid] for rowid in sorted(state)], [events[seq] for seq in sorted(events)]


def _whole_rows(db: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    try:
        for row in db.execute(query):
            _, kind, key, body, crc, *_ = row
            typed = isinstance(kind, str) and isinstance(key, str) and isinstance(body, bytes)
            if typed and checksum(kind, key, body) == crc:
                yield row
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return  # the rows before the damage are kept
