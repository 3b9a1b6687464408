"""Formats the lines of one record, turn by turn, and of attempts side by side.

Invariants:
- Text of models and tools is untrusted and may be long: it is folded to a few lines until it is unfolded, thinking to
  one line.
- Every record shows the one reason for its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from agentrl.formatting import record_text, tool_call_text
from agentrl.formatting.amounts import counted
from agentrl.formatting.lineage_text import lineage, relatives
from agentrl.formatting.safe_text import sanitise, sanitise_lines
from agentrl.protocol.data_commands import RecordStory, TokenStretch
from tui.model import token_lines
from tui.model.data_tables import Row, shown, status_tone, versions
from tui.model.styled_text import Line, Span, Tone, cut, span, width_of, wrapped
from tui.model.token_lines import Colouring

FOLDED = 4
"""Lines of a text that are shown while it is folded."""
UNFOLDED = 64 << 10
"""Characters of an unfolded text that are shown, because a page is drawn at every round."""
COLUMN = 36
"""Width of a column of attempts."""
BETWEEN = " │ "
_THOUGHT = re.compile(r"<think(?:ing)?>(.*?)(?:</think(?:ing)?>|\Z)\s*", re.DOTALL)


class RecordView(NamedTuple):
    """How the record is shown."""

    unfolded: bool = False
    colouring: Colouring = Colouring.NONE


class RecordLines(NamedTuple):
    lines: list[Line]
    turns: dict[int, int]
    """The first line of each turn."""


def of_record(story: RecordStory, width: int, look: RecordView, segments: Sequence[TokenStretch] = ()) -> RecordLines:
    """The reason for its end, its task, and then its turns."""
    record, room = story.record, max(20, width - 4)
    status = str(record.get("status"))
    made: list[Line] = [
        (span(record["id"], Tone.STRONG), Span("  "), span(status, status_tone(status))),
        (span(str(story.ending.get("sentence", ""))), span(_made_by(record), Tone.DIM)),
        (span(_facts(story), Tone.DIM),),
        *((span(sentence),) for sentence in lineage(record)),
    ]
    if look.colouring is not Colouring.NONE:
        made.append(token_lines.legend(look.colouring))
    made += [(), *text_lines("asked", str(story.task.get("query", "")), room, look.unfolded, Tone.PLAIN)]
    turns: dict[int, int] = {}
    if story.turns and int(story.turns[0].get("index", 0)) > 0:
        made.append((Span("There are earlier turns: [ or PgUp leads to them, Home to the first.", Tone.WARN),))
    for turn in story.turns:
        turns[int(turn.get("index", -1))] = len(made) + 1
        made += _turn(turn, room, look, token_lines.of_turn(segments, int(turn.get("index", -1))))
    if story.more_turns:
        made.append((Span("There are more turns: ] or PgDn leads to them, End to the last.", Tone.WARN),))
    for call in story.under_way:
        what = f"{call['server']}.{call['tool']} " if call.get("server") else ""
        made.append((span(f"not in a turn: {what}{call.get('id')} is {call.get('status')}", Tone.BUSY),))
    if others := other_attempts(story):
        made += [(), (Span("other attempts at this seat", Tone.ACCENT),)]
        made += [(span(f"  {each.get('id')}  {each.get('outcome') or each.get('status')}"),) for each in others]
    return RecordLines(made, turns)


def _made_by(record: Row) -> str:
    return f", on {record['owner']}" if record.get("owner") else ""


def related(story: RecordStory) -> list[Row]:
    """The other attempts at the same seat, and the records of its lineage."""
    others = other_attempts(story)
    known = {str(each.get("id")) for each in others}
    return [*others, *({"id": id} for id in relatives(story.record) if id not in known)]


def other_attempts(story: RecordStory) -> list[Row]:
    """The other attempts at the same seat."""
    return [attempt for attempt in story.attempts if attempt.get("id") != story.record["id"]]


def _facts(story: RecordStory) -> str:
    record, training = story.record, story.training
    parts = [f"score {shown(record.get('score'))}" if record.get("score") is not None else ""]
    parts.append(f"advantage {shown(training.get('advantage'))}" if training.get("advantage") is not None else "")
    parts += [
        versions(record, 0.0).text,
        counted(record.get("turns") or 0, "turns"),
        counted(record.get("generated_tokens") or 0, "tokens"),
    ]
    parts += [f"trained in {step}" for step in training.get("trained_in", ())]
    parts += record_text.decisions(record)
    return " · ".join(part for part in parts if part)


def _turn(turn: Row, room: int, look: RecordView, segments: Sequence[TokenStretch]) -> Iterator[Line]:
    call = turn.get("call") or {}
    spans = " ".join(f"v{version}×{count}" for version, count in call.get("versions", ()))
    at = f" at {call['engine']}" if call.get("engine") else ""
    seconds = f" · {call['seconds']:.2f} s" if call.get("seconds") else ""
    prompt = f" · {call['new_prompt_tokens']} new prompt tokens" if call.get("new_prompt_tokens") else ""
    yield ()
    for message in turn.get("from_loop", ()):
        by = f"from the agent loop ({message['role'] or 'no role'})"
        yield from text_lines(by, message["text"], room, look.unfolded, Tone.DIM)
    yield (Span(f"turn {turn.get('index')}", Tone.ACCENT), span(f"  {spans}{at}{seconds}{prompt}", Tone.DIM))
    if segments and look.colouring is not Colouring.NONE:
        for segment in segments:
            yield from _tokens(segment, room, look)
    else:
        yield from _model_text(str(turn.get("text", "")), room, look.unfolded)
    for parsed in turn.get("parsed", ()):
        if parsed.get("error"):
            yield (span(f"    cannot be read as a call: {parsed['error']}", Tone.WARN),)
    for tool in turn.get("tool_calls", ()):
        took = f" · {tool['latency_s']:.2f} s" if tool.get("latency_s") else ""
        tone = Tone.GOOD if tool.get("status") == "ok" else Tone.WARN
        called, ended = tool_call_text.invocation(tool), tool_call_text.ending(tool)
        yield (span(f"  → {called} ", Tone.BUSY), span(ended, tone), span(took, Tone.DIM))
        yield from text_lines("", str(tool.get("result", "")), room, look.unfolded, Tone.DIM, indent="    ")


def _tokens(segment: TokenStretch, room: int, look: RecordView) -> Iterator[Line]:
    """Generated tokens are never folded: they are the reason to open the page."""
    every = list(token_lines.lines(segment, look.colouring, room))
    some = every if look.unfolded or segment.kind == "model" else every[:FOLDED]
    yield from ((Span("  "), *line) for line in some)
    yield from _left_out(len(every) - len(some), "  ")


def _model_text(text: str, room: int, unfolded: bool) -> Iterator[Line]:
    """Text of a model; its thinking is one line until it is unfolded."""
    at = 0
    for thought in _THOUGHT.finditer(text):
        if text[at : thought.start()].strip():
            yield from text_lines("", text[at : thought.start()], room, unfolded, Tone.PLAIN)
        if unfolded:
            yield from text_lines("thinks", thought.group(1).strip(), room, True, Tone.DIM)
        elif count := len(thought.group(1).split()):
            yield (Span(f"  … thinks, {counted(count, 'words')}, f unfolds", Tone.DIM),)
        at = thought.end()
    if text[at:].strip() or not at:
        yield from text_lines("", text[at:], room, unfolded, Tone.PLAIN)


def text_lines(title: str, text: str, room: int, unfolded: bool, tone: Tone, indent: str = "  ") -> Iterator[Line]:
    """A text; folded, its first lines and the number of others."""
    shown_text = sanitise_lines(text[:UNFOLDED])
    lines = [part for line in shown_text.splitlines() for part in wrapped(sanitise(line), room)]
    some = lines if unfolded else lines[:FOLDED]
    for number, line in enumerate(some):
        head = f"{title}: " if title and not number else ""
        yield (Span(f"{indent}{head}", Tone.DIM), Span(line, tone))
    yield from _left_out(len(lines) - len(some), indent)
    if len(lines) == len(some) and len(text) > UNFOLDED:
        more = f"{indent}… {counted(len(text) - UNFOLDED, 'more signs')}; `agentrl records show` has all of them"
        yield (Span(more, Tone.DIM),)


def _left_out(count: int, indent: str) -> Iterator[Line]:
    if count > 0:
        yield (Span(f"{indent}… {counted(count, 'more lines')}, f unfolds", Tone.DIM),)


# ---- attempts side by side ----


def columns_for(width: int) -> int:
    """How many attempts fit; at least two."""
    return max(2, (width + len(BETWEEN)) // (COLUMN + len(BETWEEN)))


def beside(stories: Sequence[RecordStory], width: int, unfolded: bool) -> list[Line]:
    """Attempts in columns, aligned by turn; the first turn in which they differ is marked."""
    room = (width - len(BETWEEN) * (len(stories) - 1)) // max(1, len(stories))
    made = _aligned([_heading(story, room) for story in stories], room)
    by_turn = [{int(turn.get("index", -1)): turn for turn in story.turns} for story in stories]
    indices = sorted({index for turns in by_turn for index in turns})
    parted = first_difference(stories)
    for index in indices:
        made.append(())
        title: Line = (Span(f"turn {index}", Tone.ACCENT),)
        made.append((*title, Span("  ≠ they part here", Tone.WARN)) if index == parted else title)
        found = [turns.get(index) for turns in by_turn]
        made += _aligned([_short_turn(turn, room, unfolded) for turn in found], room)
    if parted is None and len(stories) > 1:
        made += [(), (Span("They say and do the same.", Tone.DIM),)]
    return made


def first_difference(stories: Sequence[RecordStory]) -> int | None:
    """The first turn in which texts or calls differ; a turn that only some have counts."""
    by_turn = [{int(turn.get("index", -1)): _essence(turn) for turn in story.turns} for story in stories]
    for index in sorted({index for turns in by_turn for index in turns}):
        if any(turns.get(index) != by_turn[0].get(index) for turns in by_turn[1:]):
            return index
    return None


def _essence(turn: Row) -> tuple[str, list[str]]:
    return str(turn.get("text", "")), [tool_call_text.invocation(tool) for tool in turn.get("tool_calls", ())]


def _heading(story: RecordStory, room: int) -> list[Line]:
    record = story.record
    status = str(record.get("status"))
    score = record.get("score")
    reward = f"reward {shown(score, 3)}" if score is not None else "no reward"
    seat = str(record["id"]).rpartition("#")[2] or record["id"]
    return [
        (span(seat, Tone.STRONG), span(f"  {status}", status_tone(status))),
        (span(reward, Tone.GOOD if isinstance(score, int | float) and score > 0 else Tone.WARN), span(_end(story))),
        (span(_facts(story), Tone.DIM),),
    ]


def _end(story: RecordStory) -> str:
    return f"  {story.ending.get('sentence', '')}"


def _short_turn(turn: Mapping[str, Any] | None, room: int, unfolded: bool) -> list[Line]:
    if turn is None:
        return [(Span("–", Tone.DIM),)]
    made = [_without_indent(line) for line in _model_text(str(turn.get("text", "")), room, unfolded)]
    for tool in turn.get("tool_calls", ()):
        tone = Tone.GOOD if tool.get("status") == "ok" else Tone.WARN
        made += [(Span(part, Tone.BUSY),) for part in wrapped(span(f"→ {tool_call_text.invocation(tool)}").text, room)]
        made.append((span(f"  {tool_call_text.ending(tool)}", tone),))
        result = text_lines("", str(tool.get("result", "")), room - 2, unfolded, Tone.DIM, indent="  ")
        made += list(result)
    return made


def _without_indent(line: Line) -> Line:
    return (Span(line[0].text.removeprefix("  "), line[0].tone), *line[1:]) if line else line


def _aligned(columns: Sequence[Sequence[Line]], room: int) -> list[Line]:
    """Side by side, each exactly as wide as its column."""
    made: list[Line] = []
    for parts in zip_longest(*columns, fillvalue=()):
        line: list[Span] = []
        for number, part in enumerate(parts):
            line += [Span(BETWEEN, Tone.DIM)] if number else []
            line += cut(part, room) if width_of(part) != room else part
        made.append(tuple(line))
    return made
