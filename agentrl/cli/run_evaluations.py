"""Reads the evaluations of a run's own versions for `eval`: their list, and the attempts of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages
from agentrl.cli.options import Cli
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.evaluation_commands import Attempt, EvaluationRow


async def list_(
    cli: Cli,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=200, help="At most this many versions.")
    ] = 20,
) -> ExitCode:
    """Show the evaluations of the run's own versions.

    The newest first, with the progress of those under way. `eval show vN` has the parts of one.
    """
    from agentrl.cli import output

    async with cli.connect() as client:
        found = await client.list_evaluations(limit, deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(found)
    elif not found:
        output.say("No version was evaluated yet. `evaluation.every` of the run file says how often it is done.")
    else:
        rows = [_cells(row) for row in found]
        columns = ("version", "environment", "state", "mean", "0 … 1", "pass@k", "tasks", "failed", "step", "at", "")
        output.show(output.table(columns, rows, right=("mean", "tasks", "failed", "step")), cli.color)
    return ExitCode.OK


def _cells(row: EvaluationRow) -> tuple[str, ...]:
    from agentrl.cli import output
    from agentrl.evaluation import words

    most = max(row.passed, key=int, default="")
    notes = ("best" if row.is_best else "", f"checkpoint {row.checkpoint}" if row.checkpoint else "")
    return (
        f"v{row.version}",
        row.environment,
        row.state if row.state != "queued" else f"{row.ended} of {row.tasks} tasks",
        words.with_margin(row.mean, row.margin),
        words.bar(row.mean),
        f"{row.passed[most]:.3f} of {most}" if most else "",
        str(row.tasks or ""),
        str(row.failed or ""),
        str(row.step),
        output.moment(row.at),
        ", ".join(note for note in notes if note),
    )


def version_of(place: Path) -> int | None:
    """The number of `v12`; None for a file."""
    found = re.fullmatch(r"v(\d{1,9})", str(place))
    return int(found[1]) if found and not place.exists() else None


def read(cli: Cli, version: int) -> list[Attempt]:
    """The ended attempts of the evaluation of a version."""
    import asyncio

    from agentrl.client import long_answers

    async def ask() -> list[Attempt]:
        async with cli.connect() as client:
            return await long_answers.evaluated(client, version, deadline_s=list_pages.ANSWER_WITHIN_S)

    return asyncio.run(ask())
