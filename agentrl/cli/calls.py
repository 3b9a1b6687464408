"""Defines the commands `calls list` and `calls show`: tool calls, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages
from agentrl.cli.list_pages import After, Limit, Row
from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.data_commands import CallStory

SPARE = ("trained", "replay", "unit", "at", "whose", "status")


def register(app: typer.Typer) -> None:
    calls = group(app, "calls", "Tool calls, one by one: how they ended, and why.", default="list")
    add_command(calls, "list", reads=True)(list_calls)
    add_command(calls, "show", reads=True)(show_call)


async def list_calls(
    cli: Cli,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    tool: Annotated[
        str, typer.Option("--tool", metavar="TOOL", help="Only of this tool: shop.lookup, lookup.", show_default=False)
    ] = "",
    error: Annotated[
        str,
        typer.Option(
            "--error",
            metavar="TEXT",
            help="Only those that `tools errors` counts under this message.",
            show_default=False,
        ),
    ] = "",
    record: Annotated[
        str, typer.Option("--record", metavar="RECORD", help="Only of this record.", show_default=False)
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Only the last 90s, 15m, 2h.", show_default=False)
    ] = "",
    filter: Annotated[str, list_pages.filtering("calls list")] = "",
    sort: Annotated[str, list_pages.sorting("calls list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List tool calls.

    `unit` is the sampler that made the call, `trained` whether a step trained its record.
    """
    from agentrl.formatting import tool_call_text

    options = tool_call_text.filter_of(tool, record, failed=failed, age=since)
    both = f"{options} and ({filter})" if options and filter else options or filter
    query = {"filter": both, "sort": sort, "after": after, "limit": limit, "error": error}
    return await list_pages.show_page(cli, "list_calls", query, COLUMNS, right=("took",), spare=SPARE)


async def show_call(
    cli: Cli,
    call: Annotated[str, typer.Argument(metavar="CALL", help="Its id, such as shop/train/0/000012#r1.s3.a1/002.0.")],
    chars: Annotated[int, typer.Option("--chars", metavar="N", min=0, help="Characters of each text; 0: all.")] = 4000,
) -> ExitCode:
    """Show a tool call: arguments, result, turn, record and session."""
    from agentrl.cli import output

    async with cli.connect() as client:
        story = await client.show_call(call, chars=chars, deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(story)
    else:
        _show(cli, story)
    return ExitCode.OK


def _show(cli: Cli, story: CallStory) -> None:
    from agentrl.cli import output
    from agentrl.formatting import tool_call_text

    call, record, turn = story.call, story.record, story.turn
    took = f", {call['latency_s']:.2f} s" if call.get("latency_s") else ""
    output.say(f"{call['id']}: {tool_call_text.ending(call)}{took}")
    output.block("call", tool_call_text.invocation(call))
    output.block("error" if call["failed"] else "result", call["result"])
    for name in ("requested_at", "done_at"):
        if call.get(name) is not None:
            output.say(f"  {name.replace('_', ' ')}: {output.moment(call[name].timestamp())}")
    output.say(f"  unit: {call['owner']}")
    trained = ", trained" if call["trained"] else ""
    output.say(f"  record: {record['id']} is {record['status']}{trained}: {record['ending']['sentence']}")
    output.block(f"turn {turn['turn']}", turn["text"])
    if story.session:
        output.say(f"  session: {call['session']}, {tool_call_text.place(story.session, call['id'])}")
    for replay in story.replays:
        edited = " with edited arguments" if replay.get("edited") else ""
        output.say(f"  replayed{edited} by {replay['who']}: {replay['verdict'] or replay['status']}")
    for one in story.session:
        mark = ">" if one["id"] == call["id"] else " "
        output.say(f"  {mark} {one['id']}  {tool_call_text.name(one)}  {tool_call_text.ending(one)}")
    output.say(cli.aimed(f"  agentrl records show '{record['id']}' --after-turn {turn['turn'] - 1}"))


def _tool(row: Row) -> object:
    from agentrl.formatting import tool_call_text

    return tool_call_text.name(row)


COLUMNS: list_pages.Columns = {
    "call": list_pages.field("id"),
    "tool": _tool,
    "status": list_pages.field("status"),
    "whose": list_pages.field("error_class"),
    "unit": list_pages.field("owner"),
    "at": list_pages.moment("requested_at"),
    "trained": list_pages.field("trained"),
    "replay": list_pages.field("replay"),
    "took": list_pages.duration("latency_s"),
    "what": list_pages.field("result"),
}
