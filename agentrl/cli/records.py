"""Verbs about records: list."""

from __future__ import annotations

import typer

from agentrl.cli import lists
from agentrl.cli.lists import After, Filter, Limit, Row, Sort
from agentrl.cli.verbs import Cli, group, verb
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    records = group(app, "records", "Attempts: complete episodes, turn by turn.")
    verb(records, "list")(list_records)


async def list_records(
    cli: Cli, filter: Filter = "", sort: Sort = "", after: After = "", limit: Limit = 100
) -> ExitCode:
    """List attempts; those under way with the call that they wait for."""
    asked = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await lists.show_page(
        cli,
        "list_records",
        asked,
        COLUMNS,
        right=("score", "turns", "tokens", "took"),
        spare=("ended", "owner", "tokens"),
    )


def _outcome(row: Row) -> object:
    doing = row.get("doing")
    if doing:
        return f"{doing['what']}, {doing['age_s']:.0f} s"
    return row.get("error") or row.get("outcome")


def _took(row: Row) -> object:
    from agentrl.cli import output

    seconds = row.get("age_s") or row.get("duration_s")
    return output.duration(seconds) if seconds else ""


COLUMNS: lists.Columns = {
    "record": lists.field("id"),
    "status": lists.field("status"),
    "owner": lists.field("owner"),
    "score": lists.field("score"),
    "turns": lists.field("turns"),
    "tokens": lists.field("generated_tokens"),
    "took": _took,
    "ended": lists.moment("finished_at"),
    "what": _outcome,
}
