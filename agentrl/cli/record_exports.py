"""Defines the command `records export`: many records as JSON lines, as a dataset, or as Parquet."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from agentrl.cli import list_pages
from agentrl.cli.list_pages import After
from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from agentrl.client.parquet_files import ParquetFile

Form = Literal["trajectories", "dataset"]


def register(records: typer.Typer) -> None:
    add_command(records, "export", reads=True)(export)


async def export(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("records export")] = "",
    form: Annotated[
        str,
        typer.Option(
            "--as", metavar="FORM", help="trajectories, or dataset: rows to learn from, by default the golden records."
        ),
    ] = "trajectories",
    after: After = "",
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=1, help="At most this many; default: all.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Append here, or write a new .parquet; default: stdout.",
            show_default=False,
        ),
    ] = None,
) -> ExitCode:
    """Write whole trajectories as JSON lines or Parquet.

    They have texts, calls, token ids, log-probs, masks and versions. Only ended records are written, in the order in
    which they ended. `--after` continues an export. `--as dataset` writes rows for `environments: …: {dataset: …}`,
    which are demonstrations as well.
    """
    from agentrl.cli import output
    from agentrl.client import long_answers
    from agentrl.formatting.amounts import counted

    kind = _form(form)
    query = filter or ("review=golden" if kind == "dataset" else "")
    records, last = 0, after
    with _target(file, kind) as target:
        try:
            async with cli.connect() as client:
                async for lines in long_answers.exported(client, filter=query, form=kind, after=after, limit=limit):
                    target.write(lines.data)
                    records, last = records + lines.records, lines.after
            if file is None:
                sys.stdout.flush()
        finally:
            if records:
                more = "more" if records == limit else "what ends later"
                output.note(f"{counted(records, 'records')}; {more}: --after {last}")
    if not records and kind == "dataset" and not filter:
        output.note("No record is golden. `agentrl review mark golden RECORD` chooses records; so does --filter.")
    elif not records:
        output.note("Nothing was found.")
    if cli.json and file is not None:
        output.emit({"file": str(file), "records": records, "after": last})
    return ExitCode.OK


def _form(given: str) -> Form:
    if given == "dataset":
        return "dataset"
    if given != "trajectories":
        raise UsageError(f"There is no form {given!r}.", hint="Forms are: trajectories, dataset.")
    return "trajectories"


def _target(file: Path | None, form: Form) -> AbstractContextManager[IO[bytes] | ParquetFile]:
    from agentrl.client import parquet_files

    if file is None:
        return nullcontext(sys.stdout.buffer)
    try:
        if file.suffix.lower() != parquet_files.SUFFIX:
            return file.open("ab")
        if form == "dataset":
            raise UsageError("A dataset is written as JSON lines.", hint="Name a file that ends in .jsonl.")
        return parquet_files.ParquetFile(file)
    except OSError as broken:
        raise UsageError(f"{file} cannot be written: {broken.strerror}.") from broken
