"""Defines the commands `records list` and `records show`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages, record_changes, record_exports, record_files
from agentrl.cli.list_pages import After, Limit, Row
from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.client import Client
    from agentrl.client.long_answers import Tokens
    from agentrl.protocol.data_commands import RecordStory, Story

RIGHT = ("score", "turns", "tokens", "took")
SPARE = ("begun", "tokens", "owner")


def register(app: typer.Typer) -> None:
    records = group(app, "records", "Attempts: whole episodes, turn by turn.")
    add_command(records, "list", reads=True)(list_records)
    add_command(records, "show", reads=True)(show_record)
    record_exports.register(records)
    record_files.register(records)
    record_changes.register(records)


async def list_records(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("records list")] = "",
    sort: Annotated[str, list_pages.sorting("records list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List attempts; running ones with the call that they wait for."""
    query = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await list_pages.show_page(cli, "list_records", query, COLUMNS, right=RIGHT, spare=SPARE)


# ---- one record ----


async def show_record(
    cli: Cli,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="Its id, such as shop/train/0/000012#r1.s3.a1.")],
    after_turn: Annotated[int, typer.Option("--after-turn", metavar="N", help="Begin after this turn.")] = -1,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most this many turns.")
    ] = 100,
    chars: Annotated[int, typer.Option("--chars", metavar="N", min=0, help="Characters of each text; 0: all.")] = 4000,
    tokens: Annotated[bool, typer.Option("--tokens", help="The tree of its tokens, and which of them train.")] = False,
) -> ExitCode:
    """Show an attempt turn by turn, and why it ended.

    With texts, tool calls, latencies and versions.
    """
    from agentrl.cli import output

    async with cli.connect() as client:
        if tokens:
            return _show_tokens(
                await _tokens(client, record, range(after_turn + 1, after_turn + 1 + limit)), cli, chars
            )
        story = await client.show_record(
            record, after_turn=after_turn, limit=limit, chars=chars, deadline_s=list_pages.ANSWER_WITHIN_S
        )
    if cli.json:
        output.emit(story)
        return ExitCode.OK
    _show(story)
    if story.more_turns:
        output.note(f"There are more turns: --after-turn {story.turns[-1]['index']}")
    return ExitCode.OK


def _show(story: RecordStory) -> None:
    from agentrl.cli import output

    record = story.record
    owner = f" by {record['owner']}" if record.get("owner") else ""
    output.say(f"{record['id']} is {record['status']}{owner}: {story.ending['sentence']}")
    _show_training(story)
    if story.trace:
        output.say(f"  trace {story.trace}")
    _show_lineage(record)
    output.block("query", story.task["query"])
    for turn in story.turns:
        _show_turn(turn)
    for call in story.under_way:
        output.say(f"not in a turn: {call['id']} is {call['status']}{_of(call.get('error'))}")
    others = [attempt for attempt in story.attempts if attempt["id"] != record["id"]]
    for attempt in others:
        ended = attempt["outcome"] or attempt["status"]
        output.say(f"another attempt at this seat: {attempt['id']}: {ended}{_of(attempt['error'])}")


def _show_training(story: RecordStory) -> None:
    from agentrl.cli import output
    from agentrl.formatting import record_text
    from agentrl.formatting.amounts import counted

    record, training = story.record, story.training
    parts = [] if record.get("score") is None else [f"score {record['score']:.4g}"]
    parts += [] if training.get("advantage") is None else [f"advantage {training['advantage']:.4g}"]
    if record.get("oldest_version") is not None:
        parts.append(f"versions {record['oldest_version']} to {record['newest_version']}")
    parts.append(f"{counted(record['turns'], 'turns')}, {counted(record['generated_tokens'], 'tokens')}")
    parts += [f"trained in {step}" for step in training.get("trained_in", ())]
    output.say(f"  {', '.join(parts)}")
    for line in record_text.decisions(record):
        output.say(f"  {line}")


def _show_lineage(record: Row) -> None:
    from agentrl.cli import output
    from agentrl.formatting.lineage_text import lineage

    for sentence in lineage(record):
        output.say(f"  {sentence}")


def _show_turn(turn: Row) -> None:
    from agentrl.cli import output
    from agentrl.formatting import tool_call_text
    from agentrl.formatting.amounts import counted

    for message in turn.get("from_loop", ()):
        output.say()
        output.block(f"from the agent loop ({message['role'] or 'no role'})", message["text"])
    call = turn["call"] or {}
    made_by = ", ".join(f"v{version} {counted(tokens, 'tokens')}" for version, tokens in call.get("versions", ()))
    at = f" at {call['engine']}" if call.get("engine") else ""
    output.say()
    output.say(f"turn {turn['index']}: {made_by or 'no tokens'}{at}{_took(call.get('seconds'))}{_of(turn['reason'])}")
    output.block("", turn["text"])
    for parsed in turn["parsed"]:
        if parsed["error"]:
            output.say(f"  cannot be read as a call: {parsed['error']}")
    for tool in turn["tool_calls"]:
        output.say(f"  {tool_call_text.invocation(tool)}: {tool_call_text.ending(tool)}{_took(tool['latency_s'])}")
        output.block("", tool["result"], indent="    ")


def _took(seconds: float | None) -> str:
    return f", {seconds:.2f} s" if seconds else ""


def _of(reason: str | None) -> str:
    return f": {reason}" if reason else ""


async def show_with_records(cli: Cli, command: str, id: str, tell: Callable[[Cli, Story], None]) -> ExitCode:
    """Show one object with its fields, then its records as a table."""
    from agentrl.cli import output

    async with cli.connect() as client:
        story = await client.call(command, {"id": id}, deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(story)
        return ExitCode.OK
    tell(cli, story)
    if story.records:
        output.say()
        list_pages.show_rows(cli, story.records, COLUMNS, right=RIGHT, spare=SPARE)
    if story.more_records:
        output.note(f"{story.more_records} more; `agentrl records list` has all of them.")
    return ExitCode.OK


# ---- its tokens ----


async def _tokens(client: Client, record: str, turns: range) -> Tokens:
    """The tokens of some turns."""
    import msgspec

    from agentrl.client import long_answers
    from agentrl.formatting.amounts import counted

    found = await long_answers.tokens(client, record)
    shown = tuple(each for each in found.segments if each.turn in turns or each.turn < 0)
    left_out = len(found.segments) - len(shown)
    missing = f"Left out: {counted(left_out, 'segments')} of other turns."
    return msgspec.structs.replace(found, segments=shown, note=f"{found.note} {missing}".strip()) if left_out else found


def _show_tokens(found: Tokens, cli: Cli, chars: int) -> ExitCode:
    from agentrl.cli import output
    from agentrl.formatting import token_tree_text

    if cli.json:
        output.emit(found)
        return ExitCode.OK
    places = {segment.segment: place for place, segment in enumerate(found.segments)}
    heads = token_tree_text.heads([places.get(segment.parent, token_tree_text.ROOT) for segment in found.segments])
    for head, segment in zip(heads, found.segments, strict=True):
        turn = f"turn {segment.turn}" if segment.turn >= 0 else "no turn"
        output.say(f"{head}{turn}: {token_tree_text.summary(segment)}")
        text = "".join(token_tree_text.texts(segment))
        cut = text if not chars or len(text) <= chars else f"{text[:chars]}…"
        for line in output.sanitise_lines(cut).splitlines():
            output.say(f"{' ' * len(head)}  {line}")
    if found.note:
        output.note(found.note)
    return ExitCode.OK


# ---- rows ----


def _what(row: Row) -> object:
    doing = row.get("doing")
    if doing:
        return f"{doing['what']}, {doing['age_s'] or 0:.0f} s"
    return row.get("error") or row.get("outcome")


def _time_taken(row: Row) -> object:
    from agentrl.cli import output

    seconds = row.get("age_s") or row.get("duration_s")
    return output.duration(seconds) if seconds else ""


COLUMNS: list_pages.Columns = {
    "record": list_pages.field("id"),
    "status": list_pages.field("status"),
    "owner": list_pages.field("owner"),
    "score": list_pages.field("score"),
    "turns": list_pages.field("turns"),
    "tokens": list_pages.field("generated_tokens"),
    "took": _time_taken,
    "begun": list_pages.moment("started_at"),
    "what": _what,
}
