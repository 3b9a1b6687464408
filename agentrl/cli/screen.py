"""The picture that `status` paints: alerts on top, then groups, units and hosts.

Invariant: it fits 80 columns, and fewer with less in it; more columns show more, none of it matters for knowing whether
all is well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.text import Text

from agentrl.cli import output
from agentrl.cli.alerts import headline
from agentrl.cli.view import View
from agentrl.formatting.amounts import counted
from agentrl.formatting.row_text import stands_since, story, up_for
from agentrl.protocol.rows import COMPLETED, GroupRow, HostRow, RunRow, UnitRow

_WIDE = 120
_STYLE = {
    "ready": "green",
    "running": "green",
    "completed": "green",
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


def screen(view: View, width: int, aimed: Callable[[str], str] = str) -> RenderableType:
    """The whole picture for a terminal of that width; `aimed` makes suggested commands reach this run."""
    now = time.time()
    parts: list[RenderableType] = []
    if view.run is not None:
        parts.append(_head(view.run, now, aimed))
    if view.silent:
        parts.append(output.cell("The coordinator is not heard; this is what it last said.", "bold yellow"))
    if view.pulse is not None and view.pulse.sentence:
        parts.append(output.cell(view.pulse.sentence, "cyan"))
    parts += [headline(row, aimed) for row in view.firing]
    parts += [
        output.cell(
            f"in progress: {row.summary or row.command}, {output.since(row.accepted_at, now)} ({row.who})", "cyan"
        )
        for row in view.operations
    ]
    if view.groups:
        parts += [Text(), _groups(view.groups, down=view.run is not None and view.run.desired == "down")]
    if view.units:
        parts += [Text(), _units(view.units, now, width)]
    if view.hosts:
        parts += [Text(), _hosts(view.hosts, now, width)]
    return Group(*parts)


def fitted(console: Console, picture: RenderableType) -> RenderableType:
    """What there is room for, and how much is left out."""
    lines = console.render_lines(picture, pad=False)
    if len(lines) <= console.height:
        return picture
    shown = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines[: console.height - 1]]
    left = len(lines) - len(shown)
    return Group(*shown, Text(f"... {counted(left, 'more lines')}; `agentrl status` shows all", style="dim"))


def _head(run: RunRow, now: float, aimed: Callable[[str], str]) -> Text:
    text = Text(output.sanitise(run.name), style="bold")
    text.append(" ")
    text.append_text(_state(run.state))
    details = [
        run.reason,
        "paused" if run.paused else "",
        f"up {up}" if (up := up_for(run, now)) else "",
    ]
    text.append(output.sanitise("".join(f" · {detail}" for detail in details if detail)), style="none")
    for trouble in (run.journal_full, run.not_listening, run.not_recording):
        if trouble:
            text.append("\n").append(output.sanitise(trouble), style="bold red")
    if run.state == "stopped":
        # Its coordinator lives on: an `up` was broken off, or a `down` ends in a moment.
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
                "paused" if row.paused else "",
            )
        )
    return output.table(("group", "role", "ready", "others", ""), rows)


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
        cells: list[object] = [row.unit, state, output.since(stands_since(row), now)]
        cells += [*place, *measured]
        rows.append([*cells, story(row, now)])
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
