"""Defines the command `fork`: going on from a place in a recorded trajectory."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, UsageError


def register(app: typer.Typer) -> None:
    add_command(app, "fork", acts=True)(fork)


Base = Annotated[
    str,
    typer.Argument(
        metavar="[RECORD[/TURN[.CALL]]]",
        help="Sample this turn again, or go on behind this tool call; of a failed record, where it failed.",
        show_default=False,
    ),
]
Replays = Annotated[
    list[str] | None,
    typer.Option("--replay", metavar="REPLAY", help="Go on with the result of this replay.", show_default=False),
]
EditResult = Annotated[
    str | None,
    typer.Option("--edit-result", metavar="TEXT", help="The result of the call in the fork.", show_default=False),
]
EditMessage = Annotated[
    str | None,
    typer.Option(
        "--edit-message", metavar="TEXT", help="The first message of the user in the fork.", show_default=False
    ),
]
Times = Annotated[
    int | None,
    typer.Option(
        "--times", metavar="N", min=1, max=64, help="How many go on; default: as the rules say.", show_default=False
    ),
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept.", show_default=False)]


async def fork(
    cli: Cli,
    base: Base = "",
    replay: Replays = None,
    edit_result: EditResult = None,
    edit_message: EditMessage = None,
    times: Times = None,
    note: Note = "",
) -> ExitCode:
    """Go on from a place in a record, at current weights.

    A record that failed for infrastructure is repaired: the fork takes its seat. Any other fork branches off into a
    group of its own, or, once, into a probe that does not train. `--dry-run` says which it is, and why.
    """
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import ForkRecords

    wanted = ForkRecords(
        target=base,
        replays=tuple(replay or ()),
        result=edit_result,
        message=edit_message,
        times=times or 0,
        note=note,
    )
    if problem := wanted.problem():
        raise UsageError(problem)
    return await act(cli, "fork_records", wanted)
