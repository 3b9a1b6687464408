"""Verbs that explain: why, stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import output
from agentrl.cli.verbs import Cli, verb
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.commands import WaitChain, WaitLink

MOST_WAITS = 3
"""Waits of one unit in a chain that are told one by one."""


def register(app: typer.Typer) -> None:
    verb(app, "why")(why)
    verb(app, "stacks", acts=True)(stacks)


async def why(cli: Cli) -> ExitCode:
    """Say who waits for whom, how long, and who is the culprit."""
    async with cli.connect() as client:
        found = await client.why()
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    if not found.chains:
        output.say("Nobody waits.")
    for chain in found.chains:
        output.say(chain.sentence)
        for line in _waits(chain):
            output.say(f"    {line}")
        output.say(f"    culprit: {chain.culprit}: {chain.because}")
    return ExitCode.OK


def _waits(chain: WaitChain) -> Iterator[str]:
    """The waits of a chain by who waits; of many of one unit the oldest, and how many more."""
    by_unit: dict[str, list[WaitLink]] = {}
    for link in chain.links:
        by_unit.setdefault(link.who, []).append(link)
    for who, links in by_unit.items():
        shown = links if len(links) <= MOST_WAITS else links[: MOST_WAITS - 1]
        for link in shown:
            what = f" ({link.what})" if link.what and link.what != link.on else ""
            yield f"{who} waits for {link.on}{what}, {output.age(link.age_s)}{', overdue' if link.overdue else ''}"
        if more := links[len(shown) :]:
            late = sum(link.overdue for link in more)
            yield f"{who} has {len(more)} more such waits" + (f", {late} of them overdue" if late else "")


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
