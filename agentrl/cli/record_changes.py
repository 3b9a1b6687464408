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
CANARY = "canary"
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

    chosen = found_by(filter, made_by, since)
    return await change(cli, "exclude_records", ExcludeRecords, ids=records, note=note, **chosen)


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

    chosen = found_by(filter, made_by, since)
    return await change(cli, "requeue_records", RequeueRecords, ids=records, note=note, **chosen)


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

    chosen = found_by(filter, made_by, since, "started_at")
    return await change(cli, "cancel_records", CancelRecords, ids=records, note=note, **chosen)


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

    chosen = found_by(filter, made_by, since)
    return await change(cli, "rescore_records", RescoreRecords, ids=records, note=note, scorer=scorer, **chosen)


async def change(cli: Cli, command: str, kind: type[ChooseRecords], *, ids: list[str] | None, **args: Any) -> ExitCode:
    """Execute a command on the chosen records."""
    from agentrl.cli.execute import act

    wanted = kind(ids=tuple(ids or ()), **args)
    if problem := wanted.problem():
        raise UsageError(problem)
    return await act(cli, command, wanted)


def found_by(filter: str, made_by: str, since: str, field: str = "finished_at") -> dict[str, Any]:
    """The arguments that find records, for a command that changes them."""
    if since == CANARY:
        return {"filter": filter, "made_by": made_by, "since_canary": True}
    return {"filter": since_too(filter, since, field), "made_by": made_by}


def since_too(filter: str, since: str, field: str = "finished_at") -> str:
    """The filter, with the condition on the time."""
    if not since:
        return filter
    return f"({filter}) and {field}>-{since}" if filter else f"{field}>-{since}"
