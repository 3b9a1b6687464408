"""Records and steps of the data plane as lists have them, and one record turn by turn.

Invariants: what models and tools said is hostile and may be long: it is folded to some lines unless it is asked for;
every record shows the one reason for its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.protocol.data import RecordStory, Story, ToolErrorGroup
from agentrl.words.safe import sanitise_lines
from tui.model import wording
from tui.model.ink import Line, Span, Tone, span, wrapped
from tui.model.table import Column

Row = Mapping[str, Any]
FOLDED = 4
"""Lines of a text that are shown while it is folded."""
UNFOLDED = 64 << 10
"""Signs of a text that are shown when it is not: a page is drawn anew at every round."""

_STATUS_TONES = {"finished": Tone.GOOD, "scored": Tone.GOOD, "running": Tone.BUSY, "committed": Tone.GOOD}
_STATUS_TONES |= {"failed": Tone.BAD, "dead": Tone.BAD, "rolled_back": Tone.WARN, "released": Tone.WARN}


def _number(row: Row, *names: str) -> float:
    value: Any = row
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else -1e300


def _shown(value: object, digits: int = 4) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _status(row: Row, now: float) -> Span:
    name = str(row.get("status", ""))
    return span(name, _STATUS_TONES.get(name, Tone.PLAIN))


def _versions(row: Row, now: float) -> Span:
    oldest, newest = row.get("oldest_version"), row.get("newest_version")
    if oldest is None:
        return Span("")
    return span(f"v{oldest}" if oldest == newest else f"v{oldest}–v{newest}")


def _time(row: Row) -> float:
    return max(_number(row, "age_s"), _number(row, "duration_s"), 0.0)


def _took(row: Row, now: float) -> Span:
    return Span(wording.brief(seconds) if (seconds := _time(row)) else "")


def doing(row: Row) -> str:
    """What a running record waits for, or why an ended one ended."""
    now = row.get("doing")
    if isinstance(now, Mapping):
        return f"{now.get('what')}, {wording.brief(float(now.get('age_s') or 0))}"
    outcome, error = row.get("outcome") or "", row.get("error") or ""
    return f"{outcome}: {error}" if outcome and error else str(outcome or error)


def record_columns() -> tuple[Column[Row], ...]:
    return (
        Column("order", "", 0, lambda row, now: Span(""), lambda row: row["~order"], optional=True),
        Column("id", "RECORD", 30, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"])),
        Column("status", "STATUS", 9, _status, lambda row: str(row.get("status"))),
        Column("score", "SCORE", 6, _score, lambda row: _number(row, "score"), True, 1),
        Column("turns", "TURNS", 5, _plain("turns"), lambda row: _number(row, "turns"), True, 3),
        Column(
            "tokens", "TOKENS", 6, _plain("generated_tokens"), lambda row: _number(row, "generated_tokens"), True, 4
        ),
        Column("took", "TOOK", 5, _took, _time, True, 2),
        Column("versions", "WEIGHTS", 9, _versions, lambda row: _number(row, "newest_version"), rank=5, optional=True),
        Column("owner", "OWNER", 12, _plain("owner"), lambda row: str(row.get("owner") or ""), rank=6, optional=True),
        Column("what", "WHAT", 24, lambda row, now: span(doing(row), Tone.DIM), doing, stretches=True),
    )


def step_columns() -> tuple[Column[Row], ...]:
    return (
        Column("order", "", 0, lambda row, now: Span(""), lambda row: row["~order"], optional=True),
        Column("id", "STEP", 20, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"])),
        Column("status", "STATUS", 11, _status, lambda row: str(row.get("status"))),
        Column(
            "records", "RECORDS", 7, _plain("counts", "records"), lambda row: _number(row, "counts", "records"), True, 3
        ),
        Column("from", "FROM", 5, _plain("base_version"), lambda row: _number(row, "base_version"), True, 5),
        _metric("reward", "REWARD", "reward_mean", 0),
        _metric("loss", "LOSS", "loss", 2),
        _metric("entropy", "ENTROPY", "entropy", 4),
        _metric("gradient", "GRAD", "gradient_norm", 6),
        _metric("mismatch", "MISMATCH", "mismatch_mean", 7),
        _metric("zero", "ZEROVAR", "zero_variance_share", 8),
        Column("took", "TOOK", 5, _took, _time, True, 1),
        Column("why", "", 8, lambda row, now: span(row.get("reason") or "", Tone.DIM), lambda row: 0, stretches=True),
    )


def _metric(name: str, title: str, metric: str, rank: int) -> Column[Row]:
    def show(row: Row, now: float) -> Span:
        return span(_shown(row.get("metrics", {}).get(metric)))

    return Column(name, title, 8, show, lambda row: _number(row, "metrics", metric), True, rank)


def _plain(*names: str) -> Any:
    def show(row: Row, now: float) -> Span:
        value: Any = row
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return span(_shown(value))

    return show


def _score(row: Row, now: float) -> Span:
    value = row.get("score")
    return span(_shown(value, 3), Tone.GOOD if isinstance(value, int | float) and value > 0 else Tone.PLAIN)


# ---- one record ----


def of_record(story: RecordStory, width: int, *, unfolded: bool) -> list[Line]:
    """Why it ended, what it was asked, and then turn by turn."""
    record, room = story.record, max(20, width - 4)
    status = str(record.get("status"))
    made = [
        (span(record["id"], Tone.STRONG), Span("  "), span(status, _STATUS_TONES.get(status, Tone.PLAIN))),
        (span(str(story.ending.get("sentence", ""))),),
        (span(_facts(story), Tone.DIM),),
        (),
        *_text("asked", str(story.task.get("query", "")), room, unfolded, Tone.PLAIN),
    ]
    for turn in story.turns:
        made += _turn(turn, room, unfolded)
    if story.more_turns:
        made.append((Span("There are more turns; `agentrl records show` has all of them.", Tone.WARN),))
    for call in story.under_way:
        made.append((span(f"not part of a turn: {call.get('id')} is {call.get('status')}", Tone.BUSY),))
    others = [attempt for attempt in story.attempts if attempt.get("id") != record["id"]]
    if others:
        made += [(), (Span("other attempts at this seat", Tone.ACCENT),)]
        made += [(span(f"  {each.get('id')}  {each.get('outcome') or each.get('status')}"),) for each in others]
    return made


def _facts(story: RecordStory) -> str:
    record, training = story.record, story.training
    parts = [f"score {_shown(record.get('score'))}" if record.get("score") is not None else ""]
    parts.append(f"advantage {_shown(training.get('advantage'))}" if training.get("advantage") is not None else "")
    parts += [_versions(record, 0.0).text, f"{record.get('turns')} turns", f"{record.get('generated_tokens')} tokens"]
    parts += [f"trained in {step}" for step in training.get("trained_in", ())]
    return " · ".join(part for part in parts if part)


def _turn(turn: Row, room: int, unfolded: bool) -> Iterator[Line]:
    call = turn.get("call") or {}
    spans = " ".join(f"v{version}×{tokens}" for version, tokens in call.get("versions", ()))
    at = f" at {call['engine']}" if call.get("engine") else ""
    seconds = f" · {call['seconds']:.2f} s" if call.get("seconds") else ""
    prompt = f" · {call['new_prompt_tokens']} new prompt tokens" if call.get("new_prompt_tokens") else ""
    yield ()
    yield (Span(f"turn {turn.get('index')}", Tone.ACCENT), span(f"  {spans}{at}{seconds}{prompt}", Tone.DIM))
    yield from _text("", str(turn.get("text", "")), room, unfolded, Tone.PLAIN)
    for parsed in turn.get("parsed", ()):
        if parsed.get("error"):
            yield (span(f"    cannot be read as a call: {parsed['error']}", Tone.WARN),)
    for tool in turn.get("tool_calls", ()):
        name = f"{tool['server']}.{tool['tool']}" if tool.get("server") else str(tool.get("tool"))
        given = ", ".join(f"{key}={value!r}" for key, value in (tool.get("arguments") or {}).items())
        fault = f" ({tool['error_class']})" if tool.get("error_class") else ""
        again = f", tried again: {tool['tried_again']}" if tool.get("tried_again") else ""
        took = f" · {tool['latency_s']:.2f} s" if tool.get("latency_s") else ""
        tone = Tone.GOOD if tool.get("status") == "ok" else Tone.WARN
        yield (
            span(f"  → {name}({given}) ", Tone.BUSY),
            span(f"{tool.get('status')}{fault}{again}", tone),
            span(took, Tone.DIM),
        )
        yield from _text("", str(tool.get("result", "")), room, unfolded, Tone.DIM, indent="    ")


def _text(title: str, text: str, room: int, unfolded: bool, tone: Tone, indent: str = "  ") -> Iterator[Line]:
    """Line by line; folded, some lines and how many more there are."""
    told = sanitise_lines(text[:UNFOLDED])
    lines = [part for line in told.splitlines() for part in wrapped(span(line).text, room)]
    shown = lines if unfolded else lines[:FOLDED]
    for number, line in enumerate(shown):
        head = f"{title}: " if title and not number else ""
        yield (Span(f"{indent}{head}", Tone.DIM), Span(line, tone))
    if len(lines) > len(shown):
        yield (Span(f"{indent}… {len(lines) - len(shown)} more lines, f unfolds", Tone.DIM),)
    elif len(text) > UNFOLDED:
        more = f"{indent}… {len(text) - UNFOLDED} more signs; `agentrl records show` has all of them"
        yield (Span(more, Tone.DIM),)


# ---- one step, and what tools did wrong ----


def of_step(story: Story, width: int) -> list[Line]:
    step = story.document
    reason = f" ({step['reason']})" if step.get("reason") else ""
    made: list[Line] = [
        (span(step["id"], Tone.STRONG), span(f"  {step.get('status')}{reason}, from v{step.get('base_version')}")),
        (),
        (Span("metrics", Tone.ACCENT),),
    ]
    measured = [f"{name} {_shown(value)}" for name, value in sorted(step.get("metrics", {}).items())]
    column = max((len(text) for text in measured), default=1) + 3
    a_line = max(1, (width - 2) // column)
    starts = range(0, len(measured), a_line)
    made += [(span("  " + "".join(each.ljust(column) for each in measured[at : at + a_line])),) for at in starts]
    made += [
        (),
        (Span(f"its records ({len(story.records)} of {len(story.records) + story.more_records})", Tone.ACCENT),),
    ]
    made += [(span(f"  {row['id']}  {_shown(row.get('score'))}  {doing(row)}"),) for row in story.records]
    return made


def error_columns() -> tuple[Column[ToolErrorGroup], ...]:
    return (
        Column("count", "COUNT", 6, lambda row, now: span(row.count, Tone.STRONG), lambda row: row.count, True),
        Column(
            "last", "LAST", 5, lambda row, now: Span(wording.ago(row.last_at, now)), lambda row: row.last_at, True, 2
        ),
        Column("tool", "TOOL", 22, lambda row, now: span(_tool(row)), _tool),
        Column("status", "STATUS", 12, lambda row, now: span(row.status, Tone.WARN), lambda row: row.status, rank=1),
        Column("class", "WHOSE", 14, lambda row, now: span(row.error_class), lambda row: row.error_class, rank=3),
        Column("what", "WHAT", 16, lambda row, now: span(row.message), lambda row: row.message, stretches=True),
    )


def _tool(row: ToolErrorGroup) -> str:
    return f"{row.server}.{row.tool}" if row.server else row.tool
