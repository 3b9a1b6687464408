"""Formats tool calls as text, the same on the command line and in the console."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.formatting.safe_text import sanitise_lines

Row = Mapping[str, Any]


def name(row: Row) -> str:
    return f"{row['server']}.{row['tool']}" if row.get("server") else str(row.get("tool") or "")


def invocation(row: Row) -> str:
    """The call as code: `shop.lookup(item='bake')`."""
    given = ", ".join(f"{key}={_safe(value)!r}" for key, value in (row.get("arguments") or {}).items())
    return f"{name(row)}({given})"


def _safe(value: Any) -> Any:
    """The value without escape sequences. `repr` alone would keep their characters."""
    if isinstance(value, Mapping):
        return {_safe(key): _safe(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(each) for each in value]
    return sanitise_lines(value) if isinstance(value, str) else value


def ending(row: Row) -> str:
    """The end of a call: its status, the class of its error, and the result of another try in a fresh session."""
    fault = f" ({row['error_class']})" if row.get("error_class") else ""
    again = f", tried again: {row['tried_again']}" if row.get("tried_again") else ""
    return f"{row.get('status')}{fault}{again}"


def place(session: Sequence[Row], id: str) -> str:
    """The place of a call among the calls of its session."""
    ids = [row["id"] for row in session]
    return f"call {ids.index(id) + 1} of {len(ids)}" if id in ids else ""


def filter_of(tool: str = "", record: str = "", *, failed: bool = False, age: str = "") -> str:
    """The query for calls: of a tool (`shop.lookup` or `lookup`), of a record, only failed ones, or those of the last
    `age`."""
    server, _, short = tool.rpartition(".")
    parts = [f"server={json.dumps(server, ensure_ascii=False)}"] if server else []
    parts += [f"tool={json.dumps(short, ensure_ascii=False)}"] if short else []
    parts += [f"record={json.dumps(record, ensure_ascii=False)}"] if record else []
    parts += ["failed=true"] if failed else []
    parts += [f"requested_at>-{age}"] if age else []
    return " and ".join(parts)
