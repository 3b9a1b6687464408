"""Defines the command `status`, which shows the run at this moment, and with `--follow` each later change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, NoCoordinatorError, UsageError

if TYPE_CHECKING:
    from agentrl.client import Client
    from agentrl.protocol.control_commands import StatusReport
    from agentrl.protocol.rows import AnyRow


def register(app: typer.Typer) -> None:
    add_command(app, "status")(status)


async def status(
    cli: Cli,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Then print each change, until Ctrl-C; `agentrl tui` is the live screen."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 12 unless the run is healthy.")] = False,
) -> ExitCode:
    """Show the run: its state, alerts, groups, units and hosts."""
    from agentrl.cli import output

    if follow and check:
        raise UsageError("--check looks once, --follow goes on.", hint="Give one of them.")
    try:
        async with cli.connect() as client:
            report = None if follow and cli.json else await client.status()
            if cli.json and report is not None:
                output.emit(report)
            elif report is not None:
                from agentrl.cli.status_screen import screen

                output.show(screen(report, output.console(cli.color).width, cli.aimed), cli.color)
            if follow:
                await follow_changes(cli, client)
    except NoCoordinatorError as error:
        from agentrl.cli import offline

        raise await offline.explain_no_coordinator(cli, error) from error
    return ExitCode.OK if not check or (report is not None and healthy(report)) else ExitCode.UNHEALTHY


def healthy(report: StatusReport) -> bool:
    """Whether the run works as desired: nothing is degraded, and there is no active alert of the severity `page`."""
    from agentrl.formatting.row_text import active_alerts
    from agentrl.protocol.rows import HEALTHY

    firing = active_alerts(report.alerts)
    return report.run.state in HEALTHY and not any(alert.severity == "page" for alert in firing)


async def follow_changes(cli: Cli, client: Client, *, until_the_run_ends: bool = False) -> None:
    """Print each change of the feed: with `--json` every row, otherwise changes of state and incidents in words."""
    from agentrl.cli import output
    from agentrl.protocol.rows import RunRow

    seen: dict[str, str] = {}
    async for key, row in client.follow():
        if cli.json:
            output.emit_line({"key": key, "row": row})
        elif (sentence := _change(row)) and seen.get(key) != (state := str(getattr(row, "state", sentence))):
            seen[key] = state
            output.say(sentence)
            sys.stdout.flush()
        if until_the_run_ends and isinstance(row, RunRow) and row.state in ("finished", "stopped"):
            return


def _change(row: AnyRow | None) -> str:
    """A state of the run, of a unit or an alert, or an incident, in words; empty for other rows."""
    from agentrl.protocol.rows import AlertRow, IncidentRow, RunRow, UnitRow

    match row:
        case RunRow():
            return f"the run {row.name} is {row.state}{f': {row.reason}' if row.reason else ''}"
        case UnitRow():
            return f"{row.unit} is {row.state}{f': {row.reason}' if row.reason else ''}"
        case AlertRow():
            return f"alert {row.id} ({row.state}): {row.sentence}"
        case IncidentRow():
            return f"{row.what}{f'; {row.done}' if row.done and row.done not in row.what else ''}"
        case _:
            return ""
