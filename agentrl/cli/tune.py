"""Defines the command `tune`, which shows, previews, changes and restores knobs.

Invariants:
- A change is sent with the revision that the person saw, or that was just read, so no unseen change is overwritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ConfigError, ExitCode, UnknownNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl.client import Client
    from agentrl.protocol.rows import AuditRow, GroupRow, KnobRow


def register(app: typer.Typer) -> None:
    add_command(app, "tune", acts=True, numbers=True)(tune)


async def tune(
    cli: Cli,
    knob: Annotated[
        str | None, typer.Argument(metavar="[KNOB]", help="A knob; default: all.", show_default=False)
    ] = None,
    value: Annotated[
        str | None,
        typer.Argument(metavar="[VALUE]", help="Its new value; default: show the knob.", show_default=False),
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Show the effect of a value, and change nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back the last change.")] = False,
    remark: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="The reason; scientific knobs need it.", show_default=False)
    ] = "",
    seen: Annotated[
        int | None,
        typer.Option(
            "--seen", metavar="REVISION", min=0, help="Refuse if it was changed since this.", show_default=False
        ),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Who changed it, when, from what to what.")] = False,
) -> ExitCode:
    """Show or change a setting of the living run."""
    import dataclasses

    from agentrl.cli.execute import act_with
    from agentrl.formatting.row_text import knob_value, takes_effect
    from agentrl.protocol.control_commands import Tune, UndoTune

    _check(knob, value, preview=preview, undo=undo, history=history)
    cli = dataclasses.replace(cli, dry_run=cli.dry_run or preview)
    async with cli.connect() as client:
        if knob is None:
            return _show_all(cli, await client.knobs(), await _groups(client))
        row = await _read(client, knob)
        revision = row.revision if seen is None else seen
        if undo:
            return await act_with(cli, client, "undo_tune", UndoTune(name=row.name, seen_revision=revision))
        if value is None:
            changes = await client.knob_history(row.name)
            return _show_one(cli, row, takes_effect(row, await _groups(client)), changes, history=history)
        try:
            wanted = row.verified().parse(value)
        except ConfigError as wrong:
            # The typed value is not part of the run file.
            raise UsageError(wrong.message, hint=f"Nothing was changed. It is {knob_value(row)} now.") from wrong
        args = Tune(name=row.name, value=wanted, seen_revision=revision, note=remark)
        return await act_with(cli, client, "tune", args)


def _check(knob: str | None, value: str | None, *, preview: bool, undo: bool, history: bool) -> None:
    if knob is not None and knob.startswith("--"):
        raise UsageError(f"There is no option {knob}.", hint="Try `agentrl tune --help`.")
    if knob is None and (preview or undo or history):
        raise UsageError("Name the knob.", hint="`agentrl tune` lists them.")
    if preview and value is None and not undo:
        raise UsageError("--preview needs the value to look at.", hint="Try `agentrl tune KNOB VALUE --preview`.")
    if value is not None and (undo or history):
        raise UsageError("A value goes with neither --undo nor --history.", hint="Give one of them.")


async def _read(client: Client, name: str) -> KnobRow:
    found = await client.knobs(name)
    for row in found:
        if row.name == name:
            return row
    import difflib

    names = [row.name for row in await client.knobs()]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else "`agentrl tune` lists them."
    raise UnknownNameError(f"There is no knob named {name!r}.", hint=hint)


async def _groups(client: Client) -> Iterable[GroupRow]:
    """The groups of the run. A new value has no effect on a group that is done."""
    return (await client.status()).groups


def _show_all(cli: Cli, found: list[KnobRow], groups: Iterable[GroupRow]) -> ExitCode:
    from agentrl.cli import output
    from agentrl.formatting.row_text import knob_range, knob_value, takes_effect

    if cli.json:
        output.emit(found)
        return ExitCode.OK
    rows = [
        (
            row.name,
            knob_value(row),
            knob_range(row),
            f"{takes_effect(row, groups)}{', scientific' if row.scientific else ''}",
            f"{output.since(row.changed_at)} ago" if row.changed_at else "",
            row.changed_by,
        )
        for row in found
    ]
    columns = ("knob", "value", "allowed", "takes effect", "changed", "by")
    width = output.console().width
    output.show(output.table(columns, rows, width=width, spare=("allowed", "by")), cli.color)
    return ExitCode.OK


def _show_one(cli: Cli, row: KnobRow, takes_effect: str, changes: list[AuditRow], *, history: bool) -> ExitCode:
    from agentrl.cli import output
    from agentrl.formatting.row_text import knob_range, knob_value
    from agentrl.protocol.knob import plain_value

    if cli.json:
        output.emit({"knob": row, "history": changes})
        return ExitCode.OK
    output.say(f"{row.name} = {knob_value(row)}")
    if row.help:
        output.say(row.help)
    scientific = "; scientific: a change begins a new segment and needs a note" if row.scientific else ""
    output.say(
        f"allowed {knob_range(row)}; default {plain_value(row.default)}; takes effect {takes_effect}; "
        f"revision {row.revision}{scientific}"
    )
    if len(changes) > 1 and not history:
        output.say(f"changed {len(changes)} times, --history shows all; last:")
    for change in changes if history else changes[-1:]:
        remark = f" ({change.note})" if change.note else ""
        output.say(f"{output.moment(change.at)}  {change.who}  {change.what}{remark}")
    return ExitCode.OK
