"""Alert rules about units: their ends, their starts, their memory, and the errors in their logs.

Invariant: the growth of memory is judged by its own pace and not by a fixed size, because warm-ups and caches level
off.
"""

from __future__ import annotations

import re
import shlex
import time
import zlib
from collections.abc import Collection, Iterator

from agentrl.control.alerts import subjects
from agentrl.control.alerts.rule_types import Condition, Finding, Measured, Rule, RunSnapshot, Threshold
from agentrl.control.alerts.subjects import end_evidence, ends_of, reason
from agentrl.control.state.trends import Trend
from agentrl.formatting.amounts import age, counted, size
from agentrl.formatting.repeated_lines import pattern_of
from agentrl.formatting.sentences import ended
from agentrl.host.repeated_errors import FORGOTTEN_S
from agentrl.protocol.messages import RepeatedError
from agentrl.protocol.rows import HostRow, Severity, UnitRow, UnitState

GROWTH_MIN_BYTES = 64 << 20
GROWTH_MIN_SHARE = 0.1
"""Memory must grow by this share of its first value and by `GROWTH_MIN_BYTES` within the window."""
GROWTH_FIT = 0.8
GROWTH_RECENT_SHARE = 0.75
"""The last third must grow at this share of the pace of the whole window, because warm-ups and caches level off."""
MOST_NAMED = 10
"""The most units that an alert about a repeated error names; those that logged it most often come first."""
LAST_LINE_CHARS = 300
STARTING = (UnitState.STARTING, UnitState.STOPPING, UnitState.BACKOFF)


def _log_of_the_end(found: Measured[UnitRow]) -> str:
    """The command that shows the log of the incarnation that ended. A unit that was never started has no log."""
    unit, run = found.row, found.snapshot.run
    if unit.could_not_start:
        # A missing program is a fault of the run file; a host without room is not.
        temporary = unit.state is UnitState.BACKOFF or run is None
        return "agentrl doctor" if temporary else f"agentrl config check --run {run.name if run else ''}"
    started_again = unit.state not in (UnitState.FATAL, UnitState.BACKOFF)
    return f"agentrl logs {found.name}{' --previous' if started_again else ''}"


def _last_line(found: Measured[UnitRow]) -> str:
    """The last line that the dead incarnation logged. Most programs write the error there."""
    incident = found.snapshot.incidents.get(f"{found.name}.{found.row.incarnation}")
    lines = [line.strip() for line in incident.tail if line.strip()] if incident else []
    return f"last line of its log: {lines[-1][:LAST_LINE_CHARS]}" if lines else ""


def _end_and_state(found: Measured[UnitRow]) -> Iterator[str]:
    yield from end_evidence(found.row)
    yield f"now: {found.row.state}, {reason(found.row)}"


def pending(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    # A unit that waits for a starting unit needs no alert: the start has its own deadline and alert.
    starting = {name for name, unit in snapshot.units.items() if unit.state is UnitState.STARTING}
    coming = {link.who for chain in snapshot.chains if chain.culprit in starting for link in chain.links}
    for name, unit in snapshot.units.items():
        if unit.state is UnitState.PENDING and unit.desired and not unit.paused and name not in coming:
            sentence = f"{name} should run but is not started: {ended(reason(unit))}"
            waits = [chain for chain in snapshot.chains if any(link.who == name for link in chain.links)]
            yield Finding(name, sentence, (reason(unit),), "agentrl why", explained_by=ends_of(snapshot, waits))


def problems(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in snapshot.units.items():
        for thing, sentence in unit.problems.items() if unit.state is UnitState.READY else ():
            subject = f"{name}/{thing.replace(' ', '-')}"
            what = f"{name}: {thing}: {ended(sentence)}"
            yield Finding(subject, what, (f"{name} reports it.",), f"agentrl logs {name}")


def errors_repeat(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    """Find errors that logs repeat: one finding for each error, however many units log it."""
    written: dict[str, list[tuple[str, RepeatedError]]] = {}
    for name, unit in snapshot.units.items():
        for error in unit.repeated_errors:
            written.setdefault(pattern_of(error.text), []).append((name, error))
    for pattern, errors in written.items():
        errors.sort(key=lambda each: -each[1].count)
        worst, most = errors[0]
        logs = f"the log of {worst}" if len(errors) == 1 else f"the logs of {counted(len(errors), 'units')}"
        first, last = min(each.first_at for _, each in errors), max(each.last_at for _, each in errors)
        words = re.match(r"\w[\w. -]*", most.text)
        yield Finding(
            f"{re.sub('[^a-z]+', '-', pattern.lower())[:30].strip('-')}-{zlib.crc32(pattern.encode()):08x}",
            f"An error is in {logs} {counted(sum(each.count for _, each in errors), 'times')}: {ended(most.text)}",
            (
                f"the first at {_clock(first)}, the last at {_clock(last)}",
                *(f"{name}: {counted(each.count, 'times')}" for name, each in errors[:MOST_NAMED]),
                f"ends {age(FORGOTTEN_S)} after the last",
            ),
            f"agentrl logs {worst}" + (f" --grep {shlex.quote(words[0].strip())}" if words else ""),
        )


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def memory_grows(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in snapshot.units.items():
        trend = snapshot.metrics.memory_trend(name)
        if trend is not None and _grows(trend, active=name in active):
            yield Finding(
                name,
                f"The memory of {name} grows by {size(trend.slope_per_h)} per hour.",
                tuple(_growth(trend, unit, snapshot.hosts.get(unit.host))),
                f"agentrl restart {name}",
            )


def _grows(trend: Trend, *, active: bool) -> bool:
    grown = trend.slope_per_h * trend.window_s / 3600
    needed = max(GROWTH_MIN_BYTES, GROWTH_MIN_SHARE * trend.first)
    # An active alert ends when the growth has clearly stopped, not when it varies around the threshold.
    ease = 0.5 if active else 1.0
    return (
        grown >= needed * ease
        and trend.fit >= GROWTH_FIT * ease
        and trend.recent_slope_per_h >= GROWTH_RECENT_SHARE * ease * trend.slope_per_h
    )


def _growth(trend: Trend, unit: UnitRow, host: HostRow | None) -> Iterator[str]:
    yield (
        f"{size(trend.first)} -> {size(trend.last)} in {age(trend.window_s)}, "
        f"a straight line explains {trend.fit:.0%} of it"
    )
    yield f"in the last third: {size(trend.recent_slope_per_h)} per hour; {counted(unit.processes, 'processes')}"
    if host is not None and host.facts.memory_bytes:
        left = max(0, host.facts.memory_bytes - host.memory_used_bytes)
        yield f"{host.host} has {size(left)} left: enough for {age(3600 * left / trend.slope_per_h)} at this pace"


UNIT_RULES = (
    Threshold(
        "unit-fatal",
        subjects=subjects.units,
        value=lambda unit: unit.state is UnitState.FATAL,
        sentence=lambda found: f"{found.name} is fatal and will not be started again: {ended(reason(found.row))}",
        evidence=lambda found: (
            *end_evidence(found.row),
            _last_line(found),
            f"After the cause is removed: agentrl restart {found.name}",
        ),
        cure=_log_of_the_end,
        severity=Severity.PAGE,
        ends_at_once=True,
    ),
    Threshold(
        "unit-restarting",
        subjects=subjects.units,
        value=lambda unit: unit.deaths_in_window if unit.desired and unit.state is not UnitState.FATAL else None,
        above=2,
        clear=1,
        sentence="{subject} keeps dying: {value} deaths in the restart window.",
        evidence=_end_and_state,
        cure=_log_of_the_end,
    ),
    Threshold(
        "unit-never-ready",
        subjects=subjects.units,
        value=lambda unit: (
            unit.attempts if unit.desired and unit.state in STARTING and unit.deaths_in_window == 0 else None
        ),
        above=2,
        sentence="{subject} was started {value} times and never became ready.",
        evidence=_end_and_state,
        cure=_log_of_the_end,
        hold_s=20.0,
    ),
    Threshold(
        "unit-lost",
        subjects=subjects.units,
        value=lambda unit: unit.state is UnitState.LOST,
        sentence=lambda found: f"{found.name} is lost: its host {found.row.host or '(unknown)'} does not answer.",
        evidence=lambda found: (
            f"{found.name}.{found.row.incarnation}, pid {found.row.pid}: {reason(found.row)}",
            "It continues when its host answers again. Use the command only if you know that the process is dead.",
        ),
        cure="agentrl stop {subject} --force",
        hold_s=5.0,
        explained_by=lambda found: (found.row.host,),
    ),
    Threshold(
        "unit-hung",
        subjects=subjects.units,
        value=lambda unit: unit.state is UnitState.SUSPECT,
        sentence=lambda found: f"{found.name} may hang: {ended(reason(found.row))}",
        evidence=lambda found: (
            f"its last report: {f'phase {found.row.phase}, ' if found.row.phase else ''}"
            f"progress {found.row.progress}, status {found.row.status or '(none)'}",
        ),
        cure="agentrl stacks",
        hold_s=30.0,
    ),
    Condition("unit-pending", pending, hold_s=60.0),
    Condition("unit-problem", problems, severity=Severity.PAGE),
    Condition("errors-repeat", errors_repeat),
)


def memory_rule(window_s: float) -> Rule:
    # Half a window (half an hour): for some minutes the end of a warm-up looks like a leak.
    return Condition("unit-memory-grows", memory_grows, hold_s=window_s / 2)
