"""Formats the blocks of the first screen, the most important first.

Invariants:
- At most three lines for alerts and two for each other block, so everything fits 80×24.
- A block without data is not shown.
- A line that is too long is wrapped into free rows, and cut if there are none.
- The least important part is at the end of a line, where lines are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from agentrl.formatting.amounts import age
from agentrl.formatting.row_text import consequences_text, event_text, happened_at, knob_change
from agentrl.formatting.wait_chain_text import worth_showing
from agentrl.protocol.control_commands import WhyReport
from agentrl.protocol.rows import (
    AlertRow,
    AlertState,
    BottleneckRow,
    IncidentRow,
    KnobRow,
    OperationRow,
    UnitRow,
    UnitState,
)
from tui.model import cell_text, training_status, unit_table
from tui.model.actions import Action, sign
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, Tone, cut, folded, span, trend, width_of
from tui.model.training_status import TrainingFacts

CURE_KEYS = ("a", "b", "c")
MOST_LINES = 2
MOST_ROWS = 3
"""Rows that a long line may take."""
_TITLE = 12
_INDENT = "  "
"""Before wrapped rows."""
NOTHING = TrainingFacts()
_SOON_S = 24 * 3600.0
_CURVE_FROM = 110
"""Width from which there is room for curves."""


def blocks(
    mirror: Mirror,
    why: WhyReport | None,
    now: float,
    width: int,
    height: int,
    seen: TrainingFacts = NOTHING,
    after: Line = (),
) -> list[Line]:
    """The blocks from top to bottom, each row of exactly that width; if they do not fit, the lower ones lose their
    second lines first. `after` names the next actions when training is complete."""
    found = training_status.report(mirror.of(UnitRow), seen)
    bound = mirror.get("knob/bound")
    oldest = bound.value if isinstance(bound, KnobRow) and isinstance(bound.value, int) else None
    made = [
        ("Needs you", _needs_you(mirror, now)),
        ("Complete", training_status.completion(found, after)),
        ("Learning", training_status.learned(found, seen, now)),
        ("Moving", _moving(mirror, seen, now)),
        ("Bottleneck", _bottleneck(mirror, why, now, width - _TITLE)),
        ("Data", training_status.data(found, seen, oldest)),
        ("Policy", training_status.policy(found)),
        ("Fleet", _fleet(mirror)),
        ("Last change", _last_change(mirror, now)),
        ("At risk", _at_risk(mirror, found, seen, now)),
        ("Machine", _machine(mirror, width)),
    ]
    _fit(made, height)
    _unfold(made, width - _TITLE, height)
    return [line for title, lines in made for line in _block(title, lines, width)]


def _fit(made: list[tuple[str, list[Line]]], height: int) -> None:
    for least in (1, 0):
        for _, lines in reversed(made[1:]):
            while len(lines) > least and sum(len(each) for _, each in made) > height:
                lines.pop()


def _unfold(made: list[tuple[str, list[Line]]], room: int, height: int) -> None:
    """Give free rows to lines that would be cut: one more each from the top on, then another one."""
    free = height - sum(len(lines) for _, lines in made)
    width = room - len(_INDENT)
    wanted = [
        (lines, place, min(MOST_ROWS, len(folded(each, width, MOST_ROWS))))
        for _, lines in made
        for place, each in enumerate(lines)
        if width_of(each) > room
    ]
    rows = [1] * len(wanted)
    for more in range(2, MOST_ROWS + 1):
        for number, (_, _, most) in enumerate(wanted):
            if free > 0 and most >= more:
                rows[number], free = more, free - 1
    # From the bottom up, so that the indexes above stay valid.
    for (lines, place, _), taken in reversed(list(zip(wanted, rows, strict=True))):
        if taken > 1:
            first, *others = folded(lines[place], width, taken)
            lines[place : place + 1] = [first, *((Span(_INDENT), *each) for each in others)]


def _block(title: str, lines: list[Line], width: int) -> Iterator[Line]:
    for number, each in enumerate(lines):
        head = Span((title if number == 0 else "").ljust(_TITLE), Tone.ACCENT)
        yield cut((head, *each), width)


_NEXT = (("go.training", "list.checkpoints"), ("go.records", "records.export"))
"""Next actions when training is complete: a view, and a key in it."""


def what_next(possible: Iterable[Action], *, up: bool) -> Line:
    """The next actions that are allowed, as pairs of keys, and how a run that is `up` is ended."""
    known = {action.id: action for action in possible if action.keys}
    ways = [(known[view], known[then]) for view, then in _NEXT if view in known and then in known]
    keys = [(f"{sign(view.keys[0])} {sign(then.keys[0])}", then.title) for view, then in ways]
    parts = list[Span]()
    for what, meaning in (*keys, *([("agentrl down", "ends the run")] if up else [])):
        parts += [Span(" · " if parts else "", Tone.DIM), Span(what, Tone.ACCENT), Span(f" {meaning}", Tone.DIM)]
    return tuple(parts)


def _needs_you(mirror: Mirror, now: float) -> list[Line]:
    firing = mirror.firing_by_cause
    if not firing:
        if not mirror.link.connected and not mirror.link.tries:
            return [(Span("not known yet: connecting", Tone.BUSY),)]
        state = mirror.run.state if mirror.run else ""
        if state == "running" and not mirror.link.connected:
            return [(Span("not known without a connection", Tone.WARN),)]
        calm = state in ("running", "finished", "stopped")
        return [(Span("✓ nothing", Tone.GOOD) if calm else Span("no alert yet", Tone.DIM),)]
    lines = [alert_line(row, now, key, others) for (row, others), key in zip(firing, CURE_KEYS, strict=False)]
    if (more := len(firing) - len(lines)) > 0:
        lines[-1] = (*lines[-1], Span(f"  and {more} more", Tone.DIM))
    return lines


def alert_line(row: AlertRow, now: float, key: str, consequences: Sequence[AlertRow] = ()) -> Line:
    taken = row.state is AlertState.ACKNOWLEDGED
    by = f" (acknowledged by {row.acknowledged_by})" if taken and row.acknowledged_by else ""
    quiet = " (silenced)" if row.silenced_until_at > now else ""
    return (
        Span(f"[{key}] ", Tone.ACCENT),
        Span(f"{cell_text.severity(row.severity).text} ", Tone.DIM if taken else cell_text.severity(row.severity).tone),
        Span(f"{cell_text.ago(row.since_at, now)} ", Tone.DIM),
        span(f"{row.sentence}{by}{quiet}", Tone.DIM if taken else Tone.PLAIN),
        span(f" ({consequences_text(consequences)})" if consequences else "", Tone.DIM),
    )


# ---- progress ----


def _moving(mirror: Mirror, seen: TrainingFacts, now: float) -> list[Line]:
    """Ages of the last step, publication and record; names the unit without progress for longest."""
    lines = [line] if (line := training_status.moved(seen, now)) else []
    moving = [row for row in mirror.of(UnitRow) if row.progress and row.progress_at and row.state is UnitState.READY]
    if not moving:
        return lines
    newest, oldest = max(row.progress_at for row in moving), min(moving, key=lambda row: row.progress_at)
    units = [Span("last progress ", Tone.DIM), Span(f"{cell_text.ago(newest, now)} ago", Tone.STRONG)]
    stands = now - oldest.progress_at
    if len(moving) > 1 and stands > 10.0:
        tone = Tone.WARN if stands > 60.0 else Tone.PLAIN
        units += [Span(" · longest without any: ", Tone.DIM), span(f"{oldest.unit}, {cell_text.brief(stands)}", tone)]
    return [*lines, tuple(units)]


def _bottleneck(mirror: Mirror, why: WhyReport | None, now: float, room: int) -> list[Line]:
    """One sentence on the bottleneck; without a data plane, the wait chains."""
    bottleneck = mirror.get("pulse")
    if isinstance(bottleneck, BottleneckRow) and bottleneck.sentence:
        since = f", for {age(now - bottleneck.since_at)}" if bottleneck.bottleneck and bottleneck.since_at else ""
        waits, _, what_it_hangs_on = bottleneck.sentence.rpartition("; ")
        if waits and len(bottleneck.sentence) > room:
            # The cause is at the end of the sentence, where a narrow line is cut.
            if bottleneck.bottleneck == "tools":
                return [(span(waits),), (span(what_it_hangs_on), Span(since, Tone.DIM))]
            return [(span(f"{what_it_hangs_on}; {waits}"), Span(since, Tone.DIM)), *_tools(bottleneck)]
        return [(span(bottleneck.sentence), Span(since, Tone.DIM)), *_tools(bottleneck)]
    chains = worth_showing(why.chains) if why is not None else []
    lines: list[Line] = [(span(chain.sentence),) for chain in chains[:MOST_LINES]]
    if (more := len(chains) - len(lines)) > 0:
        lines[-1] = (*lines[-1], Span(f" and {more} more", Tone.DIM))
    return lines


def _tools(bottleneck: BottleneckRow) -> list[Line]:
    """The tools that take most of the time."""
    parts = list[Span]()
    for tool in bottleneck.tools[:4]:
        failing = f" fails {tool.failures:.0%}" if tool.failures >= 0.005 else ""
        rate = f" {tool.calls_per_s:.1f}/s"
        parts.append(span(f"{tool.name}{rate} p95 {tool.p95_s:.2g} s", Tone.PLAIN))
        parts.append(Span(f"{failing}  ", Tone.WARN if failing else Tone.DIM))
    return [tuple(parts)] if parts else []


# ---- the fleet ----


def _fleet(mirror: Mirror) -> list[Line]:
    strengths = unit_table.strengths(mirror)
    bad = [row for row in mirror.of(UnitRow) if row.desired and not row.done and row.state in _TROUBLED]
    if not bad:
        return [strengths] if strengths else []
    worst = min(bad, key=lambda row: (_TROUBLED.index(row.state), row.since_at))
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    why = f": {worst.reason}" if worst.reason else ""
    line = (span(f"{worst.unit} is {worst.state.value}{more}{why}", cell_text.state(worst.state.value).tone),)
    return [strengths, line]


_TROUBLED = (UnitState.FATAL, UnitState.LOST, UnitState.BACKOFF, UnitState.SUSPECT)


def _machine(mirror: Mirror, width: int) -> list[Line]:
    shown = unit_table.hosts(mirror)
    if not shown:
        return []
    cpu = sum(row.cpu_percent for row in mirror.of(UnitRow))
    memory = sum(row.rss_bytes for row in mirror.of(UnitRow))
    run = [Span("units use ", Tone.DIM), Span(f"cpu {cpu:.0f}% mem {cell_text.small_size(memory)}", Tone.PLAIN)]
    if width >= _CURVE_FROM and mirror.load:
        run += [Span("  "), Span(trend(mirror.load, min(60, width // 4), low=0.0), Tone.ACCENT)]
    return [shown, tuple(run)]


def operation_line(row: OperationRow, now: float) -> Line:
    waiting = f": {cell_text.waited_for(row.waiting_for[:3])}" if row.waiting_for else ""
    more = f" and {len(row.waiting_for) - 3} more" if len(row.waiting_for) > 3 else ""
    head = f"{row.summary or row.command} by {row.who}, {age(now - row.accepted_at)}"
    return (span(f"{head}{waiting}{more}", Tone.BUSY),)


def _at_risk(mirror: Mirror, found: training_status.Report, seen: TrainingFacts, now: float) -> list[Line]:
    """The work that would be lost now, and the time until a disk is full."""
    parts = [lost] if (lost := training_status.at_risk(found, seen, now)).text else []
    filling = [row for row in mirror.hosts if row.disk_full_in_s is not None]
    if filling:
        first = min(filling, key=lambda row: row.disk_full_in_s or 0.0)
        left = first.disk_full_in_s or 0.0
        tone = Tone.WARN if left < _SOON_S else Tone.PLAIN
        parts += [Span(" · " if parts else ""), span(f"disk of {first.host} is full in {age(left)}", tone)]
    return [tuple(parts)] if parts else []


def _last_change(mirror: Mirror, now: float) -> list[Line]:
    """Running operations; then the newest events: a person's command, a change, or an incident."""
    coming = mirror.under_way
    lines = [operation_line(row, now) for row in coming[-MOST_LINES:]]
    if lines and (more := len(coming) - len(lines)) > 0:
        lines[-1] = (*lines[-1], Span(f" and {more} more", Tone.DIM))
    return [*lines, *_happened(mirror, now)][:MOST_LINES]


def _happened(mirror: Mirror, now: float) -> list[Line]:
    found: list[tuple[float, Line]] = []
    for kind, of in _HAPPENED.items():
        rows = [row for row in mirror.of(kind) if happened_at(row) > 0 and of(row)]
        if rows:
            newest = max(rows, key=happened_at)
            tone = Tone.WARN if isinstance(newest, IncidentRow) else Tone.PLAIN
            line = (Span(f"{cell_text.ago(happened_at(newest), now)} ago ", Tone.DIM), span(_short(newest), tone))
            found.append((happened_at(newest), line))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [line for _, line in found[:MOST_LINES]]


_HAPPENED: dict[type[OperationRow | KnobRow | IncidentRow], Callable[[object], bool]] = {
    OperationRow: lambda row: isinstance(row, OperationRow) and row.state.ended,
    KnobRow: lambda row: isinstance(row, KnobRow) and row.changed_at > 0,
    IncidentRow: lambda row: True,
}


def _short(row: OperationRow | KnobRow | IncidentRow) -> str:
    match row:
        case OperationRow():
            return f"{row.summary or row.command} by {row.who}: {row.state.value}"
        case KnobRow():
            return f"{row.name} {knob_change(row)} by {row.changed_by or 'default'}"
        case IncidentRow():
            return event_text(row)
