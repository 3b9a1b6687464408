"""Rows of the feed as text: units, events, alerts and knobs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from agentrl.formatting.amounts import age, since
from agentrl.protocol import rows
from agentrl.protocol.knob import plain_value
from agentrl.protocol.rows import (
    AlertRow,
    AlertState,
    AnyRow,
    GroupRow,
    HostRow,
    KnobRow,
    RunRow,
    Severity,
    UnitRow,
    UnitState,
)
from agentrl.protocol.specs import Rank

SEVERITY_ORDER = (Severity.PAGE, Severity.WARNING, Severity.INFO)
SOON_S = 60.0
LONG_PHASE_S = 5.0


def unit_summary(row: UnitRow, now: float) -> str:
    """One line about a unit: the next event, the reason of its state, and its present work."""
    starting = row.state is UnitState.STARTING
    left = row.next_at - now
    due = f"{row.next_what} in {age(left)}" if left >= 1 else f"{row.next_what} now"
    parts = [due] if row.next_at and row.next_what else []
    # A distant deadline is less interesting than the unit's current work.
    later = [parts.pop()] if parts and starting and left > SOON_S else []
    if row.paused:
        parts.append("paused")
    if row.rank is not None and row.pid:
        parts.append(rank_in_words(row.rank))
    if row.reason and not (row.status and (starting or row.state is UnitState.READY)):
        parts.append(row.reason)
    if row.phase and row.phase != row.state.value:
        # Loops restart their phase on every pass, so a phase lasts long only if the loop is stuck.
        long = row.phase_since_at and now - row.phase_since_at >= LONG_PHASE_S
        parts.append(f"{row.phase} for {since(row.phase_since_at, now)}" if long else row.phase)
    if row.status:
        parts.append(row.status)
    waited_for = dict.fromkeys(wait.on for wait in row.waits if not wait.who)
    parts += [f"waits for {name}" for name in list(waited_for)[:2]]
    if row.state in (UnitState.FATAL, UnitState.BACKOFF) and row.last_exit is not None:
        parts.append(str(row.last_exit))
    return " · ".join([*parts, *later])


def rank_in_words(rank: Rank) -> str:
    return f"rank {rank.rank} of {rank.ranks}, epoch {rank.epoch}"


def clock_text(row: HostRow) -> str:
    """A note that the clock of a host differs from the coordinator's; empty if it does not."""
    off_s = row.clock_off_s
    way = "ahead of" if off_s > 0 else "behind"
    return f"its clock is {age(abs(off_s))} {way} the coordinator's" if off_s else ""


def state_since(row: UnitRow) -> float:
    """The time since which a unit is in its state. A ready unit counts as ready also while it was suspect or lost."""
    return row.ready_at if row.state is UnitState.READY and row.ready_at else row.since_at


def uptime(run: RunRow, now: float) -> str:
    """How long the run has been up since the last `up`; empty if it is down."""
    # Older recordings have no `up_since_at`.
    return since(run.up_since_at or run.started_at, now) if run.desired == "up" else ""


def active_alerts(found: Iterable[AlertRow]) -> list[AlertRow]:
    """Active alerts, the most severe first. A silence stops notifications, not the display."""
    return causes_first(row for row in found if row.state in (AlertState.FIRING, AlertState.ACKNOWLEDGED))


def causes_first(found: Iterable[AlertRow]) -> list[AlertRow]:
    """Alerts, the most severe first, then those that explain the most others. Each one is followed by its
    consequences."""
    return [row for cause, consequences in alerts_by_cause(found) for row in (cause, *consequences)]


def alerts_by_cause(found: Iterable[AlertRow]) -> list[tuple[AlertRow, list[AlertRow]]]:
    """Each alert that no other alert explains, with its direct and indirect consequences."""
    rows = {row.id: row for row in sorted(found, key=lambda row: (row.since_at, row.id))}
    groups: dict[str, list[AlertRow]] = {}
    for row in rows.values():
        first = row
        while first.cause in rows:
            first = rows[first.cause]
        groups.setdefault(first.id, []).extend([row] if row is not first else [])
    made = [(rows[id], consequences) for id, consequences in groups.items()]
    return sorted(made, key=lambda group: (SEVERITY_ORDER.index(group[0].severity), -len(group[1]), group[0].since_at))


def consequences_text(consequences: Iterable[AlertRow]) -> str:
    """The rules of the alerts that this one explains: `causes unit-lost ×12, no-step`."""
    counts = Counter(row.rule for row in consequences)
    named = (rule if count == 1 else f"{rule} ×{count}" for rule, count in counts.items())
    return f"causes {', '.join(named)}" if counts else ""


def slot_order(unit: str) -> tuple[int, str]:
    """Sort key for the units of a group: `web-2` comes before `web-10`."""
    slot = unit.rpartition("-")[2]
    return (int(slot) if slot.isascii() and slot.isdecimal() else -1, unit)


# ---- what happened ----


def row_kind(row: object) -> str:
    return str(row.__struct_config__.tag) if isinstance(row, msgspec.Struct) else ""


def happened_at(row: AnyRow) -> float:
    """The time of the event, for sorting."""
    match row:
        case rows.OperationRow():
            return row.accepted_at
        case rows.AlertRow():
            return row.resolved_at or row.since_at
        case rows.KnobRow():
            return row.changed_at
        case rows.IncidentRow() | rows.AuditRow():
            return row.at
        case _:
            return 0.0


def alert_state(row: rows.AlertRow) -> str:
    return "went away before it fired" if row.passed else row.state.value


def event_text(row: AnyRow) -> str:
    match row:
        case rows.OperationRow():
            why = f": {row.reason}" if row.reason else ""
            return f"{rows.short(row.id)}  {row.summary or row.command}, by {row.who}: {row.state}{why}"
        case rows.AlertRow():
            return f"{row.severity} {row.id}: {row.sentence} ({alert_state(row)})"
        case rows.KnobRow():
            note = f" ({row.note})" if row.note else ""
            return f"{row.name} {knob_change(row)}, by {row.changed_by or 'default'}{note}"
        case rows.IncidentRow():
            exit_ = f" [{row.exit}]" if row.exit else ""
            done = f"; {row.done}" if row.done and row.done not in row.what else ""
            stacks = f"; stacks in {row.stacks}" if row.stacks else ""
            whose = f"{row.unit}.{row.incarnation}" if row.incarnation else row.unit
            return f"{whose}{exit_}: {row.what}{done}{stacks}"
        case rows.AuditRow():
            note = f" ({row.note})" if row.note else ""
            return f"{row.who}: {row.what or row.command}{note}"
        case _:
            return ""


def without_audit_repeats(found: list[AnyRow]) -> list[AnyRow]:
    """Rows without the audit entries of operations that are among them. The operation gets the note of its entry."""
    notes = {row.operation: row.note for row in found if isinstance(row, rows.AuditRow)}
    operations = {row.id for row in found if isinstance(row, rows.OperationRow)}
    return [
        msgspec.structs.replace(row, summary=f"{row.summary} ({notes[row.id]})")
        if isinstance(row, rows.OperationRow) and notes.get(row.id)
        else row
        for row in found
        if not (isinstance(row, rows.AuditRow) and row.operation in operations)
    ]


# ---- knobs ----


def knob_range(row: KnobRow) -> str:
    if row.choices:
        return ", ".join(row.choices)
    low, high = row.minimum, row.maximum
    if low is not None and high is not None:
        return f"{plain_value(low)} to {plain_value(high)}"
    if low is not None:
        return f"{plain_value(low)} or more"
    if high is not None:
        return f"at most {plain_value(high)}"
    return {"bool": "true or false", "int": "a whole number", "float": "a number"}.get(row.kind, "text")


def knob_change(row: KnobRow) -> str:
    """The last change of a knob; only the new value if the old one is unknown."""
    new = plain_value(row.value)
    return f"= {new}" if row.before is None else f"{plain_value(row.before)} -> {new}"


def owner_done(row: KnobRow, groups: Iterable[GroupRow]) -> bool:
    """Whether the group that applies the knob is done and therefore never reaches another boundary."""
    return any(group.name == row.owner and group.done for group in groups)


def takes_effect(row: KnobRow, groups: Iterable[GroupRow]) -> str:
    """The time at which a new value takes effect."""
    return "if run again" if owner_done(row, groups) else row.boundary


def knob_value(row: KnobRow) -> str:
    """The value with its unit, and the value in force if that still differs."""
    shown = f"{plain_value(row.value)}{' ' + row.unit if row.unit else ''}"
    if row.in_force is not None and row.in_force != row.value:
        shown += f" (in force: {plain_value(row.in_force)})"
    return shown
