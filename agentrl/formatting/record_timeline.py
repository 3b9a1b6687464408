"""The events of a record as spans on tracks, for its page and for programs that show traces.

Programs such as Perfetto and `chrome://tracing` read the JSON of `trace`.

Invariants:
- Spans of one track do not overlap: concurrent spans are on separate tracks.
- Model calls of a branch are on the track of that branch.
- Any time of an episode without a call of a model or a tool is a wait, so the tracks together cover all of its time.
- An arrow goes from each model call to every tool call of its turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from agentrl.formatting import tool_call_text
from agentrl.formatting.safe_text import sanitise
from agentrl.protocol.data_commands import RecordStory

Row = Mapping[str, Any]
EPISODE, MODEL, TOOLS, OTHERS, WAITS = "episode", "model calls", "tool calls", "other models", "waits"
SHORTEST = timedelta(milliseconds=1)
"""The shortest wait that is shown; a shorter gap is only the step from one call to the next."""


class Span(NamedTuple):
    track: str
    kind: str
    """`episode`, `model`, `tool`, `other` or `wait`."""
    name: str
    begin: datetime
    end: datetime
    facts: Mapping[str, Any]
    turn: int | None = None
    """The turn to which a call belongs."""


def spans(story: RecordStory, others: Sequence[Row] = ()) -> list[Span]:
    """The spans, sorted by track and time. Calls that have not ended are left out. `others` are calls of other models
    that the record caused."""
    record, turns = story.record, story.turns
    busy = [*_model_calls(story), *_tool_calls(story), *_other_models(others)]
    found = [*busy, *_of_turns(turns)]
    if record.get("started_at") and record.get("finished_at"):
        found += _waits(busy, record["started_at"], record["finished_at"])
    if span := _span(EPISODE, "wait", "waits for a sampler", record.get("created_at"), record.get("started_at")):
        found.append(span)
    return list(_side_by_side(found))


def _span(
    track: str, kind: str, name: str, begin: Any, end: Any, facts: Row | None = None, turn: int | None = None
) -> Span | None:
    if not isinstance(begin, datetime) or not isinstance(end, datetime) or end < begin:
        return None
    return Span(track, kind, sanitise(name), begin, end, facts or {}, turn)


def _of_turns(turns: Sequence[Row]) -> Iterator[Span]:
    for turn in turns:
        branch = _branch(turn["call"] or {})
        facts = {"reason": turn.get("reason", ""), "text": str(turn.get("text", ""))[:1000]}
        name = f"turn {turn['index']}{branch}"
        if span := _span(EPISODE, "episode", name, turn.get("started_at"), turn.get("done_at"), facts):
            yield span


def _model_calls(story: RecordStory) -> Iterator[Span]:
    alone = [(None, call) for call in story.under_way if "tool" not in call]
    names = ("status", "engine", "finish_reason", "new_prompt_tokens", "output_tokens", "versions", "error")
    for index, call in [*((turn["index"], turn["call"] or {}) for turn in story.turns), *alone]:
        facts = {name: call[name] for name in names if call.get(name)}
        track, name = f"{MODEL}{_branch(call)}", f"model call {call.get('index', '')}".rstrip()
        if span := _span(track, "model", name, call.get("sent_at"), call.get("done_at"), facts, index):
            yield span


def _tool_calls(story: RecordStory) -> Iterator[Span]:
    alone = [(None, call) for call in story.under_way if "tool" in call]
    names = ("id", "status", "error_class", "tried_again", "session", "arguments", "result")
    for index, call in [*((turn["index"], call) for turn in story.turns for call in turn["tool_calls"]), *alone]:
        facts = {name: call[name] for name in names if call.get(name)}
        end = call.get("done_at") or _after(call.get("requested_at"), call.get("latency_s"))
        if span := _span(TOOLS, "tool", tool_call_text.name(call), call.get("requested_at"), end, facts, index):
            yield span


def _other_models(calls: Sequence[Row]) -> Iterator[Span]:
    names = ("service", "outcome", "tries", "tokens_in", "tokens_out", "cost", "error")
    for call in calls:
        begin = datetime.fromtimestamp(call["at"], UTC)
        facts = {name: call[name] for name in names if call.get(name)}
        end = begin + timedelta(seconds=call.get("latency_s") or 0.0)
        if span := _span(OTHERS, "other", call.get("purpose") or call["model"], begin, end, facts):
            yield span


def _after(begin: Any, seconds: Any) -> datetime | None:
    return begin + timedelta(seconds=seconds) if isinstance(begin, datetime) and seconds else None


def _branch(call: Row) -> str:
    return f" of {call['branch']}" if call.get("branch") else ""


def _waits(busy: Iterable[Span], begin: datetime, end: datetime) -> Iterator[Span]:
    """The gaps between calls: code of the agent loop, and its own waits."""
    at = begin
    for span in [*sorted(busy, key=lambda one: one.begin), Span(WAITS, "wait", "", end, end, {})]:
        until = min(span.begin, end)  # Calls of judges afterwards are outside of the episode.
        if until - at > SHORTEST:
            yield Span(WAITS, "wait", "agent loop", at, until, {})
        at = max(at, span.end)


def _side_by_side(found: Iterable[Span]) -> Iterator[Span]:
    """Moves spans that overlap others of their track to a further track of the same name."""
    tracks: dict[str, list[Span]] = defaultdict(list)
    for span in found:
        tracks[span.track].append(span)
    for track in sorted(tracks, key=_order):
        lanes: list[list[Span]] = []
        for span in sorted(tracks[track], key=lambda one: (one.begin, one.end)):
            lane = next((lane for lane in lanes if lane[-1].end <= span.begin), None)
            if lane is None:
                lanes.append(lane := [])
            lane.append(span._replace(track=f"{track} {lanes.index(lane) + 1}" if lane is not lanes[0] else track))
        yield from (span for lane in lanes for span in lane)


def _order(track: str) -> tuple[int, str]:
    kinds = (EPISODE, MODEL, TOOLS, OTHERS, WAITS)
    return next(number for number, kind in enumerate(kinds) if track.startswith(kind)), track


# ---- the JSON of trace viewers ----


def trace(story: RecordStory, others: Sequence[Row] = ()) -> bytes:
    """The trace event format: complete events in microseconds, a thread for each track, a flow for each arrow."""
    found, id = spans(story, others), str(story.record["id"])
    begin = min((span.begin for span in found), default=None)
    threads = {track: number for number, track in enumerate(dict.fromkeys(span.track for span in found), 1)}
    events: list[dict[str, Any]] = [_named("process_name", 0, id)]
    for track, number in threads.items():
        events += [_named("thread_name", number, track), _sorted(number)]
    slices = [(span, _slice(span, threads[span.track], begin or span.begin)) for span in found]
    events += [event for _, event in slices]
    events += _arrows(slices)
    about = {"record": id, "ending": story.ending.get("sentence", ""), "score": story.record.get("score")}
    about |= {"trace": story.trace, "began_at": begin}
    return msgspec.json.encode({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events})


def _slice(span: Span, thread: int, begin: datetime) -> dict[str, Any]:
    times = {"ts": _microseconds(span.begin - begin), "dur": _microseconds(span.end - span.begin)}
    return {"ph": "X", **_place(thread, span.name, span.kind), **times, "args": dict(span.facts)}


def _arrows(slices: Sequence[tuple[Span, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Flow events from model calls to tool calls. A viewer binds each end of an arrow to the slice around it, so the
    arrow begins before the model call ends."""
    calls = {span.turn: event for span, event in slices if span.kind == "model" and span.turn is not None}
    caused = [(calls[span.turn], event) for span, event in slices if span.kind == "tool" and span.turn in calls]
    for id, (call, tool) in enumerate(caused, 1):
        last = min(call["ts"] + max(call["dur"] - 1, 0), tool["ts"])
        yield {"ph": "s", **_place(call["tid"], "calls", "flow"), "ts": last, "id": id}
        yield {"ph": "f", "bp": "e", **_place(tool["tid"], "calls", "flow"), "ts": tool["ts"], "id": id}


def _place(thread: int, name: str, kind: str) -> dict[str, Any]:
    return {"pid": 1, "tid": thread, "name": name, "cat": kind}


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": what, "args": {"name": name}}


def _sorted(thread: int) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _microseconds(length: timedelta) -> int:
    return round(length / timedelta(microseconds=1))
