"""Defines the commands `review list` and `review mark`: records that a person should look at, and the verdicts."""

from __future__ import annotations

from typing import Annotated

import typer

from agentrl.cli import list_pages
from agentrl.cli.list_pages import Row
from agentrl.cli.options import Cli, add_command, group
from agentrl.cli.record_changes import Ids, MadeBy, Note, Since, change
from agentrl.errors import ExitCode, UsageError

VERDICTS = ("good", "bad", "golden", "none")


def register(app: typer.Typer) -> None:
    review = group(app, "review", "Records that a person should look at, and verdicts on them.", default="list")
    add_command(review, "list", reads=True)(list_reviews)
    add_command(review, "mark", acts=True)(mark)


async def list_reviews(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("review list")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=500, help="At most this many.")] = 20,
) -> ExitCode:
    """List records without a verdict that a person should look at.

    First the suspicious ones, with the reasons, then random ones; among the newest 1000.
    """
    return await list_pages.show_page(
        cli, "list_reviews", {"filter": filter, "limit": limit}, COLUMNS, right=("score", "turns", "tokens")
    )


async def mark(
    cli: Cli,
    verdict: Annotated[str, typer.Argument(metavar="VERDICT", help="good, bad, golden, or none to remove it.")],
    records: Ids = None,
    filter: Annotated[str, list_pages.filtering("review mark")] = "",
    made_by: MadeBy = "",
    since: Since = "",
    note: Note = "",
) -> ExitCode:
    """Note a verdict on records.

    `records list --filter review=bad` finds them again; `records export --as dataset` makes a dataset of the golden
    ones.
    """
    from agentrl.protocol.data_changes import ReviewRecords

    if verdict not in VERDICTS:
        raise UsageError(f"There is no verdict {verdict!r}.", hint=f"Verdicts are: {', '.join(VERDICTS)}.")
    return await change(
        cli, "review_records", ReviewRecords, records, filter, since, made_by=made_by, note=note, verdict=verdict
    )


def _why(row: Row) -> str:
    return "; ".join(row["why"])


COLUMNS: list_pages.Columns = {
    "record": list_pages.field("id"),
    "score": list_pages.field("score"),
    "turns": list_pages.field("turns"),
    "tokens": list_pages.field("generated_tokens"),
    "why": _why,
}
