"""Verbs about tasks: list."""

from __future__ import annotations

import typer

from agentrl.cli import lists
from agentrl.cli.lists import After, Filter, Limit, Row, Sort
from agentrl.cli.verbs import Cli, group, verb
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    tasks = group(app, "tasks", "Rows of datasets, and what became of them.")
    verb(tasks, "list")(list_tasks)


async def list_tasks(cli: Cli, filter: Filter = "", sort: Sort = "", after: After = "", limit: Limit = 100) -> ExitCode:
    """List tasks: a dataset row in an epoch, sampled n times."""
    asked = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await lists.show_page(
        cli, "list_tasks", asked, COLUMNS, right=("round", "n", "mean", "trained"), spare=("n", "purpose", "admitted")
    )


def _query(row: Row) -> object:
    return row.get("reason") or str(row.get("query", ""))[:60]


COLUMNS: lists.Columns = {
    "task": lists.field("id"),
    "status": lists.field("status"),
    "purpose": lists.field("purpose"),
    "round": lists.field("round"),
    "n": lists.field("n"),
    "mean": lists.field("baseline.mean"),
    "trained": lists.field("trained_count"),
    "admitted": lists.moment("admitted_at"),
    "what": _query,
}
