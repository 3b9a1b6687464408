"""Defines the command `events`, which shows events, oldest first, and with `--follow` new ones."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode
from agentrl.protocol.words import seconds

if TYPE_CHECKING:
    from agentrl.client import Client
    from agentrl.protocol.rows import AnyRow


MOST = 10_000
_ROWS_OF_A_LINE = 3
"""One line of text may come from three rows: the audit, the operation, and the knob that it set."""


class Kind(enum.StrEnum):
    OPERATION = "operation"
    INCIDENT = "incident"
    AUDIT = "audit"
    KNOB = "knob"
    ALERT = "alert"


def register(app: typer.Typer) -> None:
    add_command(app, "events")(events)


async def events(
    cli: Cli,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print what happens next, until Ctrl-C.")] = False,
    kind: Annotated[
        list[Kind] | None, typer.Option("--kind", help="Only this kind; may be repeated.", show_default=False)
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Only the last 90s, 15m, 2h.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=MOST, help="At most this many.")] = 200,
) -> ExitCode:
    """Show operations, incidents, changes and alerts."""
    import time

    from agentrl.cli import output
    from agentrl.cli.offline import living, reader
    from agentrl.formatting.row_text import happened_at, without_audit_repeats

    kinds = tuple(str(chosen) for chosen in kind or ())
    after_at = time.time() - seconds(since) if since else 0.0
    async with reader(cli) as client:
        live = living(client) if follow else None
        most = limit if cli.json else min(_ROWS_OF_A_LINE * limit, MOST)
        found = sorted(await client.events(kinds=kinds, after_at=after_at, limit=most), key=happened_at)
        if cli.json and not follow:
            output.emit(found)
            return ExitCode.OK
        for row in found if cli.json else without_audit_repeats(list(found))[-limit:]:
            show(cli, row)
        if live is not None:
            await _follow(cli, live, kinds or tuple(Kind), found)
        elif not found:
            output.note("Nothing happened yet.")
    return ExitCode.OK


async def _follow(cli: Cli, client: Client, kinds: tuple[str, ...], found: Sequence[AnyRow]) -> None:
    """Print events of the feed. The feed has no audit rows, so each operation and knob triggers a query for them."""
    from agentrl.client import CAUGHT_UP, RESET
    from agentrl.formatting.row_text import happened_at, row_kind
    from agentrl.protocol.rows import AuditRow

    shown = {identity(row) for row in found}
    audited = {"audit", "knob"} & set(kinds)
    once = "operation" in kinds and not cli.json
    after_at = max((happened_at(row) for row in found), default=0.0)
    began_at, caught_up = after_at, False
    async for key, row in client.follow(("op", "incident", "knob", "alert")):
        caught_up = key == CAUGHT_UP or (caught_up and key != RESET)
        # Each snapshot also has rows from before the requested time.
        wanted = row is not None and row_kind(row) in kinds and (caught_up or happened_at(row) >= began_at)
        fresh: list[AnyRow] = [row] if row is not None and wanted else []
        if audited and row is not None and row_kind(row) in ("operation", "knob"):
            fresh += await client.events(kinds=tuple(sorted(audited)), after_at=after_at, limit=200)
        for new in fresh:
            if identity(new) not in shown:
                shown.add(identity(new))
                after_at = max(after_at, happened_at(new)) if row_kind(new) == "audit" else after_at
                if not (once and isinstance(new, AuditRow) and new.operation):
                    show(cli, new)


def identity(row: AnyRow) -> tuple[object, ...]:
    """The identity of an event: equal for two rows of the same event. An operation is shown again when its state
    changes."""
    from agentrl.formatting.row_text import row_kind

    return (
        row_kind(row),
        *(getattr(row, name, None) for name in ("id", "seq", "name", "unit", "state", "since_at", "revision")),
    )


def show(cli: Cli, row: AnyRow) -> None:
    """Prints one event on a line; an incident with its evidence."""
    from agentrl.cli import output
    from agentrl.formatting.repeated_lines import fold_repeats
    from agentrl.formatting.row_text import event_text, happened_at, row_kind

    if cli.json:
        output.emit_line(row)
        return
    output.say(f"{output.moment(happened_at(row))}  {row_kind(row):9}  {event_text(row)}")
    for line in fold_repeats(getattr(row, "tail", ())):
        output.say(f"                       | {line}")
