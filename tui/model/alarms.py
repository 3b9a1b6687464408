"""Alerts in columns, the gravest first."""

from __future__ import annotations

from agentrl.formatting.amounts import moment
from agentrl.formatting.row_text import GRAVEST
from agentrl.protocol.rows import AlertRow, AlertState
from tui.model import cell_text
from tui.model.styled_text import Span, Tone, span
from tui.model.table import Column

SHOWN = (AlertState.FIRING, AlertState.ACKNOWLEDGED, AlertState.RESOLVED)
PASSED = "went away"
_ORDER = {state: place for place, state in enumerate(SHOWN)}


def columns() -> tuple[Column[AlertRow], ...]:
    return (
        Column("severity", "SEVERITY", 9, lambda row, now: _severity(row), gravity),
        Column("state", "STATE", 14, lambda row, now: state(row), lambda row: state(row).text, rank=1),
        Column("since", "FOR", 5, lambda row, now: Span(cell_text.ago(row.since_at, now)), _since, True, 2),
        Column("id", "ALERT", 26, lambda row, now: span(row.id, Tone.STRONG), lambda row: row.id, rank=1),
        Column("quiet", "SENT", 14, _sent, lambda row: row.silenced_until_at, rank=3, optional=True),
        Column("sentence", "WHAT", 20, lambda row, now: span(row.sentence), lambda row: row.sentence, stretches=True),
    )


def state(row: AlertRow) -> Span:
    return cell_text.state(PASSED if row.passed else row.state.value)


def shown(row: AlertRow, *, resolved: bool) -> bool:
    """What went away before it fired is shown as long as it is told: somebody may have seen it coming."""
    return resolved or row.passed or row.state is not AlertState.RESOLVED


def gravity(row: AlertRow) -> tuple[int, int, float]:
    return (_ORDER.get(row.state, len(_ORDER)), GRAVEST.index(row.severity), row.since_at)


def _since(row: AlertRow) -> float:
    return -row.since_at


def _severity(row: AlertRow) -> Span:
    made = cell_text.severity(row.severity)
    return made if row.state is AlertState.FIRING else Span(made.text, Tone.DIM)


def _sent(row: AlertRow, now: float) -> Span:
    if row.silenced_until_at > now:
        return Span(f"× till {moment(row.silenced_until_at)[-8:-3]}", Tone.DIM)
    return Span("")


def keeps(words: frozenset[str], row: AlertRow) -> bool:
    told = f"{row.id} {row.severity.value} {state(row).text} {row.sentence} {row.suggest}".casefold()
    return all(word in told for word in words)
