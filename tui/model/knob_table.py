"""Knobs in columns, and what a value that is being typed means."""

from __future__ import annotations

from agentrl.errors import AgentrlError
from agentrl.formatting.row_text import allowed, takes_effect
from agentrl.protocol.knob import KnobValue, knob_of, plain_value
from agentrl.protocol.rows import KnobRow
from tui.model import cell_text
from tui.model.mirror import Mirror
from tui.model.styled_text import Span, Tone, span
from tui.model.table import Column


def columns(mirror: Mirror) -> tuple[Column[KnobRow], ...]:
    return (
        Column("name", "KNOB", 34, lambda row, now: span(row.name, Tone.STRONG), lambda row: row.name, least=16),
        Column("value", "VALUE", 12, _value, lambda row: plain_value(row.value), True),
        Column("in-force", "IN FORCE", 10, _in_force, lambda row: plain_value(row.in_force), True, 6, optional=True),
        Column("default", "DEFAULT", 9, _default, lambda row: plain_value(row.default), True, 4),
        Column("allowed", "ALLOWED", 20, lambda row, now: span(allowed(row), Tone.DIM), allowed, rank=5),
        Column(
            "boundary", "TAKES EFFECT", 14, lambda row, now: _boundary(row, mirror), lambda row: row.boundary, rank=2
        ),
        Column("changed", "CHANGED", 7, _changed, lambda row: -row.changed_at, True, 1, optional=True),
        Column(
            "by",
            "BY",
            14,
            lambda row, now: span(row.changed_by, Tone.DIM),
            lambda row: row.changed_by,
            rank=3,
            optional=True,
        ),
        Column(
            "help", "WHAT", 12, lambda row, now: span(row.help, Tone.DIM), lambda row: row.help, rank=7, stretches=True
        ),
    )


def _value(row: KnobRow, now: float) -> Span:
    tuned = row.value != row.default
    return span(f"{plain_value(row.value)}{f' {row.unit}' if row.unit else ''}", Tone.ACCENT if tuned else Tone.PLAIN)


def _in_force(row: KnobRow, now: float) -> Span:
    waits = row.in_force is not None and row.in_force != row.value
    return span(f"still {plain_value(row.in_force)}" if waits else "", Tone.BUSY)


def _default(row: KnobRow, now: float) -> Span:
    return span(plain_value(row.default), Tone.DIM)


def _boundary(row: KnobRow, mirror: Mirror) -> Span:
    text = f"{takes_effect(row, mirror.groups)}{' ◆' if row.scientific else ''}"
    return span(text, Tone.WARN if row.scientific else Tone.DIM)


def _changed(row: KnobRow, now: float) -> Span:
    return Span(cell_text.ago(row.changed_at, now), Tone.PLAIN)


def keeps(words: frozenset[str], row: KnobRow) -> bool:
    shown = f"{row.name} {row.owner} {row.boundary} {row.help} {row.changed_by}".casefold()
    shown += " scientific" if row.scientific else ""
    shown += " changed tuned" if row.value != row.default else ""
    return all(word in shown for word in words)


def meant(row: KnobRow, text: str) -> tuple[KnobValue, str]:
    """The value that was typed, and what is wrong with it."""
    try:
        value = knob_of(row).parse(text.strip())
    except AgentrlError as wrong:
        return None, wrong.message
    return value, ""
