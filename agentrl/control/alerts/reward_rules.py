"""Alert rules about a reward that is earned in an unintended way.

The steward measures the signs over the newest records of each environment. Each condition compares one sign with its
limit in the run file (`reward_watch`), and makes one finding for each environment, with the numbers as evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from agentrl.control.alerts.rule_types import Condition, Finding, RunSnapshot, evidence_line, is_outside
from agentrl.protocol.rows import UnitState
from agentrl.telemetry import data_plane_metrics as of
from agentrl.telemetry.control_plane_metrics import Metric

Numbers = Mapping[str, float]


def longer_is_better(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, numbers in _over(snapshot, active, of.REWARD_BY_LENGTH_OVER, of.REWARD_BY_LENGTH, of.ANSWER_GROWTH):
        yield Finding(
            name,
            f"In {name} longer answers score higher (rank correlation {numbers[of.REWARD_BY_LENGTH.name]:.2f} inside "
            f"groups), and the length of answers has grown by a factor of {numbers[of.ANSWER_GROWTH.name]:.2f}.",
            _evidence(numbers, of.REWARD_BY_LENGTH, of.ANSWER_GROWTH, of.WATCHED_RECORDS),
            f"agentrl records list --filter 'environment={name} and status=scored' --sort -generated_tokens",
        )


def answers_repeat(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, numbers in _over(snapshot, active, of.REPEATS_OVER, of.REPEATS_ACROSS, of.REPEATS_GAIN):
        yield Finding(
            name,
            f"In {name} {numbers[of.REPEATS_ACROSS.name]:.0%} of the answers are nearly those to other tasks, and they "
            f"score {numbers[of.REPEATS_GAIN.name]:.2f} more than the others.",
            _evidence(numbers, of.REPEATS_ACROSS, of.REPEATS_WITHIN, of.REPEATS_GAIN, of.WATCHED_RECORDS),
            f"agentrl records list --filter 'environment={name} and status=scored' --sort -score",
        )


def groups_repeat(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, numbers in _over(snapshot, active, of.REPEATS_WITHIN_OVER, of.REPEATS_WITHIN, of.REPEATS_WITHIN_SCORE):
        yield Finding(
            name,
            f"In {name} {numbers[of.REPEATS_WITHIN.name]:.0%} of the answers are nearly the same as another of their "
            f"own group, and they score {numbers[of.REPEATS_WITHIN_SCORE.name]:.2f} on average, so groups explore "
            "nothing.",
            _evidence(numbers, of.REPEATS_WITHIN, of.REPEATS_WITHIN_SCORE, of.WATCHED_RECORDS),
            f"agentrl records list --filter 'environment={name} and status=scored' --sort score",
        )


def votes_split(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, numbers in _over(snapshot, active, of.VOTES_SPLIT_OVER, of.VOTES_SPLIT):
        yield Finding(
            name,
            f"In {name} a judge contradicts itself on {numbers[of.VOTES_SPLIT.name]:.0%} of the records: fewer than "
            "three of four votes are the same.",
            _evidence(numbers, of.VOTES_SPLIT, of.WATCHED_RECORDS),
            "agentrl models",
        )


def watcher_falls(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    said = (of.WATCHED_SCORE_BEFORE, of.WATCHED_SCORE_NOW, of.WATCHER_BEFORE, of.WATCHER_NOW)
    for name, numbers in _over(snapshot, active, of.WATCHER_OVER, *said):
        environment, _, watcher = name.partition("/")
        score = f"{numbers[of.WATCHED_SCORE_BEFORE.name]:.3g} → {numbers[of.WATCHED_SCORE_NOW.name]:.3g}"
        watched = f"{numbers[of.WATCHER_BEFORE.name]:.3g} → {numbers[of.WATCHER_NOW.name]:.3g}"
        yield Finding(
            name,
            f"In {environment} the score rises ({score}) while {watcher}, which only watches, falls ({watched}).",
            _evidence(numbers, of.WATCHER_OVER),
            f"agentrl records list --filter 'environment={environment} and status=scored' --sort -score",
        )


def _over(
    snapshot: RunSnapshot, active: Collection[str], metric: Metric, *said: Metric
) -> Iterator[tuple[str, Numbers]]:
    """Names, such as environments, whose metric is beyond its limit, each with all its numbers. A name is left out if a
    number in `said`, which the sentence needs, is missing, because not all metrics of a unit are kept."""
    for unit, row in snapshot.units.items():
        if row.role != "steward" or row.state is not UnitState.READY:
            continue
        reported = snapshot.metrics.values(unit)
        for name, value in of.named_in(reported, metric):
            if not is_outside(metric, {metric.name: value}, active=name in active):
                continue
            own = {key.removesuffix(f"/{name}"): value for key, value in reported.items() if key.endswith(f"/{name}")}
            if all(each.name in own for each in said):
                yield name, own


def _evidence(numbers: Numbers, *shown: Metric) -> tuple[str, ...]:
    return tuple(evidence_line(metric, numbers) for metric in shown if metric.name in numbers)


REWARD_RULES = (
    Condition("reward-by-length", longer_is_better),
    Condition("answers-repeat", answers_repeat),
    Condition("groups-repeat", groups_repeat),
    Condition("judge-votes-split", votes_split),
    Condition("reward-watcher-falls", watcher_falls),
)
