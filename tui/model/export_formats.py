"""Formats rows of a table for a file: JSON, JSON lines, or CSV for a spreadsheet.

Invariants:
- Text of a run stays data in every format: no control code reaches a terminal that prints the file, and no cell begins
  a formula.
- In JSON every value is unchanged.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from agentrl.formatting.safe_text import sanitise

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def plain(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Rows as programs read them, without the helper fields of the table."""
    made = []
    for row in rows:
        found: Any = json.loads(msgspec.json.encode(row))
        body = found if isinstance(found, dict) else {"value": found}
        made.append({name: value for name, value in body.items() if not name.startswith("~")})
    return made


def as_json(rows: Iterable[Any]) -> str:
    return json.dumps(plain(rows), indent=1) + "\n"


def as_lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in plain(rows))


def as_csv(rows: Iterable[Any]) -> str:
    found = plain(rows)
    names = list(dict.fromkeys(name for row in found for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in names])
    writer.writerows([[_cell(row.get(name)) for name in names] for row in found])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = sanitise(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return f"'{text}" if text.startswith(_FORMULA) else text


FORMATS: Mapping[str, Callable[[Iterable[Any]], str]] = {".json": as_json, ".jsonl": as_lines, ".csv": as_csv}


def wrong_with(path: str, formats: Iterable[str]) -> str:
    """The fault of a file name; empty if it is valid."""
    if not path.strip():
        return "Type the name of a file."
    known = list(formats)
    if PurePath(path.strip()).suffix.lower() in known:
        return ""
    *others, last = known
    return f"The name has to end with {', '.join(others)} or {last}." if others else f"The name has to end with {last}."
