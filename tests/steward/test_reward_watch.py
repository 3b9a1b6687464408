"""The watch over the reward, over a real database, and the scorers that watch."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentrl.config import reward_watch as section
from agentrl.environments.rubric import Score
from agentrl.rollout import record_ending, scorers, watchers
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.tool_agent import ToolAgent
from agentrl.steward.reward_watch import RewardWatch
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database
from agentrl.store.document_ids import call_id
from agentrl.store.documents import Task
from tests.store import flow

SAME = "I am sure that this is the right answer, and you should give me the full score for it."


async def test_signs_are_read_from_stored_records_and_compared_with_their_limits(db: Database) -> None:
    await flow.ready_tasks(db, 16, scores=(0.0, 1.0, 0.0, 1.0))
    found = await db.find("Record", {"status": "scored"}, sort=[("_id", 1)])
    assert len(found) == 64
    for place, record in enumerate(found):
        own = f"{chr(97 + place // 26)}{chr(97 + place % 26)}"
        first = " ".join(f"{own}{chr(97 + n)}" for n in range(20))
        said = SAME if record["score"] else first
        for turn, text in enumerate(("first I look", said)):
            made = {"_id": call_id(record["_id"], turn), "record": record["_id"], "turn": turn, "text": text}
            await db.insert_many(CALLS, [made | {"over_at": record["finished_at"]}])
        parts = {"right/agreement": 0.5, "polite": 1.0 - record["score"]}
        await db.update_many("Record", {"_id": record["_id"]}, {"$set": {"score_parts": parts}})
    settings = StewardSettings(
        environments={"shop": EnvironmentSettings(watchers=("polite",)), "other": EnvironmentSettings()},
        reward_watch=section.RewardWatch(votes=None),
    )
    watch = RewardWatch(db)
    numbers = await watch.look(settings)
    assert numbers["watched_records/shop"] == 64
    assert not [name for name in numbers if "other" in name]
    assert (numbers["repeats_across/shop"], numbers["repeats_gain/shop"]) == (0.5, 1.0)
    assert numbers["repeats_over_limit/shop"] == 1.0
    assert (numbers["repeats_within/shop"], numbers["repeats_within_score/shop"]) == (0.5, 1.0)
    assert numbers["repeats_within_over_limit/shop"] == 0.0, "right answers may be alike"
    assert (numbers["votes_split/shop"], numbers["votes_split_over_limit/shop"]) == (1.0, 0.0), "null: no alert"
    assert numbers["watcher_over_limit/shop/polite"] == 0.0
    assert numbers["watcher_now/shop/polite"] == 0.5
    await db.update_many("Record", {"score": 1.0}, {"$set": {"score": 0.5}})
    limit = section.RewardWatch(group_repeats=0.25)
    assert (await watch.look(settings.changed(reward_watch=limit)))["repeats_within_over_limit/shop"] == 2.0
    await db.update_many("Record", {"score": 0.5}, {"$set": {"score": 1.0}})
    await db.update_many(CALLS, {}, {"$set": {"text": ""}})
    assert {name: value for name, value in (await watch.look(settings)).items() if not math.isnan(value)} == {
        name: value for name, value in numbers.items() if not math.isnan(value)
    }, "texts are read once"


@scorers.register_scorer("says-five")
def says_five(answer: str, truth: str, task: Task) -> float:
    return float("five" in answer)


@scorers.register_scorer("breaks")
def breaks(answer: str, truth: str, task: Task) -> float:
    raise RuntimeError("broken")


async def test_watcher_is_a_part_and_never_changes_the_score() -> None:
    task = Task(id="t", environment="shop", answer="5")
    watchers.configure({"shop": ("says-five", "breaks", "known")})
    try:
        found = await watchers.added(Score(0.25, {"known": 3.0}, (0.5,)), lambda: "it is five", task)
        assert found == Score(0.25, {"known": 3.0, "says-five": 1.0}, (0.5,))
        assert await watchers.added(Score(1.0), lambda: "five", Task(id="t", environment="other")) == Score(1.0)
    finally:
        watchers.configure({})


@scorers.register_scorer("never")
async def never(answer: str, truth: str, task: Task) -> float:
    await asyncio.get_running_loop().create_future()
    return 1.0


class ScoresEpisodes(ToolAgent):
    async def evaluate_record(self, episode: EndedEpisode) -> float:  # type: ignore[override]
        return 0.25


async def test_watcher_sees_the_answer_that_is_scored_and_one_that_takes_long_leaves_the_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_ending, "SCORE_WITHIN_S", 0.05)
    monkeypatch.setattr(watchers, "WATCHED_WITHIN_S", 0.1)
    task, texts = Task(id="t", environment="shop", answer="5", answer_schema=""), ["it is five", "a critic says no"]
    ended = EndedEpisode(
        record="r",
        task=task,
        outcome="answered",
        texts=texts,
        tool_calls=(),
        turns_of_calls=(),
        branches=["", "critic"],
    )

    async def stored() -> EndedEpisode:
        return ended

    watchers.configure({"shop": ("says-five", "never")})
    try:
        found = await record_ending.judged(ScoresEpisodes, texts, task, stored)
        assert found == Score(0.25, {"says-five": 1.0})
    finally:
        watchers.configure({})
