"""Defines the tables of the journal.

Invariants:
- Every row has a checksum of its content, so that rows read from a damaged file can be trusted.
"""

from __future__ import annotations

import zlib

APPLICATION_ID = 0x6167726C
"""`agrl`: distinguishes a journal from other SQLite files."""
SCHEMA_VERSION = 1

TABLES = (
    "CREATE TABLE IF NOT EXISTS state (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL,"
    " PRIMARY KEY (kind, key))",
    "CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL,"
    " at REAL NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL, UNIQUE (kind, id))",
    "CREATE INDEX IF NOT EXISTS events_at ON events (at)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def checksum(kind: str, key: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{kind}\0{key}\0".encode()))
