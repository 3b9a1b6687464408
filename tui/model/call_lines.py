"""Formats the lines of the page of one tool call. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agentrl.formatting import tool_call_text
from agentrl.formatting.amounts import moment
from agentrl.protocol.data_commands import CallStory
from tui.model import cell_text
from tui.model.detail_lines import page
from tui.model.record_detail import text_lines
from tui.model.styled_text import Line, Span, Tone, span


def of_call(story: CallStory, width: int, unfolded: bool) -> list[Line]:
    call, record, turn = story.call, story.record, story.turn
    room = max(20, width - 4)
    trained = ", trained" if call.get("trained") else ""
    took = float(call.get("latency_s") or 0.0)
    pairs: tuple[tuple[str, object], ...] = (
        ("tool", span(tool_call_text.name(call), Tone.STRONG)),
        ("status", span(tool_call_text.ending(call), Tone.WARN if call.get("failed") else Tone.GOOD)),
        ("requested", _moment(call.get("requested_at"))),
        ("took", cell_text.quick(took) if took else ""),
        ("unit", call.get("owner")),
        ("record", f"{record['id']} is {record.get('status')}{trained}: {record['ending']['sentence']}"),
        ("turn", str(turn.get("turn"))),
        ("session", f"{call.get('session')}, {tool_call_text.place(story.session, call['id'])}"),
    )
    pairs += tuple(("replayed", f"{one['verdict'] or one['status']}, by {one['who']}") for one in story.replays)
    made: list[Line] = [(span(call["id"], Tone.STRONG),), (), *page(pairs, width), ()]
    made += text_lines("called", tool_call_text.invocation(call), room, unfolded, Tone.PLAIN)
    title, tone = ("error", Tone.WARN) if call.get("failed") else ("result", Tone.PLAIN)
    made += [(), *text_lines(title, str(call.get("result", "")), room, unfolded, tone)]
    made += [(), *text_lines("turn", str(turn.get("text") or ""), room, unfolded, Tone.DIM)]
    made += [(), (Span("calls of this session", Tone.ACCENT),)]
    return [*made, *(_of_session(one, call["id"]) for one in story.session)]


def _of_session(row: dict[str, Any], shown: str) -> Line:
    mark = "▸" if row["id"] == shown else " "
    tone = Tone.WARN if row.get("error_class") else Tone.PLAIN
    return (
        span(f"  {mark} t{row.get('turn')} "),
        span(f"{tool_call_text.name(row)}  ", Tone.STRONG if mark == "▸" else Tone.PLAIN),
        span(tool_call_text.ending(row), tone),
    )


def _moment(at: Any) -> str:
    return moment(at.timestamp()) if isinstance(at, datetime) else ""
