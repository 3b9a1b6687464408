"""Defines the commands `alerts list`, `alerts ack`, `alerts silence` and `alerts test`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode
from agentrl.protocol.words import seconds

if TYPE_CHECKING:
    from rich.text import Text

    from agentrl.protocol.rows import AlertRow

ALERT = typer.Argument(metavar="ALERT", help="An alert's id, such as unit-fatal:web-0.")


def register(app: typer.Typer) -> None:
    alerts = group(app, "alerts", "What is wrong, since when, and what repairs it.")
    add_command(alerts, "list")(list_alerts)
    add_command(alerts, "ack", acts=True)(acknowledge)
    add_command(alerts, "silence", acts=True)(silence)
    add_command(alerts, "test", acts=True)(test)


async def list_alerts(
    cli: Cli,
    every: Annotated[bool, typer.Option("--all", help="Include resolved ones.")] = False,
) -> ExitCode:
    """Alerts with evidence and the suggested command."""
    from agentrl.cli import output

    async with cli.connect() as client:
        found = await client.alerts(all=every)
    if cli.json:
        output.emit(found)
    elif not found:
        output.say("No alert.")
    else:
        for row in found:
            output.show(headline(row, (), cli.aimed), cli.color)
            for line in (*row.evidence, *([f"a consequence of {row.cause}"] if row.cause else [])):
                output.say(f"    {line}")
    return ExitCode.OK


def headline(row: AlertRow, consequences: Sequence[AlertRow], aimed: Callable[[str], str] = str) -> Text:
    """One alert in a line or two: what, since when, what to do; `aimed` adds the run to the command."""
    from rich.text import Text

    from agentrl.cli import output
    from agentrl.formatting.row_text import alert_state, consequences_text

    style = {"page": "bold red", "warning": "yellow"}.get(str(row.severity), "")
    text = Text()
    text.append(f"{row.severity} ", style=style)
    text.append(output.sanitise(f"{row.id}: {row.sentence}"))
    state = "" if row.state == "firing" else f", {alert_state(row)}"
    by = f" by {row.acknowledged_by}" if row.acknowledged_by else ""
    text.append(output.sanitise(f" ({output.since(row.since_at)}{state}{by})"), style="dim")
    if row.silenced_until_at:
        text.append(output.sanitise(f" silenced until {output.moment(row.silenced_until_at)}"), style="dim")
    if consequences:
        text.append(output.sanitise(f" {consequences_text(consequences)}"), style="dim")
    if row.suggest:
        text.append("\n    ").append(output.sanitise(aimed(row.suggest)), style="bold")
    return text


async def acknowledge(cli: Cli, alert: Annotated[str, ALERT]) -> ExitCode:
    """Stop repeating an alert: somebody works on it."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import Acknowledge

    return await act(cli, "acknowledge", Acknowledge(id=alert))


async def silence(
    cli: Cli,
    alert: Annotated[str, typer.Argument(metavar="ALERT|RULE", help="An alert's id, or a rule's name.")],
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 90s, 15m, 2h, 1d; 0 ends it.")
    ] = "1h",
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="The reason; kept with the alert.", show_default=False)
    ] = "",
) -> ExitCode:
    """Send nothing for a while. The alert stays visible."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import Silence

    return await act(cli, "silence", Silence(id=alert, for_s=seconds(duration), why=why))


async def test(cli: Cli) -> ExitCode:
    """Send a test through every sink."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import SendTestAlert

    return await act(cli, "test_alert", SendTestAlert())
