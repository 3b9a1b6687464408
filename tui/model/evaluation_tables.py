"""Defines the rows of evaluations, those of the run's versions and those of files of `agentrl eval`; and their pages.

Invariants:
- Both kinds have the same columns and figures.
- An evaluation that is not complete shows its progress beside its figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentrl.errors import ConfigError
from agentrl.evaluation import words
from agentrl.evaluation.of_run import compared
from agentrl.evaluation.progress import Progress
from agentrl.evaluation.summaries import By, Compared, Summary, summaries
from agentrl.formatting.amounts import age, counted
from agentrl.protocol.evaluation_commands import Attempt, EvaluationRow
from tui.model import cell_text
from tui.model.styled_text import Line, Span, Tone, fitted, span, wrapped
from tui.model.table import Column, SortKey, text_column

BAR = 10
MOST_TASKS = 40
"""The most tasks that a page lists."""
MOST_MOVED = 12
PARTS: tuple[By, ...] = ("environment", "tag", "difficulty")
_UNSORTED = {"tag": "no tag", "difficulty": "no difficulty"}
"""The names of the part of results whose tasks have no tag or difficulty."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where attempts come from: a version of the run, or a model in a file of results."""

    model: str
    """`v12`, or the name in the file."""
    version: int | None = None
    file: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """How the command line names it."""
        return (self.model,) if self.version is not None else (self.file, "--model", self.model)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One environment with one model."""

    source: Source
    environment: str
    order: int
    """Its place in the list."""
    state: str
    """`done`, `under way`, `wanted` or `stopped`."""
    so_far: str = ""
    """`40 of 64`"""
    tasks: int = 0
    attempts: int = 0
    failed: int = 0
    mean: float | None = None
    margin: float | None = None
    passed: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    at: float = 0.0
    on: str = ""
    checkpoint: str = ""
    is_best: bool = False
    note: str = ""

    @property
    def key(self) -> str:
        return f"{self.source.file}{self.source.model}/{self.environment}"


def of_run(rows: Iterable[EvaluationRow]) -> list[Evaluation]:
    found = list(rows)
    newest = next((row.on for row in found if row.on), "")
    return [
        Evaluation(
            source=Source(f"v{row.version}", row.version),
            environment=row.environment,
            order=place,
            state="under way" if row.state == "queued" else row.state,
            so_far=f"{row.ended} of {row.tasks}" if row.state == "queued" else "",
            tasks=row.tasks,
            attempts=row.attempts,
            failed=row.failed,
            mean=row.mean,
            margin=row.margin,
            passed=row.passed,
            step=row.step,
            at=row.at,
            on=row.on,
            checkpoint=row.checkpoint,
            is_best=row.is_best,
            note=_note(row, newest),
        )
        for place, row in enumerate(found)
    ]


def _note(row: EvaluationRow, newest: str) -> str:
    parts = (
        "other held-out tasks" if row.on and row.on != newest else "",
        f"checkpoint {row.checkpoint}" if row.checkpoint else "",
    )
    return ", ".join(part for part in parts if part)


def of_file(
    file: str, results: Sequence[Summary], progress: Progress | None, now: float, begin: int
) -> list[Evaluation]:
    """`begin`: how many rows come before these."""
    found = list(results)
    if progress is not None and progress.model not in {one.model for one in found}:
        found.append(summary_of_nothing(progress.model))
    made = []
    for place, one in enumerate(found):
        own = progress if progress is not None and progress.model == one.model else None
        made.append(
            Evaluation(
                source=Source(one.model, file=file),
                environment=one.part,
                order=begin + place,
                state="done" if own is None else "under way" if own.runs(now) else "stopped",
                so_far=f"{own.ended} of {own.wanted}" if own is not None else "",
                tasks=one.tasks,
                attempts=one.attempts,
                failed=one.failed,
                mean=one.mean,
                margin=one.margin,
                passed=one.passed,
                note=f"{_stopped(own, now)}{'/'.join(file.split('/')[-2:])}",
            )
        )
    return made


def _stopped(progress: Progress | None, now: float) -> str:
    return "" if progress is None or progress.runs(now) else f"stopped {age(now - progress.at)} ago, "


def summary_of_nothing(model: str) -> Summary:
    """The summary of a model before its first attempt has ended."""
    return Summary(
        model=model,
        part="",
        tasks=0,
        attempts=0,
        failed=0,
        mean=None,
        margin=None,
        passed={},
        tokens=0.0,
        turns=0.0,
        took_s=0.0,
        outcomes={},
    )


def columns() -> tuple[Column[Evaluation], ...]:
    def model(row: Evaluation, now: float) -> Span:
        return span(row.source.model, Tone.STRONG)

    return (
        Column("order", "", 0, lambda row, now: Span(""), lambda row: row.order, optional=True),
        Column("model", "MODEL", 10, model, _order_of_model, least=6),
        text_column("environment", "ON", 12, lambda row: row.environment, least=6),
        Column("state", "STATE", 13, lambda row, now: _state(row), lambda row: row.state),
        Column("mean", "MEAN", 13, lambda row, now: Span(words.with_margin(row.mean, row.margin)), _mean, True),
        Column("bar", "", BAR, lambda row, now: Span(words.bar(row.mean, BAR), Tone.GOOD), lambda row: 0, rank=7),
        Column("pass", "PASS@K", 11, lambda row, now: Span(_passed(row)), _most_passed, True, 1),
        Column("tasks", "TASKS", 5, lambda row, now: Span(str(row.tasks or "")), lambda row: row.tasks, True, 3),
        Column("failed", "FAILED", 6, lambda row, now: _failed(row), lambda row: row.failed, True, 2),
        Column("step", "STEP", 6, lambda row, now: Span("" if row.step is None else str(row.step)),
          lambda row: -1 if row.step is None else row.step, True, 5),
        Column("ago", "AGO", 5, lambda row, now: Span(cell_text.ago(row.at, now), Tone.DIM), lambda row: row.at, True,
          6),
        text_column("note", "", 20, lambda row: row.note, Tone.DIM, stretches=True, rank=4),
    )  # fmt: skip


def _order_of_model(row: Evaluation) -> SortKey:
    return (row.source.version is None, row.source.version or 0, row.source.model)


def _mean(row: Evaluation) -> float:
    return -1.0 if row.mean is None else row.mean


def _state(row: Evaluation) -> Span:
    match row.state:
        case "done":
            return Span("◆ best" if row.is_best else "✓ done", Tone.GOOD)
        case "under way":
            return Span(f"◐ {row.so_far}", Tone.BUSY)
        case "stopped":
            return Span(f"■ {row.so_far}", Tone.WARN)
    return span(f"○ {row.state}", Tone.DIM)


def _failed(row: Evaluation) -> Span:
    return Span(str(row.failed or ""), Tone.WARN)


def _most_passed(row: Evaluation) -> float:
    return max(row.passed.values(), default=-1.0)


def _passed(row: Evaluation) -> str:
    """pass@k with the largest k."""
    most = max(row.passed, key=int, default="")
    return f"{row.passed[most]:.3f} @{most}" if most else ""


def searched_text(row: Evaluation) -> str:
    return f"{row.source.model} {row.environment} {row.state} {row.note}"


# ---- pages ----


def of_attempts(attempts: Sequence[Attempt], width: int) -> list[Line]:
    """One model: its figures by environment, tag and difficulty, then its tasks, the worst first."""
    if not attempts:
        return [(Span("No attempt has ended yet.", Tone.DIM),)]
    lines = list[Line]()
    for by in PARTS:
        found = summaries(attempts, by)
        if [one.part for one in found] != [_UNSORTED.get(by)]:
            lines += [*([()] if lines else []), (Span(f"by {by}", Tone.ACCENT),), *_table(found, width)]
    return [*lines, *_outcomes(attempts, width), *_tasks(attempts, width)]


def _table(found: Sequence[Summary], width: int) -> Iterator[Line]:
    """The columns that fit; the first ones always do."""
    ks = sorted({int(k) for one in found for k in one.passed})
    titles = ["", "mean", "", *(f"pass@{k}" for k in ks), "tasks", "tries", "failed", "turns", "tokens", "took"]
    rows = [
        [
            one.part,
            words.with_margin(one.mean, one.margin),
            words.bar(one.mean, BAR),
            *(f"{one.passed[str(k)]:.3f}" if str(k) in one.passed else "" for k in ks),
            *(str(one.tasks), str(one.attempts), str(one.failed or "")),
            *(f"{one.turns:.3g}", f"{one.tokens:.0f}", cell_text.quick(one.took_s) if one.took_s else ""),
        ]
        for one in found
    ]
    widths = [max(len(row[place]) for row in (titles, *rows)) for place in range(len(titles))]
    widths[0] = min(max(widths[0], 8), 24)
    shown = len(widths)
    while shown > 3 and sum(widths[:shown]) + 2 * shown > width:
        shown -= 1
    for number, row in enumerate((titles, *rows)):
        cells = [fitted(row[place], widths[place], right=place > 2) for place in range(shown)]
        yield (span("  " + "  ".join(cells).rstrip(), Tone.DIM if number == 0 else Tone.PLAIN),)


def _outcomes(attempts: Sequence[Attempt], width: int) -> list[Line]:
    counts: dict[str, int] = {}
    for one in attempts:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    text = ", ".join(f"{count} {outcome or 'without an outcome'}" for outcome, count in ordered)
    return [(), (Span("ends", Tone.ACCENT),), *((span(f"  {part}"),) for part in wrapped(span(text).text, width - 4))]


def _tasks(attempts: Sequence[Attempt], width: int) -> list[Line]:
    by_task: dict[str, list[Attempt]] = {}
    for one in attempts:
        by_task.setdefault(f"{one.environment}/{one.task}", []).append(one)
    ordered = sorted(by_task.items(), key=lambda pair: (_mean_of(pair[1]), pair[0]))
    lines: list[Line] = [(), (Span("tasks, the worst first", Tone.ACCENT),)]
    for name, members in ordered[:MOST_TASKS]:
        mean = _mean_of(members)
        scores = " ".join("–" if one.score is None else f"{one.score:.3g}" for one in members[:8])
        tone = Tone.BAD if mean < 0 else Tone.WARN if mean <= 0.5 else Tone.GOOD
        about = members[0].error or members[0].query
        room = max(12, min(28, width // 3))
        lines.append((Span(f"  {fitted(scores, 12)}  ", tone), span(f"{fitted(name, room)}  "), span(about, Tone.DIM)))
    if len(ordered) > MOST_TASKS:
        lines.append((Span(f"  and {counted(len(ordered) - MOST_TASKS, 'tasks')} more", Tone.DIM),))
    return lines


def _mean_of(attempts: Sequence[Attempt]) -> float:
    """The mean; without scores, a value below any score."""
    scores = [one.score for one in attempts if one.score is not None]
    return sum(scores) / len(scores) if scores else -1.0


def _moved(difference: float) -> Span:
    return Span(f"  {difference:+.3g}".ljust(10), Tone.GOOD if difference > 0 else Tone.BAD)


def comparisons(first: Sequence[Attempt], second: Sequence[Attempt]) -> dict[By, list[Compared]]:
    """Comparisons by environment, and by the tags and difficulties of the tasks. Raises ConfigError if both have no
    task in common."""
    found = {PARTS[0]: compared(first, second, PARTS[0])}
    for by in PARTS[1:]:
        try:
            found[by] = compared(first, second, by)
        except ConfigError:
            continue
    return found


def of_comparison(first: str, second: str, parts: dict[By, list[Compared]], width: int) -> list[Line]:
    """The result of the test over all tasks and over their parts; then the tasks that changed most."""
    lines = list[Line]()
    for by in PARTS:
        found = parts.get(by, [])
        if not found or [one.part for one in found] == [_UNSORTED.get(by)]:
            continue
        lines += [*([()] if lines else []), (Span(f"by {by}", Tone.ACCENT),)]
        for one in found:
            tone = Tone.PLAIN if not one.shown else Tone.GOOD if one.difference > 0 else Tone.BAD
            sentence = span(words.sentence(one, first, second)).text
            head, *more = wrapped(sentence, max(20, width - 4))
            lines.append((Span(f"  {head}", tone),))
            lines += [(Span(f"    {part}", tone),) for part in more]
    for one in parts.get("environment", []):
        moved = one.moved[:MOST_MOVED]
        if moved:
            lines += [(), (span(f"{one.part}: tasks that moved most", Tone.ACCENT),)]
            lines += [
                (Span(f"  {by_:+.3g}".ljust(10), Tone.GOOD if by_ > 0 else Tone.BAD), span(task)) for task, by_ in moved
            ]
    note = "The test of signs asks how often two equal models would differ as much; 0.05 or more shows nothing."
    return [*lines, (), *((Span(part, Tone.DIM),) for part in wrapped(note, width))]
