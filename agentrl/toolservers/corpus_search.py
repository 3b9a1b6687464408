"""A tool server that searches a corpus of texts: files .md and .txt, and rows of .jsonl, by SQLite's full-text index.

A row of a .jsonl file is a document with `text` (or `content`, `body`), and optionally `id` and `title`. Each other
file is one document.

Invariants:
- Any query is read as a list of words and quoted phrases, so no query is a syntax error.
- Documents with more of the words, and rarer ones, come first; documents of equal rank in the order of their ids.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.toolservers.mcp_stdio import Call, Server, Tool
from agentrl.toolservers.user_names import ToolError

ENDINGS = (".md", ".txt", ".jsonl")
MOST_FOUND = 20
MOST_TEXT_CHARS = 12_000
MOST_WORDS = 32
_MOST_QUERY_CHARS = 2_000
_MOST_DOCUMENT_BYTES = 64 << 20
_TEXT_KEYS = ("text", "content", "contents", "body", "passage")
_PHRASE = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w+")
_SEARCH_SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": 'Words; a phrase in "quotes" must occur as it is.'},
        "limit": {"type": "integer", "description": f"How many documents, at most {MOST_FOUND}.", "default": 5},
    },
    "required": ["query"],
}
_FETCH_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The id of a found document."},
        "start": {"type": "integer", "description": "The first character.", "default": 0},
    },
    "required": ["id"],
}


class CorpusError(Exception):
    """The corpus cannot be read."""


class CorpusIndex:
    """The full-text index of a corpus."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._database.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
            "CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT, text TEXT);"
            "CREATE VIRTUAL TABLE words USING fts5 (title, text, content='documents', content_rowid='number',"
            " tokenize='porter unicode61 remove_diacritics 2');"
        )

    def build(self, places: Sequence[str]) -> int:
        """Index all documents; returns their number. Raises CorpusError."""
        self._database.execute("BEGIN")
        for place in places:
            for document in _documents(place):
                try:
                    self._database.execute("INSERT INTO documents (id, title, text) VALUES (?, ?, ?)", document)
                except sqlite3.IntegrityError:
                    raise CorpusError(f"{place}: two documents have the id {document[0]}") from None
        self._database.execute("INSERT INTO words (words) VALUES ('rebuild')")
        self._database.execute("COMMIT")
        (count,) = self._database.execute("SELECT count(*) FROM documents").fetchone()
        if not count:
            raise CorpusError(f"there is no document in {', '.join(places)} ({', '.join(ENDINGS)})")
        return int(count)

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """The best documents, each with a snippet around the words."""
        match = match_of(query)
        if not match:
            raise ToolError("the query has no words")
        # The title counts three times as much as the text.
        found = self._rows(
            "SELECT id, documents.title, snippet(words, 1, '', '', ' ... ', 24) FROM words"
            " JOIN documents ON documents.number = words.rowid WHERE words MATCH ?"
            " ORDER BY bm25(words, 3.0, 1.0), id LIMIT ?",
            (match, limit),
        )
        return [{"id": id, "title": title, "snippet": snippet} for id, title, snippet in found]

    def fetch(self, id: str) -> tuple[str, str] | None:
        """Title and text of a document."""
        found = self._rows("SELECT title, text FROM documents WHERE id = ?", (id,))
        return (found[0][0], found[0][1]) if found else None

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()


def match_of(query: str) -> str:
    """The query in the syntax of the index: quoted words and phrases, any of which may occur. Empty without words."""
    found: list[str] = []
    phrases: list[str] = []
    for phrase, word in _PHRASE.findall(query[:_MOST_QUERY_CHARS]):
        words = _WORD.findall(phrase or word)
        if phrase and len(words) > 1:
            phrases.append(f'"{" ".join(words)}"')
        else:
            found += [f'"{each}"' for each in words]
    some = " OR ".join(dict.fromkeys(found[:MOST_WORDS]))
    every = " AND ".join(dict.fromkeys(phrases[:MOST_WORDS]))
    if not every:
        return some
    # Words beside a phrase only change the rank.
    return f"({every}) AND ({every.split(' AND ')[0]} OR {some})" if some else every


def _documents(place: str) -> Iterator[tuple[str, str, str]]:
    """Id, title and text of each document."""
    place = os.path.normpath(place)
    if os.path.isfile(place):
        yield from _of_file(place, os.path.basename(place))
    for folder, inner, names in os.walk(place):
        inner.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(ENDINGS) and os.path.isfile(path):
                yield from _of_file(path, os.path.relpath(path, place))


def _of_file(path: str, name: str) -> Iterator[tuple[str, str, str]]:
    if os.path.getsize(path) > _MOST_DOCUMENT_BYTES and not name.endswith(".jsonl"):
        raise CorpusError(f"{path} is larger than {_MOST_DOCUMENT_BYTES} bytes")
    with open(path, encoding="utf-8", errors="replace") as file:
        if not name.endswith(".jsonl"):
            text = file.read()
            heading = re.search(r"^#\s+(.+)$", text, re.MULTILINE) if name.endswith(".md") else None
            yield name, heading[1].strip() if heading else name, text
            return
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(line, f"{path}, line {number}", f"{name}:{number}")


def _row(line: str, place: str, id: str) -> tuple[str, str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise CorpusError(f"{place}: this is not JSON") from None
    text = next((row[key] for key in _TEXT_KEYS if key in row), None) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise CorpusError(f"{place}: a row needs a text in one of the columns {', '.join(_TEXT_KEYS)}")
    found = str(row.get("id", id)), str(row.get("title", row.get("id", id))), text
    # Lone surrogates cannot be stored.
    return tuple(each.encode("utf-8", "replace").decode() for each in found)  # type: ignore[return-value]


def tools_of(index: CorpusIndex) -> list[Tool]:
    def search(arguments: dict[str, Any], call: Call) -> str:
        query, limit = arguments.get("query"), arguments.get("limit", 5)
        if not isinstance(query, str) or not isinstance(limit, int):
            raise ToolError("query must be a text, and limit an integer")
        found = index.search(query, min(max(limit, 1), MOST_FOUND))
        return json.dumps(found, ensure_ascii=False, indent=1) if found else "[nothing]"

    def fetch(arguments: dict[str, Any], call: Call) -> str:
        id, start = arguments.get("id"), arguments.get("start", 0)
        if not isinstance(id, str) or not isinstance(start, int) or start < 0:
            raise ToolError("id must be a text, and start an integer from 0 on")
        document = index.fetch(id.encode("utf-8", "replace").decode())
        if document is None:
            raise ToolError(f"there is no document {id!r}")
        title, text = document
        end = start + MOST_TEXT_CHARS
        rest = f"\n[{len(text) - end} more characters; go on with start {end}]" if len(text) > end else ""
        return f"{title}\n\n{text[start:end]}{rest}"

    return [
        Tool("search", "Documents of the corpus that match a query, the best first.", _SEARCH_SCHEMA, search, "pure"),
        Tool("fetch", "The text of one document of the corpus.", _FETCH_SCHEMA, fetch, "pure"),
    ]


def main(arguments: list[str]) -> None:
    folder = tempfile.mkdtemp(prefix="corpus-")
    path = os.path.join(folder, "index.sqlite")
    try:
        index = CorpusIndex(path)
        count = index.build(arguments)
    except (CorpusError, OSError, sqlite3.Error) as failed:
        sys.exit(f"the corpus cannot be indexed: {failed}")
    finally:
        # The open file stays readable although it is deleted, so nothing is left however the process ends.
        if os.path.exists(path):
            os.unlink(path)
        os.rmdir(folder)
    print(f"indexed {count} documents", file=sys.stderr, flush=True)
    Server("agentrl-search", "1", tools_of(index)).serve()
