"""Verbs that explain: why, stacks."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli import output
from agentrl.cli.verbs import Cli, verb
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    verb(app, "why")(why)
    verb(app, "stacks", acts=True)(stacks)


async def why(cli: Cli) -> ExitCode:
    """Say who waits for whom, how long, and who is the culprit."""
    from agentrl.words import waits

    async with cli.connect() as client:
        found = await client.why()
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    chains = waits.worth_telling(found.chains)
    if not chains:
        output.say(waits.NOBODY)
    elif waits.all_well(chains):
        output.say(waits.ALL_WELL)
    for chain in chains:
        output.say(chain.sentence)
        for told in waits.of_chain(chain):
            output.say(f"    {told.sentence}{', overdue' if told.overdue else ''}")
        output.say("    {}: {}".format(*waits.end_of(chain)))
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
