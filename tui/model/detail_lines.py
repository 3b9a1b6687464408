"""Formats the lines of detail pages: a unit, an incident, an alert, an operation, a knob, the wait chains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentrl.formatting import repeated_lines, wait_chain_text
from agentrl.formatting.amounts import age, counted, duration, moment, size
from agentrl.formatting.row_text import (
    event_text,
    knob_change,
    knob_range,
    knob_value,
    rank_in_words,
    row_kind,
    state_since,
    takes_effect,
)
from agentrl.protocol.control_commands import WhyReport
from agentrl.protocol.knob import plain_value
from agentrl.protocol.messages import Wait
from agentrl.protocol.rows import AlertRow, AnyRow, AuditRow, BottleneckRow, IncidentRow, KnobRow, OperationRow, UnitRow
from agentrl.telemetry.data_plane_metrics import CANARY_AT
from tui.model import cell_text
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, Tone, folded, span, trend, wrapped

_TITLE = 14
SCIENTIFIC = "a change begins a new segment and wants a note"


def page(pairs: Iterable[tuple[str, object]], width: int) -> list[Line]:
    """Titles and values; a long value is wrapped."""
    lines = list[Line]()
    for title, value in pairs:
        if value in ("", None, 0):
            continue
        text = value if isinstance(value, Span) else span(value)
        for number, part in enumerate(wrapped(text.text, max(20, width - _TITLE))):
            head = Span((title if number == 0 else "").ljust(_TITLE), Tone.DIM)
            lines.append((head, Span(part, text.tone)))
    return lines


def _heading(text: str) -> Line:
    return (Span(text, Tone.ACCENT),)


def section(title: str, lines: Iterable[str], width: int) -> Iterator[Line]:
    """A heading with sentences or the last lines of a program below it; long ones are wrapped."""
    found = list(lines)
    if found:
        yield ()
        yield _heading(title)
    for each in found:
        first, *more = wrapped(span(each).text, max(20, width - 4))
        yield (Span("  "), Span(first))
        yield from ((Span("    "), Span(part)) for part in more)


def _wait(wait: Wait) -> str:
    what = f" ({wait.what})" if wait.what and wait.what != wait.on else ""
    return f"{f'{wait.who} ← ' if wait.who else ''}{wait.on}{what}, {age(wait.age_s)}"


def of_unit(row: UnitRow, mirror: Mirror, now: float, width: int) -> list[Line]:
    seen = mirror.trends.get(row.unit)
    room = max(10, min(60, width - 30))
    memory = f"{size(row.rss_bytes)}" if row.rss_bytes else ""
    slope = f", {size(row.rss_slope_bytes_per_h)}/h" if row.rss_slope_bytes_per_h else ""
    due = f"{row.next_what} in {age(row.next_at - now)}" if row.next_at and row.next_what else ""
    deadline = f", at most {age(row.phase_deadline_at - now)} more" if row.phase_deadline_at else ""
    bottleneck = mirror.get("pulse")
    use = bottleneck.units.get(row.unit) if isinstance(bottleneck, BottleneckRow) else None
    processes = counted(row.processes, "processes")
    lines = page(
        (
            ("state", cell_text.state(row.state.value)),
            ("why", row.reason),
            ("for", age(now - state_since(row)) if row.since_at else ""),
            ("next", due),
            ("says", row.status),
            ("phase", f"{row.phase}, for {age(now - row.phase_since_at)}{deadline}" if row.phase else ""),
            ("progress", f"{row.progress}, last {age(now - row.progress_at)} ago" if row.progress_at else ""),
            ("life", f"{row.unit}.{row.incarnation}" if row.incarnation else "none yet"),
            ("gang", _gang(row)),
            ("died", f"{counted(row.restarts, 'times')}, {row.deaths_in_window} lately" if row.restarts else ""),
            ("last exit", row.last_exit),
            ("where", f"host {row.host}, pid {row.pid}, {processes}" if row.pid else row.host),
            ("weights", row.serving or (f"v{row.weights}" if row.weights is not None else "")),
            ("canary", _canary(row, now)),
            ("wanted", "" if row.desired else "no"),
            ("paused", "yes" if row.paused else ""),
            ("busy", f"{use:.0%} of the last intervals" if use is not None else ""),
            ("cpu", f"{row.cpu_percent:.0f} %  {trend(seen.cpu, room, low=0.0) if seen else ''}" if row.pid else ""),
            ("memory", f"{memory}{slope}  {trend(row.rss_over_time, room, low=0.0)}" if memory else ""),
        ),
        width,
    )
    lines += section("waits for", (_wait(wait) for wait in row.waits), width)
    lines += section("metrics", (f"{name}  {value:g}" for name, value in _numbers(row)), width)
    incidents = mirror.incidents(row.unit)[:8]
    lines += section(
        "incidents, the newest first", (f"{moment(each.at)}  {event_text(each)}" for each in incidents), width
    )
    return lines


def _gang(row: UnitRow) -> str:
    if row.rank is None:
        return ""
    rank = row.rank
    place = f"{rank.local_rank} of {rank.local_ranks} on its host"
    return f"{rank_in_words(rank)}, {place}; they meet at {rank.address or 'loopback'}, port {rank.port}"


def _canary(row: UnitRow, now: float) -> str:
    """When an engine passed its last canary; empty for another unit."""
    at = row.metrics.get(CANARY_AT.name)
    return f"passed at {moment(at)}, {age(now - at)} ago" if at is not None else ""


def _numbers(row: UnitRow) -> list[tuple[str, float]]:
    return sorted((name, value) for name, value in row.metrics.items() if name != CANARY_AT.name)


def of_incident(row: IncidentRow, now: float, width: int) -> list[Line]:
    life = f"{row.unit}.{row.incarnation}" if row.incarnation else row.unit
    lines = page(
        (
            ("what", span(row.what, Tone.STRONG)),
            ("whose", life),
            ("when", f"{moment(row.at)}, {age(now - row.at)} ago"),
            ("exit", row.exit),
            ("done", row.done),
            ("host", row.host),
            ("phase", row.phase),
            ("last status", row.status),
            ("stacks", row.stacks),
            ("versions", ", ".join(f"{name} {value}" for name, value in sorted(row.versions.items()))),
        ),
        width,
    )
    lines += section("its last lines", repeated_lines.fold_repeats(row.tail), width)
    lines += section("ended with it", (f"pid {each.pid}  {each.command}  ({each.why})" for each in row.swept), width)
    return lines


def of_alert(row: AlertRow, now: float, width: int) -> list[Line]:
    silenced = row.silenced_until_at > now
    until = f"until {moment(row.silenced_until_at)}, by {row.silenced_by}" if silenced else ""
    lines = page(
        (
            ("what", span(row.sentence, Tone.STRONG)),
            ("severity", cell_text.severity(row.severity)),
            ("state", cell_text.alert_state(row)),
            ("since", f"{moment(row.since_at)}, {age(now - row.since_at)}"),
            ("went away" if row.passed else "resolved", moment(row.resolved_at)),
            ("on it", row.acknowledged_by),
            ("silenced", f"{until}{f': {row.silence_why}' if row.silence_why else ''}" if until else ""),
            ("cause", row.cause),
            ("cure", span(row.suggest, Tone.ACCENT)),
        ),
        width,
    )
    lines += section("evidence", row.evidence, width)
    return lines


def of_operation(row: OperationRow, now: float, width: int) -> list[Line]:
    took = duration((row.ended_at or now) - row.accepted_at)
    lines = page(
        (
            ("what", span(row.summary or row.command, Tone.STRONG)),
            ("state", cell_text.state(row.state.value)),
            ("why", row.reason),
            ("who", row.who),
            ("accepted", moment(row.accepted_at)),
            ("took" if row.ended_at else "for", took),
            ("id", row.id),
        ),
        width,
    )
    lines += section("waits", row.waiting_for, width)
    if row.result:
        # Shown in full, above all a path, because it is the reason to open the page.
        lines += [
            (),
            _heading("result"),
            *page(((name, plain_value(value)) for name, value in row.result.items()), width),
        ]
    lines += section("done", row.lines, width)
    return lines


def of_knob(row: KnobRow, history: Iterable[AuditRow], mirror: Mirror, width: int) -> list[Line]:
    lines = page(
        (
            ("value", span(knob_value(row), Tone.STRONG)),
            ("what", row.help),
            ("allowed", knob_range(row)),
            ("default", plain_value(row.default)),
            ("takes effect", takes_effect(row, mirror.groups)),
            ("scientific", SCIENTIFIC if row.scientific else ""),
            ("applied by", row.owner or "the coordinator"),
            ("revision", row.revision),
        ),
        width,
    )
    history_lines = (
        f"{moment(e.at)}  {e.who}  {e.what}{f' ({e.note})' if e.note else ''}" for e in reversed(list(history))
    )
    lines += section("changes, the newest first", history_lines, width)
    return lines


def of_change(row: KnobRow, mirror: Mirror, now: float, width: int) -> list[Line]:
    """The last change of a knob, as an event."""
    waits = row.in_force is not None and row.in_force != row.value
    pairs = (
        ("what", span(f"{row.name} {knob_change(row)}{f' {row.unit}' if row.unit else ''}", Tone.STRONG)),
        ("who", row.changed_by),
        ("when", f"{moment(row.changed_at)}, {age(now - row.changed_at)} ago" if row.changed_at else ""),
        ("note", row.note),
        ("takes effect", takes_effect(row, mirror.groups)),
        ("in force", f"still {plain_value(row.in_force)}" if waits else ""),
        ("scientific", SCIENTIFIC if row.scientific else ""),
        ("revision", row.revision),
        ("knob", row.help),
    )
    return page(pairs, width)


def of_audit(row: AuditRow, width: int) -> list[Line]:
    pairs = (
        ("what", span(row.what or row.command, Tone.STRONG)),
        ("who", row.who),
        ("when", moment(row.at)),
        ("note", row.note),
        ("operation", row.operation),
    )
    return page(pairs, width)


def of_waits(report: WhyReport, width: int) -> list[Line]:
    chains = wait_chain_text.worth_showing(report.chains)
    if not chains:
        return [(Span(f"✓ {wait_chain_text.NO_WAITS}", Tone.GOOD),)]
    lines: list[Line] = (
        [(Span(f"✓ {wait_chain_text.ALL_WELL}", Tone.GOOD),), ()] if wait_chain_text.all_well(chains) else []
    )
    for chain in chains:
        for number, part in enumerate(wrapped(span(chain.sentence).text, width - 2)):
            lines.append((Span("" if number == 0 else "  "), Span(part, Tone.STRONG)))
        for link in wait_chain_text.of_chain(chain):
            late = (Span("  overdue", Tone.WARN),) if link.overdue else ()
            lines += _indented((span(link.sentence), *late), width)
        called, why = wait_chain_text.end_of(chain)
        end = (Span(f"{called}: ", Tone.DIM), span(why, Tone.WARN if chain.amiss else Tone.PLAIN))
        lines += _indented(end, width)
        lines.append(())
    return lines


def _indented(line: Line, width: int) -> Iterator[Line]:
    """The whole line, wrapped."""
    most = sum(len(part.text) for part in line)
    for number, part in enumerate(folded(line, width - 4, most)):
        yield (Span("  " if number == 0 else "    ", part[0].tone if part else Tone.PLAIN), *part)


def of_row(row: AnyRow, mirror: Mirror, now: float, width: int) -> list[Line]:
    """The page of an event of any kind."""
    match row:
        case IncidentRow():
            return of_incident(row, now, width)
        case AlertRow():
            return of_alert(row, now, width)
        case OperationRow():
            return of_operation(row, now, width)
        case AuditRow():
            return of_audit(row, width)
        case KnobRow():
            return of_change(row, mirror, now, width)
        case _:
            return [(span(f"{row_kind(row)}: {event_text(row)}"),)]
