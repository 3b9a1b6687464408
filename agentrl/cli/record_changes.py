"""Defines the commands that change records: `records exclude`, `requeue`, `cancel` and `rescore`.

All of them choose their records in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli import list_pages
from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agentrl.protocol.data_changes import ChooseRecords

Ids = Annotated[list[str] | None, typer.Argument(metavar="[RECORD...]", help="Ids of records.", show_default=False)]
MadeBy = Annotated[
    str,
    typer.Option("--made-by", metavar="UNIT", help="Only those of this sampler or engine.", show_default=False),
]
CANARY_HELP = "; `canary`: only those that this engine generated since its last passed canary."
Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help=f"Only those that ended in the last 90s, 15m, 2h{CANARY_HELP}",
        show_default=False,
    ),
]
SinceBegun = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help=f"Only those that began in the last 90s, 15m, 2h{CANARY_HELP}",
        show_default=False,
    ),
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept with them.", show_default=False)]


def register(records: typer.Typer) -> None:
    add_command(records, "exclude", acts=True)(exclude)
    add_command(records, "requeue", acts=True)(requeue)
    add_command(records, "cancel", acts=True)(cancel)
    add_command(records, "rescore", acts=True)(rescore)


async def exclude(
    cli: Cli,
    records: Ids = None,
    filter: Annotated[str, list_pages.filtering("records exclude")] = "",
    made_by: MadeBy = "",
    since: Since = "",
    note: Note = "",
) -> ExitCode:
    """Keep scored records out of training.

    The baselines of their groups are computed again without them.
    What a step leased or trained stays.
    """
    from agentrl.protocol.data_changes import ExcludeRecords

    return await change(cli, "exclude_records", ExcludeRecords, records, filter, since, made_by=made_by, note=note)


async def requeue(
    cli: Cli,
    records: Ids = None,
    filter: Annotated[str, list_pages.filtering("records requeue")] = "",
    made_by: MadeBy = "",
    since: Since = "",
    note: Note = "",
) -> ExitCode:
    """Attempt seats of failed, excluded or cancelled records again.

    If the group of a record is closed already, its whole task is sampled again.
    """
    from agentrl.protocol.data_changes import RequeueRecords

    return await change(cli, "requeue_records", RequeueRecords, records, filter, since, made_by=made_by, note=note)


async def cancel(
    cli: Cli,
    records: Ids = None,
    filter: Annotated[str, list_pages.filtering("records cancel")] = "",
    made_by: MadeBy = "",
    since: SinceBegun = "",
    note: Note = "",
) -> ExitCode:
    """End records that run or wait.

    Their episodes stop within seconds, and their seats stay empty unless they are requeued.
    """
    from agentrl.protocol.data_changes import CancelRecords

    return await change(cli, "cancel_records", CancelRecords, records, filter, since, made_by=made_by, note=note)


async def rescore(
    cli: Cli,
    records: Ids = None,
    filter: Annotated[str, list_pages.filtering("records rescore")] = "",
    made_by: MadeBy = "",
    since: Since = "",
    scorer: Annotated[
        str,
        typer.Option("--scorer", metavar="NAME", help="Another scorer than that of the task.", show_default=False),
    ] = "",
    note: Note = "",
) -> ExitCode:
    """Score scored records again, and compute their baselines again.

    Samplers do it, with the scorers that they have now. What a step leased or trained keeps its score.
    """
    from agentrl.protocol.data_changes import RescoreRecords

    return await change(
        cli, "rescore_records", RescoreRecords, records, filter, since, made_by=made_by, note=note, scorer=scorer
    )


async def change(
    cli: Cli, command: str, kind: type[ChooseRecords], ids: list[str] | None, filter: str, since: str, **args: Any
) -> ExitCode:
    """Execute a command on the records that are named, or that the filter and the age find."""
    from agentrl.cli.execute import act
    from agentrl.protocol import words

    selection: words.Values = {"filter": filter}
    if since:
        words.Since().read(since, selection, "since_canary", kind)
    arguments = kind(ids=tuple(ids or ()), **selection, **args)
    if problem := arguments.problem():
        raise UsageError(problem)
    return await act(cli, command, arguments)
