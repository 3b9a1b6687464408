"""Defines the columns of hosts, and formats what runs on a host and what waits for a place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agentrl.formatting.amounts import age, counted, size
from agentrl.formatting.device_text import COLUMNS, cells_of, count_of
from agentrl.formatting.row_text import clock_text, state_since, unit_summary
from agentrl.protocol.effects import few_names
from agentrl.protocol.rows import HostRow, UnitRow, UnitState
from tui.model import cell_text
from tui.model.detail_lines import page, section
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, Tone, span
from tui.model.table import Column, text_column

_ORDER = {state: place for place, state in enumerate(("lost", "silent", "draining", "up"))}
_COMMAND = 40
"""Characters of a command line that are shown."""


Groups = Mapping[str, Mapping[str, int]]
"""By host: the number of units of each group there."""


def columns(groups: Callable[[], Groups]) -> tuple[Column[HostRow], ...]:
    """`groups` is counted once for all rows."""

    def memory(row: HostRow, now: float) -> Span:
        total = row.facts.memory_bytes
        used = cell_text.small_size(row.memory_used_bytes)
        return Span(f"{used}/{cell_text.small_size(total)}" if total else used)

    def runs(row: HostRow) -> str:
        return faults(row) or ", ".join(f"{group} {count}" for group, count in groups().get(row.host, {}).items())

    return (
        text_column("host", "HOST", 20, lambda row: row.host, Tone.STRONG, least=8),
        Column("state", "STATE", 9, lambda row, now: _state(row), lambda row: _ORDER.get(row.state, -1)),
        Column("since", "FOR", 5, lambda row, now: Span(cell_text.ago(row.since_at, now)), _newest, True, 3),
        Column("units", "UNITS", 5, lambda row, now: Span(str(row.units)), lambda row: row.units, True),
        Column("cpu", "CPU", 5, lambda row, now: Span(f"{row.cpu_percent:.0f}%"), _cpu, True, 1),
        Column("memory", "MEMORY", 11, memory, lambda row: row.memory_used_bytes, True, 2),
        text_column("devices", "DEVICES", 14, count_of, rank=1, optional=True),
        Column("disk", "DISK FREE", 9, lambda row, now: _disk(row), lambda row: row.disk_free_bytes, True, 2),
        Column(
            "what",
            "RUNS",
            16,
            lambda row, now: span(runs(row), Tone.BAD if faults(row) else Tone.PLAIN),
            runs,
            stretches=True,
        ),
    )


def _newest(row: HostRow) -> float:
    return -row.since_at


def _cpu(row: HostRow) -> float:
    return row.cpu_percent


def _state(row: HostRow) -> Span:
    tones = {"up": Tone.GOOD, "draining": Tone.BUSY, "silent": Tone.WARN}
    return span(row.state, tones.get(row.state, Tone.BAD))


def _disk(row: HostRow) -> Span:
    free = cell_text.small_size(row.disk_free_bytes) if row.disk_free_bytes else ""
    return Span(free, Tone.BAD if row.disk_full or row.disk_full_in_s is not None else Tone.PLAIN)


def groups_of(mirror: Mirror) -> Groups:
    counts: dict[str, dict[str, int]] = {}
    for unit in mirror.units:
        if unit.state not in _ELSEWHERE:
            there = counts.setdefault(unit.host, {})
            there[unit.group] = there.get(unit.group, 0) + 1
    return counts


def units_of(mirror: Mirror, host: str) -> list[UnitRow]:
    """The units that have, or may have left, a process there."""
    return [unit for unit in mirror.units if unit.host == host and unit.state not in _ELSEWHERE]


_ELSEWHERE = (UnitState.PENDING, UnitState.STOPPED, UnitState.BACKOFF, UnitState.FATAL)


def faults(row: HostRow) -> str:
    """What is wrong with the host; empty if nothing is wrong."""
    fills = f"its disk is full in {age(row.disk_full_in_s)}" if row.disk_full_in_s is not None else ""
    return "; ".join(part for part in (row.reason, row.disk_full, fills, clock_text(row), stray(row)) if part)


def stray(row: HostRow) -> str:
    """The first process on the host that belongs to no living unit, and the number of the others."""
    if not row.strays:
        return ""
    first, more = row.strays[0], len(row.strays) - 1
    others = f" and {more} more" if more else ""
    return f"stray: pid {first.pid} {first.command[:_COMMAND]}{others} ({first.why})"


def waiting_for_a_place(mirror: Mirror) -> list[str]:
    """One sentence for each reason why units are on no host."""
    reasons: dict[str, list[str]] = {}
    for unit in mirror.units:
        if unit.state is UnitState.PENDING and unit.desired and unit.reason:
            reasons.setdefault(unit.reason, []).append(unit.unit)
    return [f"{few_names(units, 4)}: {reason}" for reason, units in reasons.items()]


def of_host(row: HostRow, mirror: Mirror, now: float, width: int) -> list[Line]:
    """Everything about one host."""
    facts = row.facts
    used, total = size(row.memory_used_bytes), size(facts.memory_bytes) if facts.memory_bytes else ""
    lines = page(
        (
            ("state", _state(row)),
            ("for", age(now - row.since_at) if row.since_at else ""),
            ("wrong", span(faults(row), Tone.BAD) if faults(row) else ""),
            ("cpu", f"{row.cpu_percent:.0f} % of {counted(facts.cpus, 'processors')}"),
            ("memory", f"{used} of {total}" if total else used),
            ("disk", f"{size(row.disk_free_bytes)} free" if row.disk_free_bytes else ""),
            ("agent", f"pid {row.agent_pid}, version {facts.agent_version}" if row.agent_pid else ""),
            ("devices", facts.without_devices or count_of(row)),
        ),
        width,
    )
    lines += section("devices", _devices(row), width)
    there = units_of(mirror, row.host)
    lines += section("units", (f"{unit.unit}  {_unit(unit, now)}" for unit in there), width)
    lines += section("waits for a place", waiting_for_a_place(mirror), width)
    return lines


def _devices(row: HostRow) -> Iterable[str]:
    for cells in cells_of(row):
        yield ", ".join(f"{title} {cell}" for title, cell in zip(COLUMNS, cells, strict=True) if cell)


def _unit(unit: UnitRow, now: float) -> str:
    return f"{unit.state.value} for {age(now - state_since(unit))}: {unit_summary(unit, now)}"
