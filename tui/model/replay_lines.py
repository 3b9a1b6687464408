"""Formats replays of tool calls: the columns of their list, and the page of one with its differences. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl.formatting.amounts import counted
from tui.model import cell_text
from tui.model.curves import seconds
from tui.model.detail_lines import page
from tui.model.styled_text import Line, Span, Tone, span, wrapped
from tui.model.table import Column, order_column

Row = Mapping[str, Any]
_TONES = {"same": Tone.PLAIN, "fixed": Tone.GOOD, "broken": Tone.BAD, "flaky": Tone.WARN, "different": Tone.WARN}
_MOST_LINES = 40
"""The most lines of one result."""


def ending(row: Row) -> str:
    """The verdict, or the progress of the replay."""
    if not row.get("verdict"):
        return "stopped" if row.get("stopped") and row["status"] == "queued" else str(row["status"])
    runs = row["counts"]["runs"] if "counts" in row else len(row["runs"])
    of = f" {row['agreed']} of {runs}" if row.get("agreed") else ""
    return f"{row['verdict']}{of}{', edited' if row.get('edited') else ''}"


def _tone(row: Row) -> Tone:
    if not row.get("verdict"):
        return Tone.BAD if row["status"] == "failed" else Tone.BUSY
    return _TONES.get(row["verdict"], Tone.WARN)


def columns() -> tuple[Column[Row], ...]:
    def tool(row: Row) -> str:
        return f"{row['server']}.{row['tool']}"

    def ago(row: Row, now: float) -> Span:
        return Span(cell_text.ago(seconds(row.get("created_at")), now), Tone.DIM)

    def call(row: Row) -> str:
        return str(row["call"])

    def who(row: Row) -> str:
        return str(row.get("who") or "")

    def why(row: Row) -> str:
        return str(row.get("reason") or row.get("note") or "")

    return (
        order_column(),
        Column("call", "CALL", 32, lambda row, now: span(call(row), Tone.STRONG), call, least=20),
        Column("verdict", "VERDICT", 18, lambda row, now: span(ending(row), _tone(row)), ending),
        Column("tool", "TOOL", 18, lambda row, now: span(tool(row)), tool, rank=1),
        Column("who", "BY", 10, lambda row, now: span(who(row), Tone.DIM), who, rank=3),
        Column("created_at", "AGO", 5, ago, lambda row: seconds(row.get("created_at")), True, rank=2),
        Column("why", "WHY", 16, lambda row, now: span(why(row), Tone.DIM), why, stretches=True),
    )


def of_replay(row: Row, width: int) -> list[Line]:
    """A replay with the calls that rebuilt its session, its runs and what changed."""
    version = f" ({row['server_version']})" if row.get("server_version") else ""
    elsewhere = f", instead of {row['recorded_server']}" if row["server"] != row["recorded_server"] else ""
    pairs: tuple[tuple[str, object], ...] = (
        ("verdict", span(ending(row), _tone(row))),
        ("why", row.get("reason")),
        ("error class", row.get("error_class")),
        ("fault", row.get("fault")),
        ("call", row["call"]),
        ("tool", f"{row['tool']} on {row['server']}{version}{elsewhere}"),
        ("arguments", json.dumps(row.get("arguments", {}), ensure_ascii=False)),
        ("requested by", row.get("who")),
        ("note", row.get("note")),
        ("forked", row.get("forked")),
        ("decision", row.get("decision")),
    )
    lines: list[Line] = [(span(row["id"], Tone.STRONG),), (), *page(pairs, width)]
    for call in row["rebuilt"]:
        lines += [(), *_call(f"rebuilt the session: {call['tool']}", call, width)]
    if then := row.get("then"):
        lines += [(), *_call("recorded", then, width)]
    for number, run in enumerate(row["runs"], 1):
        lines += [(), *_call(f"run {number}", run, width)]
    return lines


def _call(title: str, call: Row, width: int) -> list[Line]:
    took = f" in {cell_text.quick(call['latency_s'])}" if call.get("latency_s") else ""
    lines: list[Line] = [(span(title, Tone.ACCENT), span(f"  {call['status']}{took}", Tone.DIM))]
    if call["changes"]:
        lines += _changes(call, width)
    elif call["result"]:
        lines += _result(call["result"], width)
    return lines


def _changes(call: Row, width: int) -> list[Line]:
    lines: list[Line] = []
    for change in call["changes"]:
        lines.append((Span("  "), span(change["path"], Tone.STRONG)))
        for sign, text, tone in (("-", change["then"], Tone.BAD), ("+", change["now"], Tone.GOOD)):
            for part in text.splitlines() or [""] if text is not None else ():
                lines += [(Span(f"    {sign} ", tone), span(piece, tone)) for piece in wrapped(part, width - 6)]
    if call["changes_left_out"]:
        lines.append((Span(f"  {counted(call['changes_left_out'], 'more changes')}", Tone.DIM),))
    return lines


def _result(text: str, width: int) -> list[Line]:
    parts = [piece for part in span(text).text.splitlines() for piece in wrapped(part, width - 4)]
    lines: list[Line] = [(Span("  "), Span(part)) for part in parts[:_MOST_LINES]]
    if len(parts) > _MOST_LINES:
        lines.append((Span(f"  … {counted(len(parts) - _MOST_LINES, 'more lines')}", Tone.DIM),))
    return lines
