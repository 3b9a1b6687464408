"""Defines the command `records export`: many records as JSON lines, as a dataset, or as Parquet."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from agentrl.cli import list_pages
from agentrl.cli.list_pages import After
from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agentrl.client.lines_file import LinesFile
    from agentrl.client.parquet_files import ParquetFile

Form = Literal["trajectories", "dataset"]


def register(records: typer.Typer) -> None:
    add_command(records, "export", reads=True)(export)


Filter = Annotated[str, list_pages.filtering("records export")]
FormName = Annotated[
    str,
    typer.Option(
        "--as", metavar="FORM", help="trajectories, or dataset: rows to learn from, by default the golden records."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", metavar="N", min=1, help="At most this many; default: all.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Append here, or write a new .parquet; default: stdout.",
        show_default=False,
    ),
]


async def export(
    cli: Cli,
    filter: Filter = "",
    form: FormName = "trajectories",
    after: After = "",
    limit: Limit = None,
    file: Output = None,
) -> ExitCode:
    """Write whole trajectories as JSON lines or Parquet.

    They have texts, calls, token ids, log-probs, masks and versions. Only ended records are written, in the order in
    which they ended. `--after` continues an export. `--as dataset` writes rows for `environments: …: {dataset: …}`,
    which are demonstrations as well.
    """
    from agentrl.cli import output
    from agentrl.client import long_answers

    kind = _form(form)
    query = filter or ("review=golden" if kind == "dataset" else "")
    done = _Done(after)
    with _noting(done, file, limit), _target(file, kind) as target:
        async with cli.connect() as client:
            async for lines in long_answers.exported(client, filter=query, form=kind, after=after, limit=limit):
                target.write(lines.data)
                if file is None:
                    sys.stdout.flush()
                done.records, done.last = done.records + lines.records, lines.after
    if not done.records and kind == "dataset" and not filter:
        output.note("No record is golden. `agentrl review mark golden RECORD` chooses records; so does --filter.")
    elif not done.records:
        output.note("Nothing was found.")
    if cli.json and file is not None:
        output.emit({"file": str(file), "records": done.records, "after": done.last})
    return ExitCode.OK


@dataclasses.dataclass
class _Done:
    """What is exported."""

    last: str
    """The id behind which an export goes on."""
    records: int = 0


@contextmanager
def _noting(done: _Done, file: Path | None, limit: int | None) -> Iterator[None]:
    """Note at the end how to go on, also after an error."""
    from agentrl.cli import output
    from agentrl.formatting.amounts import counted

    more = "the rest"
    try:
        yield
        more = "more" if done.records == limit else "what ends later"
    except OSError:
        if _is_parquet(file):
            done.records = 0  # What a full disk took of it is removed, or cannot be continued.
        raise
    finally:
        if done.records:
            output.note(f"{counted(done.records, 'records')}; {more}: --after {done.last}")


def _is_parquet(file: Path | None) -> bool:
    from agentrl.client import parquet_files

    return file is not None and file.suffix.lower() == parquet_files.SUFFIX


def _form(given: str) -> Form:
    if given == "dataset":
        return "dataset"
    if given != "trajectories":
        raise UsageError(f"There is no form {given!r}.", hint="Forms are: trajectories, dataset.")
    return "trajectories"


def _target(file: Path | None, form: Form) -> AbstractContextManager[IO[bytes] | LinesFile | ParquetFile]:
    from agentrl.client import lines_file, parquet_files

    if file is None:
        return nullcontext(sys.stdout.buffer)
    try:
        if not _is_parquet(file):
            return lines_file.LinesFile(file)
        if form == "dataset":
            raise UsageError("A dataset is written as JSON lines.", hint="Name a file that ends in .jsonl.")
        return parquet_files.ParquetFile(file)
    except OSError as broken:
        raise UsageError(f"{file} cannot be written: {broken.strerror}.") from broken
