"""Defines the command `logs`, which shows a unit's log and follows it over rotations and new incarnations."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, UnknownNameError, UsageError
from agentrl.protocol.words import seconds

if TYPE_CHECKING:
    from agentrl.cli.offline import Reader
    from agentrl.client import Client
    from agentrl.formatting.log_lines import Choice
    from agentrl.protocol.messages import LogChunk

_CHUNK_BYTES = 256 << 10
_POLL_S = 0.4

Printed = Callable[[str], object]
"""Prints one line."""


def register(app: typer.Typer) -> None:
    add_command(app, "logs")(logs)


async def logs(
    cli: Cli,
    unit: Annotated[
        str, typer.Argument(metavar="UNIT", help="A unit such as web-0, or an incarnation such as web-0.7.")
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print new lines, until Ctrl-C.")] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="The incarnation before the current one.")] = False,
    grep: Annotated[
        str, typer.Option("--grep", "-g", metavar="REGEX", help="Only lines that match.", show_default=False)
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="TIME", help="Only the last 90s, 15m, 2h, by the lines' own times.", show_default=False
        ),
    ] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="The last N lines; 0: all.")] = 200,
    raw: Annotated[bool, typer.Option("--raw", help="As it was written: control codes and JSON lines.")] = False,
) -> ExitCode:
    """Show what a unit wrote."""
    import time

    from agentrl.cli.offline import living, reader
    from agentrl.formatting.log_lines import Choice

    if follow and previous:
        raise UsageError("--previous has ended, so it cannot be followed.", hint="Give one of them.")
    name, incarnation = _which(unit, previous)
    choice = Choice(grep, time.time() - seconds(since) if since else None)
    printed: Printed = print if raw else _print_safely
    async with reader(cli) as client:
        live = living(client) if follow else None
        # A filter searches the whole log.
        whole = bool(grep or since or not lines)
        chunk = await _show_past(cli, client, name, incarnation, choice, lines, printed, whole=whole)
        if since and not choice.saw_time and chunk.size:
            output_note("The lines have no times, so --since left nothing out.")
        if live is not None:
            await _follow(cli, live, chunk, choice, printed, pinned=incarnation > 0)
    return ExitCode.OK


def _which(unit: str, previous: bool) -> tuple[str, int]:
    from agentrl.protocol.specs import split_incarnation

    if "." not in unit:
        return unit, -1 if previous else 0
    if previous:
        raise UsageError(
            f"{unit} names one incarnation already; --previous would be another.", hint="Give one of them."
        )
    try:
        return split_incarnation(unit)
    except ValueError as wrong:
        raise UnknownNameError(f"{wrong}.") from wrong


async def _show_past(
    cli: Cli, client: Reader, unit: str, incarnation: int, choice: Choice, count: int, printed: Printed, *, whole: bool
) -> LogChunk:
    """Print the lines so far; returns the last chunk, where following begins."""
    from agentrl.cli import output
    from agentrl.formatting.log_lines import Lines, last

    chunk = await client.read_logs(
        unit, incarnation=incarnation, offset=0 if whole else -_CHUNK_BYTES, limit=_CHUNK_BYTES
    )
    cut = chunk.offset > 0
    joined = Lines()
    found = joined.feed(chunk.data)
    async for more in _rest_of(client, chunk):
        chunk = more
        found += joined.feed(more.data)
    found += joined.end()
    if cut:
        # The first line began before the range that was read.
        del found[:1]
    shown = last(found, count, choice)
    if cli.json:
        output.emit_line(
            {"unit": unit, "incarnation": chunk.incarnation, "offset": chunk.offset, "size": chunk.size, "lines": shown}
        )
    else:
        for line in shown:
            printed(line)
        if not shown and count:
            of = f"{chunk.unit}.{chunk.incarnation}"
            output.note(f"No line of {of} matches." if found else f"{of} has written nothing yet.")
    return chunk


async def _rest_of(client: Reader, chunk: LogChunk) -> AsyncIterator[LogChunk]:
    """The chunks of the same incarnation after this one, up to the end of the log."""
    while chunk.data and chunk.offset + len(chunk.data) < chunk.size:
        following = await client.read_logs(
            chunk.unit, incarnation=chunk.incarnation, offset=chunk.offset + len(chunk.data), limit=_CHUNK_BYTES
        )
        if following.rotation != chunk.rotation:
            return
        chunk = following
        yield chunk


async def _follow(cli: Cli, client: Client, chunk: LogChunk, choice: Choice, printed: Printed, *, pinned: bool) -> None:
    import asyncio

    from agentrl.formatting.log_lines import Lines

    joined = Lines()
    replaced = False
    while True:
        offset = chunk.offset + len(chunk.data)
        following = await client.read_logs(chunk.unit, incarnation=chunk.incarnation, offset=offset, limit=_CHUNK_BYTES)
        if following.rotation != chunk.rotation or following.size < offset:
            output_note(f"The log of {chunk.unit}.{chunk.incarnation} was cut; what is left of it follows.")
            _print_lines(cli, chunk, joined.end(), choice, printed)
            chunk = _at(following, 0)
            continue
        _print_lines(cli, following, joined.feed(following.data), choice, printed)
        chunk = following
        if following.data:
            continue
        newest = chunk if pinned else await client.read_logs(chunk.unit, incarnation=0, offset=0, limit=1)
        if newest.incarnation != chunk.incarnation and not replaced:
            # The last lines of the ended incarnation may have come between the two queries.
            replaced = True
            continue
        if newest.incarnation != chunk.incarnation:
            replaced = False
            _print_lines(cli, chunk, joined.end(), choice, printed)
            output_note(f"{chunk.unit}.{chunk.incarnation} ended; this is {newest.unit}.{newest.incarnation}.")
            chunk = _at(newest, 0)
            continue
        await asyncio.sleep(_POLL_S)


def _at(chunk: LogChunk, offset: int) -> LogChunk:
    import msgspec

    return msgspec.structs.replace(chunk, offset=offset, data=b"")


def _print_lines(cli: Cli, chunk: LogChunk, lines: list[str], choice: Choice, printed: Printed) -> None:
    from agentrl.cli import output

    for line in lines:
        if not choice(line):
            continue
        if cli.json:
            output.emit_line({"unit": chunk.unit, "incarnation": chunk.incarnation, "line": line})
        else:
            printed(line)
    sys.stdout.flush()


def _print_safely(line: str) -> None:
    """Print a line without control codes, also into a pipe, because `less` and `grep` pass them on to a terminal."""
    from agentrl.cli import output
    from agentrl.formatting.log_lines import as_text

    print(output.sanitise_lines(as_text(line)))


def output_note(text: str) -> None:
    from agentrl.cli import output

    output.note(text)
