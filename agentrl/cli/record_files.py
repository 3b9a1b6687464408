"""Defines the commands `records html` and `records timeline`, which write one record to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode

Record = Annotated[str, typer.Argument(metavar="RECORD", help="Its id, such as shop/train/0/000012#r1.s3.a1.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="A new file; default: named after the record, here.", show_default=False
    ),
]


def register(records: typer.Typer) -> None:
    add_command(records, "html", reads=True)(html)
    add_command(records, "timeline", reads=True)(timeline)


async def html(
    cli: Cli,
    record: Record,
    file: Output = None,
    chars: Annotated[
        int, typer.Option("--chars", metavar="N", min=0, help="Characters of each text; 0: all.")
    ] = 100_000,
) -> ExitCode:
    """Write an attempt as one web page, which you can send to others.

    With texts, tool calls, images, times, the score by parts, versions and staleness. It needs nothing from outside.
    """
    from agentrl.client import record_files

    async with cli.connect() as client:
        page = await record_files.html_page(client, record, run=client.welcome.run_name, chars=chars)
    return _write(cli, record, file or record_files.name_for(record, ".html"), page.encode(), "a browser")


async def timeline(cli: Cli, record: Record, file: Output = None) -> ExitCode:
    """Write the times of all events of an attempt, for Perfetto.

    A JSON trace with a track for turns, model calls, tool calls, waits and each branch. ui.perfetto.dev and
    chrome://tracing open it.
    """
    from agentrl.client import record_files

    async with cli.connect() as client:
        trace = await record_files.timeline(client, record)
    target = file or record_files.name_for(record, ".trace.json")
    return _write(cli, record, target, trace, "ui.perfetto.dev or chrome://tracing")


def _write(cli: Cli, record: str, file: Path, data: bytes, program: str) -> ExitCode:
    from agentrl.cli import output
    from agentrl.client import record_files

    record_files.write_new(file, data)
    if cli.json:
        output.emit({"record": record, "file": str(file), "bytes": len(data)})
    else:
        output.say(f"{file} has {output.size(len(data))}. Open it in {program}.")
    return ExitCode.OK
