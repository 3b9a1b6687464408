"""Defines the commands `replay` and `replays list|show|stop|continue`: executing recorded tool calls again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from agentrl.cli import list_pages
from agentrl.cli.list_pages import After, Limit, Row
from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode, UsageError

NAMES = typer.Argument(metavar="REPLAY|OPERATION...", help="Ids of replays, or the id of an operation.")
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept.", show_default=False)]
MOST_CHARS = 2_000
"""The most characters of a result on screen; `--json` has more."""


def register(app: typer.Typer) -> None:
    add_command(app, "replay", acts=True)(replay)
    replays = group(app, "replays", "Tool calls that were executed again, with their results.")
    add_command(replays, "list", reads=True)(list_replays)
    add_command(replays, "show", reads=True)(show_replay)
    add_command(replays, "keep", acts=True)(keep)
    add_command(replays, "exclude", acts=True)(exclude)
    add_command(replays, "stop", acts=True)(stop)
    add_command(replays, "continue", acts=True)(go_on)


async def replay(
    cli: Cli,
    calls: Annotated[
        list[str] | None,
        typer.Argument(metavar="CALL...", help="Ids of tool calls, as `agentrl records show` has them."),
    ] = None,
    filter: Annotated[str, list_pages.filtering("replay", "Instead of calls: the newest failed ones.")] = "",
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=1, max=1000, help="With --filter: at most this many calls.")
    ] = 50,
    times: Annotated[int, typer.Option("--times", metavar="N", min=1, max=20, help="How often each call runs.")] = 1,
    server: Annotated[
        str, typer.Option("--server", metavar="NAME", help="Another tool server to run them on.", show_default=False)
    ] = "",
    edit: Annotated[
        str,
        typer.Option("--edit", metavar="JSON", help="Other arguments, for a single call.", show_default=False),
    ] = "",
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="SERVER.TOOL", help="A tool that acts outside may run.", show_default=False),
    ] = None,
    despite_differences: Annotated[
        bool, typer.Option("--despite-differences", help="Run it even if its session cannot be rebuilt exactly.")
    ] = False,
    then: Annotated[
        str, typer.Option("--then", metavar="fork", help="Fork the records of calls that work now.", show_default=False)
    ] = "",
    note: Note = "",
) -> ExitCode:
    """Execute recorded tool calls again, and compare the results.

    Each call runs in its own session; the earlier calls of the record are repeated first to rebuild its state. The
    record stays unchanged.
    """
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import ReplayCalls

    args = ReplayCalls(
        calls=tuple(calls or ()),
        filter=filter,
        most=most,
        times=times,
        server=server,
        edit=_arguments(edit) if edit else None,
        allow=tuple(allow or ()),
        despite_differences=despite_differences,
        then=then,
        note=note,
    )
    return await act(cli, "replay_calls", args)


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as wrong:
        raise UsageError(f"--edit is not JSON: {wrong}.", hint="""Such as --edit '{"item": "bake"}'.""") from wrong
    if not isinstance(value, dict):
        raise UsageError("--edit must be a JSON object: the arguments by name.")
    return value


async def list_replays(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("replays list")] = "",
    sort: Annotated[str, list_pages.sorting("replays list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List replays with their verdicts."""
    query = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await list_pages.show_page(
        cli, "list_replays", query, COLUMNS, right=("runs", "rebuilt", "took"), spare=("by", "rebuilt", "took", "when")
    )


async def show_replay(
    cli: Cli, replay: Annotated[str, typer.Argument(metavar="REPLAY", help="`agentrl replays list` has its id.")]
) -> ExitCode:
    """Show one replay with its runs, and what changed."""
    from agentrl.cli import output

    async with cli.connect() as client:
        story = await client.call("show_replay", {"id": replay}, deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(story)
    else:
        _show(story.document)
    return ExitCode.OK


def _show(row: Row) -> None:
    from agentrl.cli import output

    stopped = " (stopped)" if row["stopped"] else ""
    output.say(f"{row['id']}: {_verdict(row) or row['status']}{stopped}")
    on = f"{row['server']} ({row['server_version']})" if row["server_version"] else row["server"]
    elsewhere = f", instead of {row['recorded_server']}" if row["server"] != row["recorded_server"] else ""
    output.say(f"  {row['tool']} on {on}{elsewhere}, requested by {row['who'] or 'unknown'}")
    edited = " (edited)" if row["edited"] else ""
    output.say(f"  arguments{edited}: {json.dumps(row['arguments'], ensure_ascii=False)}")
    for name in ("reason", "error_class", "fault", "note", "forked", "decision"):
        if row.get(name):
            output.say(f"  {name}: {row[name]}")
    for call in row["rebuilt"]:
        output.say(f"  rebuilt by {call['call']} {call['tool']}: {'same' if call['same'] else 'different'}")
        _show_changes(call)
    then = row["then"]
    output.say(f"  then: {then['status']} in {output.duration(then['latency_s'])}: {_cut(then['result'])}")
    for number, run in enumerate(row["runs"], 1):
        output.say(f"  run {number}: {run['status']} in {output.duration(run['latency_s'])}: {_cut(run['result'])}")
        _show_changes(run)


def _show_changes(call: Mapping[str, Any]) -> None:
    from agentrl.cli import output

    for change in call["changes"]:
        output.say(f"    {change['path']}:")
        for sign, text in (("-", change["then"]), ("+", change["now"])):
            for line in text.splitlines() if text is not None else ():
                output.say(f"      {sign} {line}")
    if call["changes_left_out"]:
        output.say(f"    {call['changes_left_out']} more changes: --json")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"


async def keep(cli: Cli, replays: Annotated[list[str], NAMES], note: Note = "") -> ExitCode:
    """Note that replays were looked at. Their records stay as they are."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import KeepReplays

    return await act(cli, "keep_replays", KeepReplays(ids=tuple(replays), note=note))


async def exclude(cli: Cli, replays: Annotated[list[str], NAMES], note: Note = "") -> ExitCode:
    """Exclude the records of replays from training."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import ExcludeReplayed

    return await act(cli, "exclude_replayed", ExcludeReplayed(ids=tuple(replays), note=note))


async def stop(cli: Cli, replays: Annotated[list[str], NAMES]) -> ExitCode:
    """Hold queued replays back. Running replays finish."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import StopReplays

    return await act(cli, "stop_replays", StopReplays(ids=tuple(replays)))


async def go_on(cli: Cli, replays: Annotated[list[str], NAMES]) -> ExitCode:
    """Continue replays that were held back."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import ContinueReplays

    return await act(cli, "continue_replays", ContinueReplays(ids=tuple(replays)))


def _verdict(row: Row) -> str:
    verdict: str = row.get("verdict") or ""
    runs = row["counts"]["runs"] if "counts" in row else len(row["runs"])
    of = f" ({row['agreed']} of {runs})" if row.get("agreed") else ""
    edited = ", edited" if row.get("edited") else ""
    return f"{verdict}{of}{edited}" if verdict else ""


COLUMNS: list_pages.Columns = {
    "replay": list_pages.field("id"),
    "status": lambda row: "stopped" if row.get("stopped") and row["status"] == "queued" else row["status"],
    "verdict": _verdict,
    "server": list_pages.field("server"),
    "tool": list_pages.field("tool"),
    "runs": list_pages.field("counts.runs"),
    "rebuilt": list_pages.field("counts.rebuilt"),
    "took": list_pages.duration("duration_s"),
    "by": list_pages.field("who"),
    "when": list_pages.moment("created_at"),
    "why": list_pages.field("reason"),
}
