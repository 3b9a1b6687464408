"""Defines the commands `tasks list`, `tasks show`, `tasks requeue` and `tasks add`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages, records
from agentrl.cli.list_pages import After, Limit, Row
from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.data_commands import Story

TASK = typer.Argument(metavar="TASK", help="A task's id, such as shop/train/0/000012.")


def register(app: typer.Typer) -> None:
    tasks = group(app, "tasks", "Rows of datasets, with all attempts at them.")
    add_command(tasks, "list", reads=True)(list_tasks)
    add_command(tasks, "show", reads=True)(show_task)
    add_command(tasks, "requeue", acts=True)(requeue)
    add_command(tasks, "add", acts=True)(add)


async def list_tasks(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("tasks list")] = "",
    sort: Annotated[str, list_pages.sorting("tasks list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List tasks: a dataset row in an epoch, sampled n times."""
    query = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await list_pages.show_page(
        cli, "list_tasks", query, COLUMNS, right=("round", "n", "mean", "trained"), spare=("n", "purpose", "admitted")
    )


async def show_task(cli: Cli, task: Annotated[str, TASK]) -> ExitCode:
    """Show a task with all its attempts, and the steps that took it."""
    return await records.show_with_records(cli, "show_task", task, _show)


def _show(cli: Cli, story: Story) -> None:
    from agentrl.cli import output

    task = story.document
    output.say(f"{task['id']} is {task['status']}{_because(task)} in round {task['round']} of {task['rounds_max']}")
    for name in ("query", "answer"):
        output.say(f"  {name}: {task[name]}")
    if task.get("baseline"):
        output.say("  mean {mean:.4g}, spread {std:.4g} of {valid} valid members".format(**task["baseline"]))
    for step in story.related["steps"]:
        output.say(f"  in step {step['id']}, {step['status']}")


def _because(row: Row) -> str:
    return f" ({row['reason']})" if row.get("reason") else ""


async def requeue(
    cli: Cli,
    tasks: Annotated[list[str], typer.Argument(metavar="TASK...", help="Ids of tasks, dead ones among them.")],
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept with them.", show_default=False)] = "",
) -> ExitCode:
    """Sample tasks again, in their next round. The results of their present round are given up."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import RequeueTasks

    return await act(cli, "requeue_tasks", RequeueTasks(ids=tuple(tasks), note=note))


async def add(
    cli: Cli,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSONL, JSON, Parquet or a saved dataset, on the steward's host.")
    ],
    environment: Annotated[str, typer.Option("--environment", "-e", metavar="NAME", help="Whose tasks they become.")],
) -> ExitCode:
    """Queue the rows of a file as tasks of an environment. The same file is added once."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import AddTasks

    return await act(cli, "add_tasks", AddTasks(environment=environment, file=str(file.absolute())))


def _query(row: Row) -> object:
    return row.get("reason") or str(row.get("query", ""))[:60]


COLUMNS: list_pages.Columns = {
    "task": list_pages.field("id"),
    "status": list_pages.field("status"),
    "purpose": list_pages.field("purpose"),
    "round": list_pages.field("round"),
    "n": list_pages.field("n"),
    "mean": list_pages.field("baseline.mean"),
    "trained": list_pages.field("trained_count"),
    "admitted": list_pages.moment("admitted_at"),
    "what": _query,
}
