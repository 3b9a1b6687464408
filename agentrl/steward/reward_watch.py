"""Reads the newest scored records and reports signs that the reward is exploited, as metrics of the steward.

Invariants:
- It reads and changes nothing; what it reads is bounded, however large the run is.
- The text of a record is read once.
- A metric without a reading is reported as NaN, which removes its earlier value.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from agentrl.config import reward_watch as section
from agentrl.policies import reward_watch
from agentrl.policies.advantages import RIGHT_SCORE
from agentrl.policies.reward_watch import Watched
from agentrl.steward.settings import StewardSettings
from agentrl.store import calls
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain
from agentrl.telemetry import data_plane_metrics as of
from agentrl.telemetry.control_plane_metrics import Metric

MOST_RECORDS = 8_000
"""The most records of all environments together."""
MOST_CHARS = 4_000
"""The most characters of a text."""
_FIELDS = ("task", "round", "environment", "score", "generated_tokens", "score_parts")
_SKETCH = frozenset[int] | None


class RewardWatch:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._sketches: dict[str, _SKETCH] = {}
        """The sketches of the records that were read last."""

    async def look(self, settings: StewardSettings) -> dict[str, float]:
        """The metrics of every environment, by name."""
        found = await self._newest(settings)
        await self._read_texts([record["_id"] for records in found.values() for record in records])
        readings: dict[str, float] = {}
        for name, records in found.items():
            watched = [self._watched(record) for record in reversed(records)]
            environment = settings.environments[name]
            # In a thread, because it compares some hundred texts with each other.
            readings |= await asyncio.to_thread(metrics, name, watched, settings.reward_watch, environment.watchers)
        return readings

    async def _newest(self, settings: StewardSettings) -> dict[str, list[Plain]]:
        """The newest records of each environment, the newest first."""
        most = settings.reward_watch.records
        scored = {"finished_at": {"$ne": None}, "purpose": "train", "score": {"$ne": None}}
        limit = min(MOST_RECORDS, most * len(settings.environments))
        newest_first = [("finished_at", -1), ("_id", -1)]
        found: dict[str, list[Plain]] = defaultdict(list)
        for record in await self._database.find("Record", scored, sort=newest_first, limit=limit, projection=_FIELDS):
            if record["environment"] in settings.environments and len(found[record["environment"]]) < most:
                found[record["environment"]].append(record)
        return found

    async def _read_texts(self, ids: Sequence[str]) -> None:
        kept = {id: self._sketches[id] for id in ids if id in self._sketches}
        new = [id for id in ids if id not in kept]
        for query in calls.of_records(new):
            stages: list[Plain] = [
                {"$match": {"$and": [query, {"over_at": {"$ne": None}}]}},
                {"$sort": {"turn": -1}},
                {"$group": {"_id": "$record", "text": {"$first": {"$substrCP": ["$text", 0, MOST_CHARS]}}}},
            ]
            for one in await self._database.aggregate(CALLS, stages):
                kept[one["_id"]] = reward_watch.sketch_of(one["text"])
        self._sketches = {id: kept.get(id) for id in ids}

    def _watched(self, record: Plain) -> Watched:
        return Watched(
            group=f"{record['task']}#r{record['round']}",
            task=record["task"],
            score=float(record["score"]),
            tokens=int(record["generated_tokens"]),
            parts=record.get("score_parts") or {},
            sketch=self._sketches.get(record["_id"]),
        )


def metrics(
    environment: str, records: Sequence[Watched], settings: section.RewardWatch, watchers: Sequence[str]
) -> dict[str, float]:
    """All readings of one environment, and each relative to its limit."""
    found: dict[str, float] = {}

    def report(metric: Metric, value: float, name: str = environment) -> None:
        found[of.named(metric, name)] = value

    report(of.WATCHED_RECORDS, len(records))
    length = reward_watch.by_length(records)
    report(of.REWARD_BY_LENGTH, length.correlation if length else math.nan)
    report(of.ANSWER_GROWTH, length.growth if length else math.nan)
    grows = length is not None and length.growth >= reward_watch.GROWTH
    report(of.REWARD_BY_LENGTH_OVER, _over(length.correlation if length and grows else 0.0, settings.length))
    repeats = reward_watch.repeats(records)
    report(of.REPEATS_WITHIN, repeats.within if repeats else math.nan)
    report(of.REPEATS_WITHIN_SCORE, repeats.within_score if repeats else math.nan)
    wrong = repeats is not None and repeats.within_score <= RIGHT_SCORE
    report(of.REPEATS_WITHIN_OVER, _over(repeats.within if repeats and wrong else 0.0, settings.group_repeats))
    report(of.REPEATS_ACROSS, repeats.across if repeats else math.nan)
    report(of.REPEATS_GAIN, repeats.gain if repeats else math.nan)
    pays = repeats is not None and repeats.gain > 0
    report(of.REPEATS_OVER, _over(repeats.across if repeats and pays else 0.0, settings.repeats))
    votes = reward_watch.votes(records)
    report(of.VOTES_SPLIT, votes.split if votes else math.nan)
    report(of.VOTES_SPLIT_OVER, _over(votes.split if votes else 0.0, settings.votes))
    for watcher in watchers:
        _report_watcher(found, f"{environment}/{watcher}", reward_watch.divergence(records, watcher), settings)
    return found


def _report_watcher(
    found: dict[str, float], name: str, divergence: reward_watch.Divergence | None, settings: section.RewardWatch
) -> None:
    nothing = (math.nan, math.nan)
    (score_before, score_now), (before, now) = (
        (divergence.score, divergence.watched) if divergence else (nothing, nothing)
    )
    numbers: Mapping[Metric, float] = {
        of.WATCHER_BEFORE: before,
        of.WATCHER_NOW: now,
        of.WATCHED_SCORE_BEFORE: score_before,
        of.WATCHED_SCORE_NOW: score_now,
        of.WATCHER_OVER: _over(min(divergence.errors, 1000.0) if divergence else 0.0, settings.watchers),
    }
    found |= {of.named(metric, name): value for metric, value in numbers.items()}


def _over(value: float, limit: float | None) -> float:
    """A reading relative to its limit; 0 without a limit."""
    return 0.0 if limit is None else max(0.0, value) / max(limit, 1e-9)
