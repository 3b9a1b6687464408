"""Defines the columns of records, steps and tool calls, and the lines of one step.

Invariants:
- An ended record shows the one reason for its end.
- A running record shows what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agentrl.formatting import tool_call_text
from agentrl.formatting.amounts import counted
from agentrl.protocol.data_commands import Story, ToolErrorGroup
from agentrl.telemetry import loss_terms
from tui.model import cell_text
from tui.model.styled_text import Line, Span, Tone, span, wrapped
from tui.model.table import Column, order_column

Row = Mapping[str, Any]
_STATUS_TONES = {"finished": Tone.GOOD, "scored": Tone.GOOD, "running": Tone.BUSY, "committed": Tone.GOOD}
_STATUS_TONES |= {"failed": Tone.BAD, "dead": Tone.BAD, "rolled_back": Tone.WARN, "released": Tone.WARN}


def _number(row: Row, *names: str) -> float:
    value: Any = row
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else -1e300


def shown(value: object, digits: int = 4) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def status_tone(status: str) -> Tone:
    return _STATUS_TONES.get(status, Tone.PLAIN)


def _status(row: Row, now: float) -> Span:
    name = str(row.get("status", ""))
    return span(name, status_tone(name))


def versions(row: Row, now: float) -> Span:
    oldest, newest = row.get("oldest_version"), row.get("newest_version")
    if oldest is None:
        return Span("")
    return span(f"v{oldest}" if oldest == newest else f"v{oldest}–v{newest}")


def _time(row: Row) -> float:
    return max(_number(row, "age_s"), _number(row, "duration_s"), 0.0)


def _took(row: Row, now: float) -> Span:
    return Span(cell_text.quick(seconds) if (seconds := _time(row)) else "")


def doing(row: Row) -> str:
    """The wait of a running record, or the reason for the end of a record."""
    now = row.get("doing")
    if isinstance(now, Mapping):
        return f"{now.get('what')}, {cell_text.brief(float(now.get('age_s') or 0))}"
    if row.get("status") == "running":
        # A call appears as running once it has taken a second.
        return "no call over 1 s"
    outcome, error = row.get("outcome") or "", row.get("error") or ""
    return f"{outcome}: {error}" if outcome and error else str(outcome or error)


def summary(row: Row) -> str:
    """A record in a few words, shown behind its id."""
    return " ".join(part for part in (shown(row.get("score")), doing(row) or str(row.get("status", ""))) if part)


def record_columns() -> tuple[Column[Row], ...]:
    return (
        order_column(),
        Column("id", "RECORD", 30, lambda row, now: span(row["id"], Tone.STRONG), lambda row: str(row["id"]), least=20),
        Column("status", "STATUS", 9, _status, lambda row: str(row.get("status"))),
        Column("score", "SCORE", 6, _score, lambda row: _number(row, "score"), True, 1),
        Column("turns", "TURNS", 5, _plain("turns"), lambda row: _number(row, "turns"), True, 3),
        Column(
            "tokens", "TOKENS", 6, _plain("generated_tokens"), lambda row: _number(row, "generated_tokens"), True, 4
        ),
        Column("took", "TOOK", 5, _took, _time, True, 2),
        Column("versions", "WEIGHTS", 9, versions, lambda row: _number(row, "newest_version"), rank=5, optional=True),
        Column("owner", "OWNER", 12, _plain("owner"), lambda row: str(row.get("owner") or ""), rank=6, optional=True),
        Column("what", "WHAT", 24, lambda row, now: span(doing(row), Tone.DIM), doing, stretches=True),
    )


def review_columns() -> tuple[Column[Row], ...]:
    def why(row: Row) -> str:
        return "; ".join(row["why"])

    shown = [column for column in record_columns() if column.name in ("order", "id", "score", "turns", "tokens")]
    return (*shown, Column("why", "WHY", 40, lambda row, now: span(why(row), Tone.WARN), why, stretches=True))


def step_name(row: Row) -> str:
    """An id without the start time of its trainer, because the number at its end would be cut off."""
    trainer, at, rest = str(row["id"]).partition("@")
    _, slash, number = rest.rpartition("/")
    return f"{trainer}/{number}" if at and slash else str(row["id"])


def step_columns() -> tuple[Column[Row], ...]:
    return (
        order_column(),
        Column(
            "id",
            "STEP",
            20,
            lambda row, now: span(step_name(row), Tone.STRONG),
            lambda row: str(row["id"]),
        ),
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
        Column("why", "", 8, _why, lambda row: 0, stretches=True),
    )


def _why(row: Row, now: float) -> Span:
    if untold := row.get("untold"):
        return Span(f"{untold} not told before it", Tone.WARN)
    return span(row.get("reason") or "", Tone.DIM)


def _metric(name: str, title: str, metric: str, rank: int) -> Column[Row]:
    def show(row: Row, now: float) -> Span:
        return span(shown(row.get("metrics", {}).get(metric)))

    return Column(name, title, 8, show, lambda row: _number(row, "metrics", metric), True, rank)


def _plain(*names: str) -> Any:
    def show(row: Row, now: float) -> Span:
        value: Any = row
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return span(shown(value))

    return show


def _score(row: Row, now: float) -> Span:
    value = row.get("score")
    return span(shown(value, 3), Tone.GOOD if isinstance(value, int | float) and value > 0 else Tone.PLAIN)


# ---- one step, and failed tool calls ----


def of_step(story: Story, width: int) -> list[Line]:
    return [
        *_measured(story.document, width),
        (),
        (Span(f"its records ({len(story.records)} of {len(story.records) + story.more_records})", Tone.ACCENT),),
        *((span(f"  {row['id']}  {shown(row.get('score'))}  {doing(row)}"),) for row in story.records),
    ]


_UNTOLD = "This recording has no data of {} before it: they were too short, released, or not recorded."


def of_recorded_step(step: Row, width: int) -> list[Line]:
    """The lines of a step that is read from a recording."""
    head, *numbers = _measured(step, width)
    made: list[Line] = [head]
    if untold := step.get("untold"):
        missing_lines = wrapped(_UNTOLD.format(counted(untold, "steps")), width)
        made += [(Span(part, Tone.WARN),) for part in missing_lines]
    missing = "Its records are in no recording; of a run that is up, 8 and enter show them."
    return [*made, (Span(missing, Tone.DIM),), *numbers]


def _measured(step: Row, width: int) -> list[Line]:
    reason = f" ({step['reason']})" if step.get("reason") else ""
    version = step.get("base_version")
    begun_with = "" if version is None else f", from v{version}"
    metrics = step.get("metrics", {})
    made: list[Line] = [(span(step["id"], Tone.STRONG), span(f"  {step.get('status')}{reason}{begun_with}")), ()]
    if terms := loss_terms.in_words(metrics):
        made += [(Span("terms of the loss, with the share of tokens that each touched", Tone.ACCENT),)]
        made += [(span(f"  {line}"),) for term in terms for line in wrapped(term, max(1, width - 2))]
        made += [()]
    made += [(Span("metrics", Tone.ACCENT),)]
    measured = [f"{name} {shown(value)}" for name, value in sorted(metrics.items()) if not loss_terms.is_term(name)]
    column = max((len(text) for text in measured), default=1) + 3
    a_line = max(1, (width - 2) // column)
    starts = range(0, len(measured), a_line)
    made += [(span("  " + "".join(each.ljust(column) for each in measured[at : at + a_line])),) for at in starts]
    return made


def call_columns() -> tuple[Column[Row], ...]:
    def place(row: Row) -> str:
        return f"{row.get('record')} t{row.get('turn')}"

    return (
        order_column(),
        Column("when", "AGO", 5, _requested, lambda row: row["~order"], True, 2),
        Column("tool", "TOOL", 20, lambda row, now: span(tool_call_text.name(row), Tone.STRONG), tool_call_text.name),
        Column("status", "STATUS", 10, _call_status, lambda row: str(row.get("status"))),
        Column("whose", "WHOSE", 14, _plain("error_class"), lambda row: str(row.get("error_class")), rank=3),
        Column("unit", "UNIT", 14, _plain("owner"), lambda row: str(row.get("owner")), rank=1),
        Column("took", "TOOK", 6, _latency, lambda row: _number(row, "latency_s"), True, 5),
        Column("trained", "TRAINED", 7, _trained, lambda row: bool(row.get("trained")), rank=6),
        Column("replay", "REPLAY", 9, _plain("replay"), lambda row: str(row.get("replay") or ""), rank=6),
        Column("where", "RECORD, TURN", 34, lambda row, now: span(place(row)), place, rank=4),
        Column(
            "what", "WHAT", 16, lambda row, now: span(row.get("result") or "", Tone.DIM), lambda row: 0, stretches=True
        ),
    )


def _call_status(row: Row, now: float) -> Span:
    tone = Tone.WARN if row.get("error_class") else Tone.GOOD if row.get("status") == "ok" else Tone.BUSY
    return span(row.get("status"), tone)


def _trained(row: Row, now: float) -> Span:
    return Span("✓" if row.get("trained") else "")


def _requested(row: Row, now: float) -> Span:
    at = row.get("requested_at")
    return Span(cell_text.ago(at.timestamp(), now)) if isinstance(at, datetime) else Span("")


def _latency(row: Row, now: float) -> Span:
    return Span(cell_text.quick(float(row["latency_s"]))) if row.get("latency_s") else Span("")


def error_columns() -> tuple[Column[ToolErrorGroup], ...]:
    return (
        Column("count", "COUNT", 6, lambda row, now: span(row.count, Tone.STRONG), lambda row: row.count, True),
        Column(
            "last", "LAST", 5, lambda row, now: Span(cell_text.ago(row.last_at, now)), lambda row: row.last_at, True, 2
        ),
        Column("tool", "TOOL", 22, lambda row, now: span(_tool(row)), _tool),
        Column("status", "STATUS", 12, lambda row, now: span(row.status, Tone.WARN), lambda row: row.status, rank=1),
        Column("class", "WHOSE", 14, lambda row, now: span(row.error_class), lambda row: row.error_class, rank=3),
        Column("what", "WHAT", 16, lambda row, now: span(row.message), lambda row: row.message, stretches=True),
    )


def _tool(row: ToolErrorGroup) -> str:
    return f"{row.server}.{row.tool}" if row.server else row.tool
