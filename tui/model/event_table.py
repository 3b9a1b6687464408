"""Defines the columns and texts of events: operations, incidents, changes of knobs, alerts, and the audit."""

from __future__ import annotations

from agentrl.formatting.amounts import moment
from agentrl.formatting.row_text import happened_at, knob_change, row_kind
from agentrl.protocol.rows import AlertRow, AnyRow, AuditRow, IncidentRow, KnobRow, OperationRow, short
from tui.model import cell_text
from tui.model.styled_text import Span, Tone, span
from tui.model.table import Column

KINDS = ("operation", "incident", "knob", "alert", "audit")


def columns() -> tuple[Column[AnyRow], ...]:
    return (
        Column("at", "WHEN", 8, lambda row, now: span(moment(happened_at(row))[-8:], Tone.DIM), happened_at),
        Column(
            "ago", "AGO", 5, lambda row, now: Span(cell_text.ago(happened_at(row), now), Tone.DIM), happened_at, True, 4
        ),
        Column("kind", "KIND", 10, lambda row, now: _kind(row), row_kind, rank=1),
        Column("subject", "WHOSE", 16, lambda row, now: span(subject(row), Tone.STRONG), subject, rank=2),
        Column("state", "STATE", 12, lambda row, now: _state(row), lambda row: _state(row).text, rank=3),
        Column("what", "WHAT", 24, lambda row, now: span(what(row), _tone(row)), what, stretches=True),
    )


def key_of(row: AnyRow) -> str:
    """One key per event, the same in the feed and in the answer to a query."""
    match row:
        case OperationRow():
            return f"op/{row.id}"
        case IncidentRow():
            return f"incident/{row.id}"
        case AlertRow():
            return f"alert/{row.id}/{row.since_at}"
        case AuditRow():
            return f"audit/{row.seq}"
        case KnobRow():
            return f"knob/{row.name}/{row.revision}"
        case _:
            return row_kind(row)


def _kind(row: AnyRow) -> Span:
    return Span(row_kind(row), Tone.WARN if isinstance(row, IncidentRow) else Tone.DIM)


def subject(row: AnyRow) -> str:
    match row:
        case IncidentRow():
            return f"{row.unit}.{row.incarnation}" if row.incarnation else row.unit
        case AlertRow():
            return row.subject
        case KnobRow():
            return row.name
        case OperationRow():
            return short(row.id)
        case AuditRow():
            return row.command
        case _:
            return ""


def _state(row: AnyRow) -> Span:
    match row:
        case OperationRow() | AlertRow():
            return cell_text.state(row.state.value)
        case IncidentRow():
            return span(row.exit or "", Tone.WARN)
        case _:
            return Span("")


def what(row: AnyRow) -> str:
    match row:
        case OperationRow():
            return f"{row.summary or row.command}, by {row.who}{f': {row.reason}' if row.reason else ''}"
        case IncidentRow():
            return f"{row.what}{f'; {row.done}' if row.done and row.done not in row.what else ''}"
        case AlertRow():
            return row.sentence
        case KnobRow():
            by = row.changed_by or "default"
            return f"{knob_change(row)}, by {by}{f' ({row.note})' if row.note else ''}"
        case AuditRow():
            return f"{row.what or row.command}, by {row.who}{f' ({row.note})' if row.note else ''}"
        case _:
            return ""


def _tone(row: AnyRow) -> Tone:
    return Tone.PLAIN if isinstance(row, IncidentRow | AlertRow) else Tone.DIM


def searched_text(row: AnyRow) -> str:
    return f"{row_kind(row)} {subject(row)} {_state(row).text} {what(row)}"
