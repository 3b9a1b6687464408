"""Writes exported trajectories as Parquet: a row for each record, with its parts in lists of structures.

Invariants:
- The columns and their types are the same for every record, so files of several exports are one dataset.
- Memory holds one row group, however many records there are.
- If an export is interrupted, the rows written before can be read. A file whose end cannot be written is removed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from agentrl.errors import ConfigError, UsageError

SUFFIX = ".parquet"
GROUP_BYTES = 32 << 20
"""The size of a row group, measured as JSON lines."""
_OF_RECORD: Mapping[str, str] = {
    **dict.fromkeys(("id", "task", "environment", "purpose", "status", "outcome", "outcome_class"), "string"),
    **dict.fromkeys(("error", "reason", "owner"), "string"),
    **dict.fromkeys(("round", "seat", "attempt", "turns", "generated_tokens"), "int64"),
    **dict.fromkeys(("oldest_version", "newest_version"), "int64"),
    **dict.fromkeys(("score", "duration_s"), "float64"),
    **dict.fromkeys(("created_at", "started_at", "finished_at"), "time"),
    "malformed": "bool",
}
_OF_TASK: Mapping[str, str] = {"query": "string", "answer": "string", "split": "string"}
_NESTED: Mapping[str, Mapping[str, str]] = {
    "turn_rows": {"index": "int64", "text": "string", "reason": "string", "started_at": "time", "done_at": "time"},
    "tool_calls": {
        **dict.fromkeys(("id", "server", "tool", "arguments", "status", "error_class", "result"), "string"),
        "turn": "int64",
        "latency_s": "float64",
        **dict.fromkeys(("requested_at", "done_at"), "time"),
    },
    "model_calls": {
        **dict.fromkeys(("id", "status", "engine", "finish_reason", "error", "sampling"), "string"),
        **dict.fromkeys(("index", "turn", "new_prompt_tokens", "output_tokens"), "int64"),
        **dict.fromkeys(("sent_at", "done_at"), "time"),
        "versions": "versions",
    },
    "segments": {
        "parent": "int64",
        "kind": "string",
        "call": "int64",
        "trains": "bool",
        "ids": "ids",
        "log_probs": "floats",
        "versions": "versions",
    },
}
_SOURCES = {"turn_rows": "turns", "model_calls": "calls"}
"""Names in the exported line that differ from the columns: `turns` is a number, as in lists."""


def arrow(module: str) -> Any:
    """A module of pyarrow; ConfigError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError("Parquet and Arrow need pyarrow.", hint="`pip install 'agentrl[notebook]'`") from None


def schema() -> Any:
    pa = arrow("pyarrow")
    versions = pa.list_(pa.struct([("version", pa.int64()), ("tokens", pa.int64())]))
    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "time": pa.timestamp("ms", tz="UTC"),
        "ids": pa.list_(pa.int64()),
        "floats": pa.list_(pa.float32()),
        "versions": versions,
    }
    columns = [(name, types[kind]) for name, kind in {**_OF_RECORD, **_OF_TASK}.items()]
    columns += [("advantage", pa.float64()), ("capped", pa.bool_()), ("review", pa.string())]
    columns += [("score_parts", pa.map_(pa.string(), pa.float64())), ("turn_rewards", pa.list_(pa.float64()))]
    columns += [("versions", pa.list_(pa.int64()))]
    for name, fields in _NESTED.items():
        columns.append((name, pa.list_(pa.struct([(field, types[kind]) for field, kind in fields.items()]))))
    return pa.schema(columns)


def row(line: Mapping[str, Any]) -> dict[str, Any]:
    """An exported trajectory as a row of the schema."""
    record, task = line["record"], line.get("task") or {}
    found = {name: _value(record.get(name), kind) for name, kind in _OF_RECORD.items()}
    found |= {name: _value(task.get(name), kind) for name, kind in _OF_TASK.items()}
    found |= {"advantage": line["advantage"], "capped": line["capped"]}
    found |= {"review": (record.get("review") or {}).get("verdict"), "versions": record.get("versions")}
    found |= {
        "score_parts": list((record.get("score_parts") or {}).items()),
        "turn_rewards": record.get("turn_rewards"),
    }
    for name, fields in _NESTED.items():
        found[name] = [
            {field: _value(one.get(field), kind) for field, kind in fields.items()}
            for one in line[_SOURCES.get(name, name)]
        ]
    return found


def _value(value: Any, kind: str) -> Any:
    if value is None:
        return None
    match kind:
        case "string":
            return value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "time":
            return datetime.fromisoformat(value)
        case "versions":
            return [{"version": version, "tokens": tokens} for version, tokens in value]
    return value


class ParquetFile:
    """A new file that takes exported lines, in a `with` block. It is removed if an error comes before its first row."""

    def __init__(self, path: Path) -> None:
        parquet = arrow("pyarrow.parquet")
        self._path, self._schema = path, schema()
        try:
            self._file = path.open("xb")
        except FileExistsError:
            raise UsageError(f"{path} exists, and rows cannot be added to it.", hint="Name another file.") from None
        self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._bytes = self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        whole = False
        try:
            self._flush()
            self._writer.close()
            self._file.close()
            whole = kind is None or self._written > 0
        finally:
            if not whole:
                self._file.close()
                self._path.unlink()

    def write(self, lines: bytes) -> None:
        """Writes whole lines of an export."""
        self._rows += [row(msgspec.json.decode(line)) for line in lines.splitlines() if line]
        self._bytes += len(lines)
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            self._writer.write_table(arrow("pyarrow").Table.from_pylist(rows, schema=self._schema))
            self._written += len(rows)
