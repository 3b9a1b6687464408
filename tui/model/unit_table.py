"""Defines the columns of units, one line for all groups, and one line for all hosts."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.formatting.amounts import age
from agentrl.formatting.device_text import count_of
from agentrl.formatting.row_text import slot_order, state_since, unit_summary
from agentrl.protocol.rows import COMPLETED, BottleneckRow, UnitRow, UnitState
from tui.model import cell_text
from tui.model.host_table import stray
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, Tone, span, trend
from tui.model.table import Column

_URGENCY = {
    state: place
    for place, state in enumerate(
        ("fatal", "lost", "backoff", "suspect", "stopping", "draining", "starting", "pending", "ready", "stopped")
    )
}
HOT_CPU = 90.0
PART = "/"
"""Between the name of a unit and that of its part, such as a tool server."""
_STATES = {"serving": UnitState.READY, "starting": UnitState.STARTING, "down": UnitState.BACKOFF}


def columns(mirror: Mirror) -> tuple[Column[UnitRow], ...]:
    """Columns of units, with curves of what this console has sampled. 80 columns have room for the lowest ranks, deaths
    among them."""
    seen = _Seen(mirror)
    return (
        Column("unit", "UNIT", 12, _name, _by_name),
        Column("state", "STATE", 11, _state, lambda row: _URGENCY.get(row.state.value, 99)),
        Column(
            "since", "FOR", 5, lambda row, now: span(cell_text.ago(state_since(row), now)), _negative_since, True, 2
        ),
        Column("host", "HOST", 12, seen.host, lambda row: row.host, rank=8, optional=True),
        Column("pid", "PID", 8, lambda row, now: span(row.pid or ""), lambda row: row.pid, True, 10),
        Column("life", "LIFE", 4, lambda row, now: span(row.incarnation or ""), lambda row: row.incarnation, True, 5),
        Column("died", "DIED", 4, _died, lambda row: row.restarts, True, 1),
        Column("cpu", "CPU", 5, _cpu, lambda row: row.cpu_percent, True, 4),
        Column("cpu-trend", "", 10, seen.cpu_trend, lambda row: row.cpu_percent, rank=7),
        Column("memory", "MEM", 5, _memory, lambda row: row.rss_bytes, True, 3),
        Column("memory-trend", "", 10, seen.memory_trend, lambda row: row.rss_slope_bytes_per_h, rank=9),
        Column(
            "weights",
            "WTS",
            5,
            _weights,
            lambda row: -1 if row.weights is None else row.weights,
            True,
            6,
            optional=True,
        ),
        Column("busy", "BUSY", 5, seen.busy, seen.by_use, True, 6, optional=True),
        Column("what", "WHAT", 24, _what, lambda row: row.status or row.reason, stretches=True),
    )


class _Seen:
    """Cells that show more than the row of a unit: what this console knows of the run and has sampled."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def cpu_trend(self, row: UnitRow, now: float) -> Span:
        seen = self._mirror.trends.get(row.unit)
        return Span(trend(seen.cpu, 10, low=0.0, high=max(100.0, *seen.cpu)) if seen and seen.cpu else "", Tone.DIM)

    def memory_trend(self, row: UnitRow, now: float) -> Span:
        seen = self._mirror.trends.get(row.unit)
        values = row.rss_over_time or (seen.memory if seen else ())
        return Span(trend(values, 10, low=0.0), Tone.DIM) if values else Span("")

    def host(self, row: UnitRow, now: float) -> Span:
        """The host, if the run has several. With one host, the line of hosts names it and the status gets its width."""
        return span(row.host if len(self._mirror.hosts) > 1 else "")

    def busy(self, row: UnitRow, now: float) -> Span:
        use = self._use(row)
        return Span("" if use is None else f"{use:.0%}")

    def by_use(self, row: UnitRow) -> float:
        use = self._use(row)
        return -1.0 if use is None else use

    def _use(self, row: UnitRow) -> float | None:
        bottleneck = self._mirror.get("pulse")
        return bottleneck.units.get(row.unit) if isinstance(bottleneck, BottleneckRow) else None


def parts(row: UnitRow) -> dict[str, UnitRow]:
    """Rows of the parts of a unit, by their keys, to be shown below it."""
    return {
        f"{row.unit}{PART}{part.name}": UnitRow(
            f"{row.unit}{PART}{part.name}",
            row.group,
            "tool server",
            _STATES.get(part.state, UnitState.BACKOFF) if row.state is UnitState.READY else row.state,
            host=row.host,
            status=part.status,
            restarts=part.died,
            deaths_in_window=part.died,
        )
        for part in row.parts
    }


def _by_name(row: UnitRow) -> tuple[str, int, str, str]:
    unit, _, part = row.unit.partition(PART)
    return (row.group, *slot_order(unit), part)


def _name(row: UnitRow, now: float) -> Span:
    _, is_part, part = row.unit.partition(PART)
    return Span(f"└ {part}", Tone.PLAIN) if is_part else span(row.unit, Tone.STRONG)


def _negative_since(row: UnitRow) -> float:
    return -state_since(row)


def _state(row: UnitRow, now: float) -> Span:
    return cell_text.state(COMPLETED if row.done else row.state.value)


def _died(row: UnitRow, now: float) -> Span:
    return span(row.restarts or "", Tone.WARN if row.deaths_in_window else Tone.PLAIN)


def _cpu(row: UnitRow, now: float) -> Span:
    if not row.pid:
        return Span("")
    return Span(f"{row.cpu_percent:.0f}%", Tone.STRONG if row.cpu_percent >= HOT_CPU else Tone.PLAIN)


def _memory(row: UnitRow, now: float) -> Span:
    return Span(cell_text.small_size(row.rss_bytes) if row.rss_bytes else "")


def _weights(row: UnitRow, now: float) -> Span:
    """The version that it serves, or with an arrow the one that it loads, because `loading(v3→v4)` does not fit."""
    doing, _, versions = row.serving.removesuffix(")").partition("(")
    if not versions:
        return span("" if row.weights is None else f"v{row.weights}")
    return span(f"→{versions.rpartition('→')[2]}" if doing == "loading" else versions)


def _what(row: UnitRow, now: float) -> Span:
    troubled = row.state in (UnitState.FATAL, UnitState.LOST, UnitState.BACKOFF, UnitState.SUSPECT)
    return span(unit_summary(row, now), Tone.PLAIN if troubled else Tone.DIM)


def strengths(mirror: Mirror) -> Line:
    """All groups, desired against actual, on one line; groups that differ from desired state come first."""
    down = mirror.run is not None and mirror.run.desired == "down"
    made = [cell_text.strength(row, down=down) for row in mirror.groups]
    order = {Tone.BAD: 0, Tone.WARN: 1, Tone.BUSY: 2}
    return _joined(sorted(made, key=lambda part: order.get(part.tone, 3)))


def hosts(mirror: Mirror) -> Line:
    """All hosts on one line: state, faults, load, memory, free disk."""
    parts = list[Span]()
    for row in mirror.hosts:
        facts = row.facts
        memory = f" mem {cell_text.small_size(row.memory_used_bytes)}/{cell_text.small_size(facts.memory_bytes)}"
        disk = f" disk {cell_text.small_size(row.disk_free_bytes)} free" if row.disk_free_bytes else ""
        fills = f" full in {age(row.disk_full_in_s)}" if row.disk_full_in_s is not None else ""
        free = count_of(row)
        devices = f" gpu {free}" if free else ""
        measured = f"cpu {row.cpu_percent:.0f}%{memory if facts.memory_bytes else ''}{devices}{disk}{fills}"
        well = row.state == "up" and not row.disk_full and not fills
        wrong = " ".join(part for part in (row.reason, row.disk_full, stray(row)) if part)
        text = f"{row.host} {row.state} {f'{wrong} ' if wrong else ''}{measured}"
        parts.append(span(text, Tone.PLAIN if well and not wrong else Tone.BAD))
    return _joined(parts)


def _joined(parts: Iterable[Span]) -> Line:
    made = list[Span]()
    for part in parts:
        made += [part, Span(" · ", Tone.DIM)]
    return tuple(made[:-1])


def searched_text(row: UnitRow) -> str:
    return f"{row.unit} {row.state.value} {row.host} {row.role} {row.status} {row.reason} {row.phase}"
