"""Many episodes in one process: claims, concurrency, hand-over, and the loss of samplers, judges or the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import RecordStatus
from agentrl.rollout import rescorer
from agentrl.rollout.agent_loops import register_loop
from agentrl.rollout.scorers import UnscoredError, register_scorer
from agentrl.rollout.tool_agent import ToolAgent
from agentrl.steward import dead_owners
from agentrl.store import cancellations, claims, owners, rescoring, tasks
from agentrl.store.claims import Ending
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.documents import DispatchedSamplingTask, Record
from agentrl.store.owners import OwnerLostError
from agentrl.tokens.binary_format import unpack_ids
from tests.rollout.actors import Prompt, ScriptedAnswer
from tests.rollout.conftest import Stage, configuration, unruly_tools
from tests.store.flow import claim_one
from tests.waiting import PATIENCE_S, aeventually


class Gate:
    """An engine's answer that waits until it is let through."""

    def __init__(self, reply: str = "<answer>3</answer>") -> None:
        self.open = asyncio.Event()
        self.said = reply

    async def __call__(self, prompt: Prompt) -> str:
        await self.open.wait()
        return self.said


async def statuses(stage: Stage) -> list[str]:
    return [record.status for record in await stage.all(Record)]


async def test_never_more_episodes_than_allowed_and_a_change_holds_at_once(stage: Stage) -> None:
    gate = Gate()
    await stage.engine(gate)
    await stage.task(n=10)
    async with stage.sampler(concurrency=3) as sampler:
        await aeventually(lambda: sampler.idle_because == "full")
        assert (await statuses(stage)).count(RecordStatus.RUNNING) == 3
        sampler.concurrency = 5
        await aeventually(lambda: sampler.running == 5)
        sampler.concurrency = 1
        assert sampler.running == 5
        gate.open.set()
        await stage.ended(count=10)
        await aeventually(lambda: sampler.ended == 10)


async def test_nothing_is_claimed_while_paused_or_without_engines(stage: Stage) -> None:
    await stage.task(n=2)
    async with stage.sampler() as sampler:
        await aeventually(lambda: sampler.idle_because == "no engine serves")
        sampler.paused = True
        await stage.engine(lambda prompt: "<answer>3</answer>")
        await aeventually(lambda: sampler.idle_because == "paused")
        assert await statuses(stage) == [RecordStatus.OPEN] * 2
        sampler.paused = False
        await stage.ended(count=2)


async def test_two_samplers_share_the_work_and_claim_nothing_twice(stage: Stage) -> None:
    gate = Gate()
    engine = await stage.engine(gate)
    for _ in range(5):
        await stage.task(n=8)
    async with stage.sampler("sampler-0.1", concurrency=8), stage.sampler("sampler-1.1", concurrency=8):
        await aeventually(lambda: len(engine.prompts) == 16, what="both are at work")
        gate.open.set()
        records = await stage.ended(count=40)
    assert {record.owner for record in records} == {"sampler-0.1", "sampler-1.1"}
    assert len(engine.prompts) == len(await stage.calls()) == 40


async def test_a_drain_gives_back_what_another_sampler_continues(stage: Stage) -> None:
    """The first sampler is drained in the middle of the second model call. Its tokens are kept."""
    stage.config = configuration(**unruly_tools())
    await stage.toolbox()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def says(prompt: Prompt) -> str:
        if len(prompt.answers) == 1:
            return "<tool_call>count()</tool_call>"
        if not prompt.text.endswith("it costs "):
            begun.set()
            await go_on.wait()
        return "<answer>3</answer>"

    engine = await stage.engine(says)
    engine.partly = "it costs "
    await stage.task(n=1)
    async with stage.sampler("sampler-0.1") as leaving:
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        leaving.drain()
        await aeventually(lambda: leaving.running == 0, what="it left at once")
        assert await statuses(stage) == [RecordStatus.OPEN]
        assert [call.status for call in await stage.calls()] == ["done", "partial"]
    async with stage.sampler("sampler-1.1"):
        record = await stage.one()
    assert (record.outcome, record.score, record.turns, record.attempt) == ("answered", 1.0, 2, 1)
    calls = await stage.calls()
    assert [(call.index, call.status, call.owner) for call in calls] == [
        (0, "done", "sampler-1.1"),
        (1, "partial", "sampler-1.1"),
        (
            2,
            "failed",
            "sampler-1.1",
        ),  # this index is skipped, because a late call of the former sampler may still use it
        (3, "done", "sampler-1.1"),
    ]
    assert len(engine.prompts) == 3  # the first turn is not sampled again
    assert len(await stage.tool_calls()) == 1  # the tool is not called again
    assert [turn.text for turn in await stage.turns()] == [
        "<tool_call>count()</tool_call>",
        "it costs <answer>3</answer>",
    ]
    data = (await stage.data())[0]
    assert data.trained_tokens == sum(len(unpack_ids(call.output)) for call in calls)


async def test_a_tool_call_that_runs_during_a_hand_over_is_joined_and_not_run_twice(
    stage: Stage, tmp_path: Path
) -> None:
    stage.config = configuration(**unruly_tools())
    await stage.toolbox()
    path = tmp_path / "notes"
    call = f"<tool_call>note(path={str(path)!r}, seconds=2)</tool_call>"
    await stage.engine(lambda prompt: call if len(prompt.answers) == 1 else "<answer>3</answer>")
    await stage.task(n=1)
    async with stage.sampler("sampler-0.1") as leaving:
        await aeventually(lambda: path.exists(), what="the tool runs")
        leaving.drain()
        await aeventually(lambda: leaving.running == 0, what="it left at once")
    async with stage.sampler("sampler-1.1"):
        record = await stage.one()
    assert (record.outcome, record.turns) == ("answered", 2)
    assert path.read_text().split() == ["begun", "ended"]
    assert [(one.status, one.result) for one in await stage.tool_calls()] == [("ok", "noted")]


@pytest.mark.parametrize("notices", ["by its lease", "by a claim"])
async def test_records_of_a_dead_sampler_are_continued(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, notices: str
) -> None:
    """A sampler is declared dead while it waits for its second model call. It writes nothing more, and nothing is lost.
    Until it notices its death it may claim its own record again, but must not run it twice at the same time."""
    stage.config = configuration(**unruly_tools())
    await stage.toolbox()
    stuck = asyncio.Event()

    async def says(prompt: Prompt) -> str:
        if len(prompt.answers) == 1:
            return "<tool_call>count()</tool_call>"
        if not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        return "<answer>3</answer>"

    async def over() -> bool:
        await dead_owners.expire(stage.db)
        return await statuses(stage) == [RecordStatus.SCORED]

    engine = await stage.engine(says)
    await stage.task(n=1)
    monkeypatch.setattr(owners, "RENEW_EVERY_S", 0.2 if notices == "by its lease" else 60.0)
    monkeypatch.setattr(owners, "CERTAIN_S", 0.0 if notices == "by its lease" else 60.0)

    async def is_declared_dead() -> None:
        async with stage.sampler("sampler-0.1"):
            await asyncio.wait_for(stuck.wait(), PATIENCE_S)
            await aeventually(lambda: _turns(stage, 1), what="the first turn is stored")
            await owners.expire(stage.db, "sampler-0.1", "it was killed")
            await dead_owners.expire(stage.db)
            await aeventually(lambda: "sampler-0.1" not in {task.get_name() for task in asyncio.all_tasks()})

    with pytest.raises(ExceptionGroup) as ended:
        await is_declared_dead()
    assert ended.group_contains(OwnerLostError)
    async with stage.sampler("sampler-1.1"):
        await aeventually(over, what="the record is scored")
    record = await stage.one()
    assert (record.outcome, record.owner, record.attempt) == ("answered", "sampler-1.1", 1)
    assert len(engine.prompts) == 3, "the second model call is repeated once"
    begun, *lost, ended_with = [call.status for call in await stage.calls()]
    assert (begun, set(lost), ended_with) == ("done", {"failed"}, "done"), (
        "the call is lost, whether it was stored as open or not"
    )
    assert len(await stage.data()) == 1


async def test_own_records_that_no_task_works_on_are_continued(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens if the store made a claim or an end but the answer was lost."""
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.1)
    await stage.engine(lambda prompt: "<answer>3</answer>")
    await stage.task(n=2)
    claimed = await claim_one(stage.db, "sampler-0.1", resumable=True)
    ended = await claim_one(stage.db, "sampler-0.1", resumable=True)
    assert claimed is not None
    assert ended is not None
    assert await claims.finish(stage.db, ended.record.id, "sampler-0.1", Ending(outcome=Outcome.NO_ANSWER))
    async with stage.sampler("sampler-0.1"):
        records = await stage.ended(count=2)
    assert {record.id: (record.status, record.score, record.attempt) for record in records} == {
        claimed.record.id: ("scored", 1.0, 1),
        ended.record.id: ("scored", 0.0, 1),
    }


async def test_a_tool_call_is_not_made_again_in_a_toolbox_that_knows_nothing_of_it(
    stage: Stage, tmp_path: Path
) -> None:
    """A sampler leaves during the call of the first turn, and the toolbox is replaced. So it is unknown what the call
    has done."""
    stage.config = configuration(**unruly_tools(session="keyed"))
    path = tmp_path / "notes"
    call = f"<tool_call>note(path={str(path)!r}, seconds=60)</tool_call>"
    await stage.engine(lambda prompt: call)
    await stage.task(n=1)
    async with stage.short_lived_toolbox(), stage.sampler("sampler-0.1") as leaving:
        await aeventually(lambda: path.exists(), what="the tool runs")
        leaving.drain()
        await aeventually(lambda: leaving.running == 0, what="it left")
    assert not await stage.turns()
    await stage.toolbox()
    async with stage.sampler("sampler-1.1"):
        record = await stage.one()
    assert (record.status, record.outcome) == ("failed", "tool_server_failed")
    assert path.read_text().split().count("begun") == 1


async def _turns(stage: Stage, count: int) -> bool:
    return len(await stage.turns()) == count


async def test_an_episode_that_cannot_be_resumed_may_end_during_a_drain(stage: Stage) -> None:
    gate = Gate()
    engine = await stage.engine(gate)
    await stage.task(n=1, agent_name="single_turn_agent")
    async with stage.sampler() as sampler:
        await aeventually(lambda: engine.prompts)
        sampler.drain()
        await aeventually(lambda: "draining" in sampler.idle_because)
        gate.open.set()
        record = await stage.one()
    assert record.outcome == "answered"


async def test_an_episode_that_cannot_be_resumed_is_abandoned_at_the_end_of_the_drain(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.FINISH_WITHIN_S", 0.3)
    engine = await stage.engine(Gate())
    await stage.task(n=1, agent_name="single_turn_agent")
    async with stage.sampler():
        await aeventually(lambda: engine.prompts)
    record = await stage.one()
    assert (record.status, record.outcome) == ("abandoned", "owner_lost")
    assert not await stage.open_ends()


async def test_a_drain_can_be_taken_back(stage: Stage) -> None:
    gate = Gate()
    engine = await stage.engine(gate)
    await stage.task(n=2, agent_name="single_turn_agent")
    async with stage.sampler(concurrency=1) as sampler:
        await aeventually(lambda: engine.prompts)
        sampler.drain()
        await aeventually(lambda: "draining" in sampler.idle_because)
        sampler.cancel_drain()
        gate.open.set()
        await stage.ended(count=2)


async def test_an_episode_whose_round_is_over_is_dropped(stage: Stage) -> None:
    gate = Gate()
    engine = await stage.engine(gate)
    task = await stage.task(n=1)
    async with stage.sampler() as sampler:
        await aeventually(lambda: engine.prompts)
        await tasks.requeue(stage.db, task.id, "an operator wants it")
        gate.open.set()
        await aeventually(lambda: sampler.running == 0)
    assert await statuses(stage) == [RecordStatus.SUPERSEDED]
    assert not await stage.data()


# ---- scores ----


class Judge:
    """A judge that is away at first."""

    away = True
    asked = 0


@register_scorer("judge")
async def judge(answer: str, truth: str, task: Any) -> float:
    Judge.asked += 1
    if Judge.away:
        raise UnscoredError("the judge is at lunch")
    return 0.7


async def test_a_judge_that_is_away_is_asked_again_and_nothing_is_generated_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.1)
    Judge.away = True
    engine = await stage.engine(lambda prompt: "<answer>pear</answer>")
    await stage.task(n=1, scorer="judge")
    async with stage.sampler():
        assert (await stage.one()).status == "unscored"
        assert (await stage.all(Record))[0].score is None
        asked = Judge.asked
        await aeventually(lambda: Judge.asked > asked, what="it is asked again")
        Judge.away = False
        scored = await aeventually(lambda: _scored(stage), what="it is scored")
    assert (scored.score, scored.outcome) == (0.7, "answered")
    assert len(engine.prompts) == 1
    assert len(await stage.data()) == 1


@register_loop("cannot_say")
class CannotSay(ToolAgent):
    async def evaluate_record(self, texts: Any, task: Any) -> float:
        raise KeyError("no such row")


@register_loop("says_rubbish")
class SaysRubbish(ToolAgent):
    async def evaluate_record(self, texts: Any, task: Any) -> float:
        return float("nan")


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"scorer": "nobody"}, "There is no scorer 'nobody'"),
        ({"agent_name": "cannot_say"}, "KeyError: 'no such row'"),
        ({"agent_name": "says_rubbish"}, "nan, which is no score"),
    ],
    ids=["unknown scorer", "a loop that raises", "no number"],
)
async def test_a_scorer_without_a_result_leaves_the_record_unscored_until_its_deadline(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, named: dict[str, str], why: str
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.1)
    await stage.engine(lambda prompt: "<answer>pear</answer>")
    await stage.task(n=1, **named)
    async with stage.sampler():
        record = await stage.one()
        assert (record.status, record.score) == ("unscored", None)
        assert why in record.error
        monkeypatch.setattr("agentrl.rollout.record_ending.UNSCORED_AT_MOST_S", 0.0)
        ended = await aeventually(lambda: stage.all(Record, status="unscorable"), what="it is given up")
    assert ended[0].outcome_class == "unscored"


async def test_finished_records_of_an_unknown_loop_are_given_up_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.1)
    Judge.away = True
    await stage.engine(lambda prompt: "<answer>pear</answer>")
    task = await stage.task(n=1, scorer="judge")
    async with stage.sampler():
        await stage.one()
        await stage.db.update_one("Task", {"_id": task.id}, {"$set": {"agent_name": "nobody"}})
        monkeypatch.setattr("agentrl.rollout.record_ending.UNSCORED_AT_MOST_S", 0.0)
        await aeventually(lambda: stage.all(Record, status="unscorable"), what="it is given up")


async def _scored(stage: Stage) -> Record | None:
    found = await stage.all(Record, status="scored")
    return found[0] if found else None


async def test_unscored_records_of_a_lost_sampler_are_scored_by_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.RESCORE_EVERY_S", 0.1)
    Judge.away = True
    reply = iter([ScriptedAnswer("it costs ", finish="abort"), "<answer>pear</answer>"])
    await stage.engine(lambda prompt: next(reply))
    await stage.task(n=1, scorer="judge")
    async with stage.sampler("sampler-0.1"):
        await stage.one()
    await dead_owners.expire(stage.db)
    Judge.away = False
    async with stage.sampler("sampler-1.1"):
        scored = await aeventually(lambda: _scored(stage), what="it is scored")
    assert scored.score == 0.7
    data = (await stage.data())[0]
    assert data.trained_tokens == scored.generated_tokens
    assert [span.kind for span in data.spans] == ["environment", "model", "model"]


# ---- the store ----


async def test_a_store_that_is_away_fails_the_episode_once_it_is_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    engine = await stage.engine(gate)
    await stage.task(n=1)
    insert = Database.insert_missing
    away = True

    async def broken(self: Database, collection: str, *arguments: Any, **options: Any) -> Any:
        if away and collection == "DispatchedSamplingTask":
            raise StoreUnavailableError("MongoDB did not answer.")
        return await insert(self, collection, *arguments, **options)

    async with stage.sampler():
        await aeventually(lambda: engine.prompts)
        monkeypatch.setattr(Database, "insert_missing", broken)
        gate.open.set()
        record = await stage.one()
        away = False
    assert (record.status, record.outcome) == ("failed", "store_failed")
    assert not await stage.data()


# ---- what operators change ----


async def test_cancelled_episode_stops_and_its_place_is_free(stage: Stage) -> None:
    gate = Gate()
    engine = await stage.engine(gate)
    await stage.task(n=3)
    async with stage.sampler(concurrency=1) as sampler:
        await aeventually(lambda: len(engine.prompts) == 1)
        first = engine.prompts[0].record
        assert await cancellations.cancel(stage.db, [first], "", by="op-1") == 1
        await aeventually(lambda: len(engine.prompts) == 2, what="the next episode has its place")
        assert engine.prompts[1].record != first
        gate.open.set()
        await aeventually(lambda: sampler.ended == 3)
    assert sorted(await statuses(stage)) == ["cancelled", "scored", "scored"]
    for call in await stage.all(DispatchedSamplingTask):
        assert (call.status == "failed") == (call.record == first), "the call of the cancelled one is not left open"


async def test_operators_have_records_scored_again_by_another_scorer(stage: Stage) -> None:
    await stage.engine(lambda prompt: "<answer>3</answer>")
    await stage.task(n=2)

    @register_scorer("generous")
    async def generous(answer: str, truth: str, task: Any) -> float:
        return 0.25

    @register_scorer("speechless")
    async def speechless(answer: str, truth: str, task: Any) -> float:
        raise UnscoredError("the judge is away")

    async with stage.sampler():
        await stage.ended(count=2)
        before = {record.id: record.score for record in await stage.all(Record)}
        await rescoring.request(stage.db, list(before), "generous", by="op-1")

        async def scored_again() -> bool:
            return not await stage.db.count("Record", {"rescore.wanted": True})

        await aeventually(scored_again)
        for record in await stage.all(Record):
            assert (record.score, record.scores_before) == (0.25, [before[record.id]])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(rescorer, "TRIES_AFTER_S", (0.0, 0.0))
            await rescoring.request(stage.db, list(before)[:1], "speechless", by="op-2")
            await aeventually(scored_again)
    kept = (await rescoring.of_operation(stage.db, "op-2"))[0]
    assert kept.score == 0.25
    assert kept.rescore is not None
    assert kept.rescore.error == "the judge is away"
