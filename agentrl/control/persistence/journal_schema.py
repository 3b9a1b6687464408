"""Defines the tables of the journal, and how a journal of an older version becomes one of this version.

Invariants:
- A journal of an older version is migrated in one transaction, and its old file is kept beside it.
- A change of a stored struct needs no migration if every new field has a default: entries are decoded field by field.
- Every row has a checksum of its content, so that rows read from a damaged file can be trusted.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable

APPLICATION_ID = 0x6167726C
"""`agrl`: distinguishes a journal from other SQLite files."""
SCHEMA_VERSION = 1
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}
"""Steps by the version that they start from: the step of 1 turns a journal of version 1 into one of version 2."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS state (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL,"
    " PRIMARY KEY (kind, key))",
    "CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL,"
    " at REAL NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL, UNIQUE (kind, id))",
    "CREATE INDEX IF NOT EXISTS events_at ON events (at)",
)


def create(db: sqlite3.Connection) -> None:
    """Create the tables that do not exist, and mark the file as a journal of this version."""
    for statement in TABLES:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Apply the steps from an older version to this one, in the transaction of the caller."""
    for step in range(version, SCHEMA_VERSION):
        MIGRATIONS[step](db)


def checksum(kind: str, key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{kind}\0{key}\0".encode()))
