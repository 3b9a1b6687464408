"""Formats the output of `status`: the run, its alerts, groups, units and hosts.

Invariants:
- The output fits 80 columns; a narrower terminal shows fewer columns.
- A narrow terminal shows everything that is needed to know whether the run works.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from agentrl.cli import output
from agentrl.cli.alerts import headline
from agentrl.formatting.amounts import counted
from agentrl.formatting.row_text import (
    active_alerts,
    alerts_by_cause,
    clock_text,
    slot_order,
    state_since,
    unit_summary,
    uptime,
)
from agentrl.protocol.control_commands import LearningReport, StatusReport
from agentrl.protocol.rows import COMPLETED, PAUSED, GroupRow, HostRow, RunRow, UnitRow

_WIDE = 120
_STYLE = {
    "ready": "green",
    "running": "green",
    "completed": "green",
    "finished": "green",
    "paused": "cyan",
    "standing": "yellow",
    "up": "green",
    "pending": "cyan",
    "starting": "cyan",
    "suspect": "yellow",
    "backoff": "yellow",
    "degraded": "yellow",
    "silent": "yellow",
    "draining": "magenta",
    "stopping": "magenta",
    "lost": "bold red",
    "fatal": "bold red",
    "stopped": "dim",
}


def screen(report: StatusReport, width: int, aimed: Callable[[str], str] = str) -> RenderableType:
    """The report for a terminal of that width; `aimed` adds the run to the suggested commands."""
    now = time.time()
    parts: list[RenderableType] = [_head(report.run, now, aimed)]
    if report.pulse is not None and report.pulse.sentence:
        parts.append(output.cell(report.pulse.sentence, "cyan"))
    if report.learning is not None and (learned := _learned(report.learning)):
        parts.append(output.cell(learned))
    if report.learning is not None and report.learning.curves and _learned(report.learning):
        parts.append(output.cell(f"curves: tensorboard --logdir {shlex.quote(report.learning.curves)}", "dim"))
    parts += [headline(row, others, aimed) for row, others in alerts_by_cause(active_alerts(report.alerts))]
    parts += [
        output.cell(
            f"in progress: {row.summary or row.command}, {output.since(row.accepted_at, now)} ({row.who})", "cyan"
        )
        for row in sorted(report.operations, key=lambda row: row.accepted_at)
        if not row.state.ended
    ]
    if report.groups:
        groups = sorted(report.groups, key=lambda row: row.name)
        parts += [Text(), _groups(groups, down=report.run.desired == "down")]
    if report.units:
        units = sorted(report.units, key=lambda row: (row.group, slot_order(row.unit)))
        parts += [Text(), _units(units, now, width)]
    if report.hosts:
        parts += [Text(), _hosts(sorted(report.hosts, key=lambda row: row.host), now, width)]
    return Group(*parts)


def _learned(learning: LearningReport) -> str:
    """`step 30 of 2000 · reward 0.66 · evaluation 0.92 ± 0.07, best 0.97 at version 11`; empty without any of these."""
    parts = []
    if learning.step:
        parts.append(f"step {learning.step}{f' of {learning.steps_wanted}' if learning.steps_wanted else ''}")
    if learning.reward is not None:
        parts.append(f"reward {learning.reward:.2f}")
    if learning.evaluation is not None:
        margin = f" ± {learning.evaluation_margin:.2f}" if learning.evaluation_margin is not None else ""
        best = ""
        if learning.evaluation_best is not None and learning.evaluation_best > learning.evaluation:
            best = f", best {learning.evaluation_best:.2f} at version {learning.evaluation_best_version}"
        parts.append(f"evaluation {learning.evaluation:.2f}{margin}{best}")
    return " · ".join(parts)


def _head(run: RunRow, now: float, aimed: Callable[[str], str]) -> Text:
    text = Text(output.sanitise(run.name), style="bold")
    text.append(" ")
    text.append_text(_state(run.state))
    details = [
        run.reason,
        "paused" if run.paused and run.state != PAUSED else "",
        f"up {up}" if (up := uptime(run, now)) else "",
    ]
    text.append(output.sanitise("".join(f" · {detail}" for detail in details if detail)), style="none")
    for trouble in (run.journal_full, run.not_listening, run.not_recording, run.not_exporting):
        if trouble:
            text.append("\n").append(output.sanitise(trouble), style="bold red")
    if run.state == "stopped":
        # The coordinator still runs after an `up` was interrupted, or until a `down` ends.
        text.append("\n").append(aimed("`agentrl up` brings it up, `agentrl down` ends what is left of it."))
    return text


def _state(state: str) -> Text:
    return Text(output.sanitise(state), style=_STYLE.get(state, ""))


def _groups(groups: list[GroupRow], *, down: bool) -> RenderableType:
    rows = []
    for row in groups:
        others = ", ".join(f"{count} {state}" for state, count in sorted(row.other.items()) if count)
        as_wanted = row.ready + row.other.get(COMPLETED, 0) == row.desired
        style = "green" if as_wanted and not {*row.other} - {COMPLETED} else "yellow"
        if down and {*row.other} <= {COMPLETED, "stopped"}:
            style = "dim"
        rows.append(
            (
                row.name,
                row.role,
                output.cell(f"{row.ready} of {row.desired}", style),
                others,
                " · ".join(filter(None, ("paused" if row.paused else "", _epoch(row)))),
            )
        )
    return output.table(("group", "role", "ready", "others", ""), rows)


def _epoch(row: GroupRow) -> str:
    """How often a gang has started, and the reason of its last start."""
    if not row.epoch:
        return ""
    return f"epoch {row.epoch}{f' after: {row.epoch_why}' if row.epoch > 1 and row.epoch_why else ''}"


def _units(units: list[UnitRow], now: float, width: int) -> RenderableType:
    names = ["unit", "state", "since", "life", "died", "cpu", "memory"]
    if wide := width >= _WIDE:
        names[3:3] = ["host", "pid"]
    rows = []
    for row in units:
        measured: list[object] = [
            str(row.incarnation or ""),
            str(row.restarts or ""),
            f"{row.cpu_percent:.0f} %" if row.pid else "",
            output.size(row.rss_bytes) if row.rss_bytes else "",
        ]
        place: list[object] = [row.host, str(row.pid or "")] if wide else []
        state = _state(COMPLETED if row.done else row.state)
        cells: list[object] = [row.unit, state, output.since(state_since(row), now)]
        cells += [*place, *measured]
        rows.append([*cells, unit_summary(row, now)])
    numbers = ("since", "life", "died", "cpu", "memory", "pid")
    return output.table([*names, "what"], rows, right=numbers, width=width, spare=("cpu", "life", "memory", "since"))


def _hosts(hosts: list[HostRow], now: float, width: int) -> RenderableType:
    rows = []
    for row in hosts:
        used = (
            f"{output.size(row.memory_used_bytes)} of {output.size(row.facts.memory_bytes)}"
            if row.facts.memory_bytes
            else ""
        )
        free = output.size(row.disk_free_bytes) if row.disk_free_bytes else ""
        fills = "" if row.disk_full_in_s is None else f"disk full in {output.age(row.disk_full_in_s)}"
        remarks = [
            row.disk_full,
            fills,
            "draining" if row.draining else "",
            counted(len(row.strays), "strays") if row.strays else "",
            row.reason,
            clock_text(row),
        ]
        rows.append(
            (
                row.host,
                _state(row.state),
                output.since(row.since_at, now),
                str(row.units),
                f"{row.cpu_percent:.0f} %",
                used,
                free,
                " · ".join(remark for remark in remarks if remark),
            )
        )
    right = ("since", "units", "cpu", "memory", "disk free")
    names = ("host", "state", "since", "units", "cpu", "memory", "disk free", "")
    return output.table(names, rows, right=right, width=width, spare=("since", "cpu", "units"))
