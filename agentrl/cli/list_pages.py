"""Provides the options and the output of all list commands: `--filter`, `--sort`, `--after`, `--limit`, and a page as a
table.

Invariants:
- A page that is not the last names the place of the next one, on stderr for people and as `after` for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from agentrl.cli.options import Cli
from agentrl.errors import ExitCode

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "tasks list": ("status=dead and row.difficulty=hard", "-trained_count,admitted_at"),
    "records list": ("status=failed and duration_s>30", "-score,started_at"),
    "records exclude": ("score=0 and finished_at>-1h", ""),
    "records requeue": ("status=failed and environment=shop", ""),
    "records cancel": ("status=running and started_at<-30m", ""),
    "records rescore": ("score=0 and outcome=answered", ""),
    "review list": ("environment=shop and score>0.5", ""),
    "review mark": ("score=1 and turns=1", ""),
    "records export": ("environment=shop and score>0.5", ""),
    "steps list": ("status=committed and metrics.loss>1", "-metrics.loss"),
    "checkpoints list": ("pinned=true and step>100", "-step"),
    "versions list": ("status=rejected and announced_at>-1h", "-canary_largest"),
    "replay": ("tool=search and status=timeout", ""),
    "replays list": ("verdict=fixed and server=shop", "-duration_s"),
    "tools errors": ("server=shop and requested_at>-1h", ""),
    "tools sandboxes": ("server=shop and memory_share>0.8", "-cpu_percent,started_at"),
    "calls list": ("server=shop and latency_s>30", "-latency_s"),
}
"""A query and an order that the list accepts, for the help of each command."""


def filtering(command: str, what: str = "") -> Any:
    """The option --filter of a command."""
    text = f"{what} Such as '{EXAMPLES[command][0]}'.".lstrip()
    return typer.Option("--filter", metavar="QUERY", help=text, show_default=False)


def sorting(command: str, default: str = "the newest first") -> Any:
    """The option --sort of a command."""
    text = f"Such as {EXAMPLES[command][1]}; default: {default}."
    return typer.Option("--sort", metavar="FIELDS", help=text, show_default=False)


After = Annotated[
    str, typer.Option("--after", metavar="PLACE", help="Continue after this place or row.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most this many.")]

ANSWER_WITHIN_S = 60.0
"""Deadline of queries: large runs have large collections."""

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], object]]
"""The value of each column of a row."""


async def show_page(
    cli: Cli,
    command: str,
    query: Mapping[str, Any],
    columns: Columns,
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> ExitCode:
    """Query a page and print it."""
    from agentrl.cli import output

    async with cli.connect() as client:
        page = await client.call(command, query, deadline_s=ANSWER_WITHIN_S)
    if cli.json:
        output.emit(page)
        return ExitCode.OK
    show_rows(cli, page.rows, columns, right=right, spare=spare)
    if page.after:
        output.note(f"There are more: --after {page.after}")
    return ExitCode.OK


def show_rows(
    cli: Cli, rows: Sequence[Row], columns: Columns, *, right: Sequence[str] = (), spare: Sequence[str] = ()
) -> None:
    from agentrl.cli import output

    if not rows:
        output.note("Nothing was found.")
        return
    cells = [[_shown(of(row)) for of in columns.values()] for row in rows]
    width = output.console(cli.color).width
    output.show(output.table(list(columns), cells, right=right, width=width, spare=spare), cli.color)


def field(name: str) -> Callable[[Row], object]:
    """The value under a dotted name, or None."""

    def of(row: Row) -> object:
        at: Any = row
        for part in name.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        return at

    return of


def moment(name: str) -> Callable[[Row], object]:
    """A time in the local time zone."""

    def of(row: Row) -> object:
        from agentrl.cli import output

        at = row.get(name)
        return output.moment(at.timestamp()) if at is not None else ""

    return of


def duration(name: str) -> Callable[[Row], object]:
    def of(row: Row) -> object:
        from agentrl.cli import output

        seconds = row.get(name)
        return output.duration(seconds) if seconds else ""

    return of


def _shown(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.4g}" if isinstance(value, float) else value
