"""What the verbs of all lists share: `--filter`, `--sort`, `--after`, `--limit`, and how a page is shown.

Invariant: a page that is not the last says how to go on, to people on stderr and to programs as `after`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from agentrl.cli.options import Cli
from agentrl.errors import ExitCode

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "tasks list": ("status=dead and environment=shop", "-trained_count,admitted_at"),
    "records list": ("status=failed and duration_s>30", "-score,started_at"),
    "records export": ("environment=shop and score>0.5", ""),
    "steps list": ("status=committed and metrics.loss>1", "-metrics.loss"),
    "checkpoints list": ("pinned=true and step>100", "-step"),
    "versions list": ("status=rejected and announced_at>-1h", "-canary_largest"),
    "tools errors": ("server=shop and requested_at>-1h", ""),
    "tools failures": ("status=timeout and latency_s>30", "-latency_s"),
}
"""Of each verb a query and an order that its list knows."""


def filtering(verb: str) -> Any:
    """The option --filter of a verb."""
    return typer.Option("--filter", metavar="QUERY", help=f"Such as '{EXAMPLES[verb][0]}'.", show_default=False)


def sorting(verb: str) -> Any:
    """The option --sort of a verb."""
    said = f"Such as {EXAMPLES[verb][1]}; else the newest first."
    return typer.Option("--sort", metavar="FIELDS", help=said, show_default=False)


After = Annotated[
    str, typer.Option("--after", metavar="PLACE", help="Go on where a page said, or behind a row.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most so many.")]

ANSWER_WITHIN_S = 60.0
"""Large runs have large collections; nothing is asked without an end."""

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], object]]
"""What stands in each column of a row."""


async def show_page(
    cli: Cli,
    command: str,
    asked: Mapping[str, Any],
    columns: Columns,
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> ExitCode:
    """Ask for a page and print it."""
    from agentrl.cli import output

    async with cli.connect() as client:
        page = await client.call(command, asked, deadline_s=ANSWER_WITHIN_S)
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
        output.note("Nothing is found.")
        return
    cells = [[_shown(of(row)) for of in columns.values()] for row in rows]
    width = output.console(cli.color).width
    output.show(output.table(list(columns), cells, right=right, width=width, spare=spare), cli.color)


def field(name: str) -> Callable[[Row], object]:
    """The value under a dotted name; nothing if there is none."""

    def of(row: Row) -> object:
        at: Any = row
        for part in name.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        return at

    return of


def moment(name: str) -> Callable[[Row], object]:
    """A time, as the clock of this place has it."""

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
