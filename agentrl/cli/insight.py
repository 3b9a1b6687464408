"""Verbs that explain: why, stacks."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli.verbs import Cli, verb
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    verb(app, "why")(why)
    verb(app, "stacks", acts=True)(stacks)


async def why(cli: Cli) -> ExitCode:
    """Say who waits for whom, how long, and who is the culprit."""
    from agentrl.cli import output

    async with cli.connect() as client:
        found = await client.why()
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    if not found.chains:
        output.say("Nobody waits.")
    for chain in found.chains:
        output.say(chain.sentence)
        for link in chain.links:
            what = f" ({link.what})" if link.what else ""
            late = ", overdue" if link.overdue else ""
            output.say(f"    {link.who} waits for {link.on}{what}, {output.age(link.age_s)}{late}")
        output.say(f"    culprit: {chain.culprit}: {chain.because}")
    return ExitCode.OK


async def stacks(
    cli: Cli,
    units: Annotated[
        list[str] | None,
        typer.Argument(metavar="[UNIT]...", help="Only these units; none means all.", show_default=False),
    ] = None,
) -> ExitCode:
    """Collect the stacks of all units into one file."""
    from agentrl.cli.acts import act
    from agentrl.protocol.commands import CollectStacks

    return await act(cli, "stacks", CollectStacks(units=tuple(units or ())))
