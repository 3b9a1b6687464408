"""One episode: its turns, its tokens, its end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from agentrl.config.data_plane import Rollout
from agentrl.environments.rubric import Score
from agentrl.policies.outcomes import Blame, Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.episode import SECOND_CALL, Episode, Reply
from agentrl.store import calls as stored_calls
from agentrl.store.documents import Record
from agentrl.tokens import spans as span_lists
from agentrl.tokens import version_runs as version_runs
from agentrl.tokens.binary_format import unpack_floats, unpack_ids
from tests.rollout.actors import Prompt, ScriptedAnswer
from tests.rollout.conftest import Stage, configuration
from tests.waiting import aeventually


async def test_an_answer_is_finished_scored_and_its_tokens_are_stored(stage: Stage) -> None:
    await stage.engine(lambda got: "it costs <answer> 3 </answer>")
    await stage.task(n=2)
    async with stage.sampler():
        records = await stage.ended(count=2)
    assert [(record.status, record.outcome, record.score) for record in records] == [("scored", "answered", 1.0)] * 2
    call, data = (await stage.calls())[0], (await stage.data())[0]
    assert call.status == "done"
    assert call.sent_at is not None, "a call that is stored with its answer also has its duration"
    assert call.done_at is not None
    output = unpack_ids(call.output)
    assert stage.words.template.tokenizer.decode(output) == "it costs <answer> 3 </answer><|end|>"
    assert len(unpack_floats(call.log_probs)) == version_runs.total(call.versions) == len(output) == data.trained_tokens
    assert [span.kind for span in data.spans] == ["environment", "model"]
    assert (data.oldest_version, data.versions) == (1, [1])
    assert records[0].generated_tokens == len(output)
    assert records[0].turns == 1


async def test_members_of_a_group_sample_with_different_seeds(stage: Stage) -> None:
    engine = await stage.engine(lambda got: "<answer>3</answer>")
    await stage.task(n=8)
    async with stage.sampler():
        await stage.ended(count=8)
    assert len({got.params["sampling_seed"] for got in engine.prompts}) == 8
    assert {got.params["temperature"] for got in engine.prompts} == {1.0}


async def test_the_last_score_closes_the_group(stage: Stage) -> None:
    reply = iter(["<answer>3</answer>", "<answer>4</answer>", "no idea"])
    await stage.engine(lambda got: next(reply))
    task = await stage.task(n=3)
    async with stage.sampler(concurrency=1):
        await stage.ended(count=3)
        closed = await aeventually(lambda: _ready(stage, task.id), what="the group closes")
    assert closed["baseline"]["mean"] == pytest.approx(1 / 3)
    assert closed["signal"]
    assert sorted(data.advantage > 0 for data in await stage.data()) == [False, False, True]  # type: ignore[operator]


async def _ready(stage: Stage, task: str) -> dict[str, Any] | None:
    return await stage.db.find_one("Task", {"_id": task, "status": "ready"})


@pytest.mark.parametrize(
    ("says", "sampling", "outcome", "status"),
    [
        ("no answer here", {}, Outcome.NO_ANSWER, "scored"),
        ("word " * 400, {}, Outcome.TOKEN_LIMIT, "scored"),
        ("word " * 200, {"context": 60, "max_tokens_per_call": 500}, Outcome.CONTEXT_FULL, "scored"),
        ("<answer>3</answer>", {"context": 5}, Outcome.PROMPT_TOO_LONG, "scored"),
        (ScriptedAnswer("x", change=lambda answer: answer["meta_info"].update(output_token_logprobs=[])), {},
         Outcome.ENGINE_RUBBISH, "failed"),
        (ScriptedAnswer("x", change=lambda answer: _each(answer, lambda pair: [0.7, pair[1], None])), {},
         Outcome.ENGINE_RUBBISH, "failed"),
        (ScriptedAnswer("x", status=400), {}, Outcome.ENGINE_FAILED, "failed"),
        (ScriptedAnswer("x", status=500), {}, Outcome.ENGINE_FAILED, "failed"),
        (ScriptedAnswer("", finish="abort"), {}, Outcome.ENGINE_FAILED, "failed"),
    ],
    ids=["no answer", "token limit", "context", "prompt", "broken answer", "rubbish", "refused", "error", "aborts"],
)  # fmt: skip
async def test_every_end_has_one_reason(
    stage: Stage, says: Any, sampling: dict[str, int], outcome: Outcome, status: str
) -> None:
    await stage.engine(lambda got: says)
    await stage.task(n=1, sampling=sampling)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.status) == (outcome, status)
    assert (record.score == 0.0) is (status == "scored")
    assert bool(record.error) is (status == "failed")
    assert not await stage.open_ends()


def _each(answer: dict[str, Any], change: Any) -> None:
    meta = answer["meta_info"]
    meta["output_token_logprobs"] = [change(pair) for pair in meta["output_token_logprobs"]]


async def test_an_aborted_call_continues_from_its_tokens(stage: Stage) -> None:
    reply = iter(
        [ScriptedAnswer("it costs ", finish="abort"), ScriptedAnswer("", finish="abort"), "<answer>3</answer>"]
    )
    engine = await stage.engine(lambda got: next(reply))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.score) == ("answered", 1.0)
    calls = await stage.calls()
    assert [call.status for call in calls] == ["partial", "partial", "done"]
    assert engine.prompts[2].text.endswith("<|assistant|>it costs ")
    assert engine.prompts[2].params["max_new_tokens"] < engine.prompts[0].params["max_new_tokens"]
    # Each token was generated once and is stored once.
    stored = stored_calls.stored_calls(calls)
    prompts = span_lists.full_prompts(stored)
    assert prompts[2] == engine.prompts[2].ids
    assert (await stage.data())[0].trained_tokens == sum(len(call.output) for call in stored.values())
    assert (await stage.turns())[0].text == "it costs <answer>3</answer>"


async def test_a_lost_call_is_sent_to_another_engine(stage: Stage) -> None:
    # No program listens at the discard port.
    await stage.engine(lambda got: "never", url="http://127.0.0.1:9")
    await stage.engine(lambda got: "<answer>3</answer>")
    await stage.task(n=8)
    async with stage.sampler():
        records = await stage.ended(count=8)
    assert {record.outcome for record in records} == {"answered"}
    calls = await stage.calls()
    lost = [call for call in calls if call.status == "failed"]
    assert all("gone" in call.error for call in lost)
    assert len([call for call in calls if call.status == "done"]) == 8
    assert len({(call.record, call.index) for call in calls}) == len(calls)


async def silent(got: Prompt) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("means", "status", "outcome", "kind"),
    [
        ("policy", "scored", "time_limit", "limit"),
        ("infrastructure", "failed", "episode_timeout", "infrastructure"),
    ],
    ids=["policy", "infrastructure"],
)
async def test_an_episode_at_its_deadline_is_at_a_limit_of_the_policy_unless_the_run_says_otherwise(
    stage: Stage, means: Blame, status: str, outcome: str, kind: str
) -> None:
    reply = iter(["<tool_call>broken"])
    await stage.engine(lambda got: next(reply, None) or silent(got))
    await stage.task(n=1)
    async with stage.sampler(settings=Rollout(call_s=20, episode_s=4, episode_timeout_means=means)):
        record = await stage.one()
    assert (record.status, record.outcome, record.outcome_class) == (status, outcome, kind)
    assert (record.error, record.turns) == ("it took longer than 4 s", 1)
    assert [(data.capped, data.trained_tokens) for data in await stage.data()] == (
        [(True, record.generated_tokens)] if means == "policy" else []
    )
    assert not await stage.open_ends()


async def test_waiting_for_an_engine_does_not_count_as_time_of_the_episode(stage: Stage) -> None:
    await stage.engine(silent, version=1)
    await stage.task(n=1, purpose="eval", version=2)
    async with stage.sampler() as sampler:
        wait = ("an engine that holds version 2", "engine")
        await aeventually(lambda: wait in stage.waits, what="the episode waits for an engine")
        (attempt,) = sampler._attempts
        assert attempt._model_calls is not None
        deadline = attempt._model_calls._clock._timeout
        assert deadline is not None
        await aeventually(lambda: deadline.when() is None, what="nothing can end it while it waits")
        await stage.engine(lambda got: "<answer>3</answer>", version=2)
        record = await stage.one()
    assert record.outcome == "answered"


async def test_time_of_failed_engines_does_not_count_as_time_of_the_episode(stage: Stage) -> None:
    async def breaks_late(got: Prompt) -> ScriptedAnswer:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.6):
                await asyncio.Event().wait()
        return ScriptedAnswer(status=500)

    reply = iter([breaks_late, breaks_late, lambda got: "<answer>3</answer>"])
    await stage.engine(lambda got: next(reply)(got))
    await stage.task(n=1)
    async with stage.sampler(settings=Rollout(call_s=20, episode_s=3.0)):
        record = await stage.one()
    assert record.outcome == "answered", record.error


async def test_an_episode_without_a_token_fails_at_its_deadline_and_leaves_nothing_open(stage: Stage) -> None:
    await stage.engine(silent)
    await stage.task(n=1)
    async with stage.sampler(settings=Rollout(call_s=20, episode_s=3)):
        record = await stage.one()
    assert (record.status, record.outcome) == ("failed", "episode_timeout")
    assert not await stage.open_ends()
    assert ("model call", "engine-0") in stage.waits


async def test_a_call_ends_at_its_deadline_with_its_output(stage: Stage) -> None:
    async def slow(got: Prompt) -> str:
        if got.text.endswith("it costs"):
            return " <answer>3</answer>"
        await asyncio.Event().wait()
        return ""

    engine = await stage.engine(slow)
    engine.partly = "it costs"
    await stage.task(n=1)
    async with stage.sampler(settings=Rollout(call_s=0.3, episode_s=60)):
        record = await stage.one()
    assert (record.outcome, record.score) == ("answered", 1.0)


async def test_a_task_may_name_a_loop_of_the_run(stage: Stage) -> None:
    @register_loop("twice")
    class Twice(AgentLoop):
        async def run(self, episode: Episode) -> Outcome:
            prompt = episode.first_prompt()
            first = await episode.model(prompt)
            again = [*prompt, *first.ids, *episode.template.user("are you sure?", ended=first.ended)]
            # What the model said first is edited away: the tokens branch there.
            await episode.model([*prompt[:-1], *episode.template.user("think", ended=True)])
            last = await episode.model(again)
            return self.ending(last.text, episode.task)

        async def evaluate_record(self, texts: Any, task: Any) -> Score:
            return Score(0.25 * len(texts), turns=(0, 0.5))

    await stage.engine(lambda got: f"<answer>{len(got.ids)}</answer>")
    await stage.task(n=1, agent_name="twice")
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.score, record.turns) == ("answered", 0.75, 3)
    assert record.turn_rewards == [0.0, 0.5], "later turns have none"
    data = (await stage.data())[0]
    assert len(set(range(len(data.spans))) - {span.parent for span in data.spans}) == 2, "two branches"
    assert data.trained_tokens == record.generated_tokens


@pytest.mark.parametrize(
    ("agent", "says"), [("nobody_knows_it", ""), ("breaks", "it broke"), ("swallows", "store")], ids=str
)
async def test_a_loop_that_fails_is_infrastructure(stage: Stage, agent: str, says: str) -> None:
    await stage.engine(lambda got: ScriptedAnswer(status=400))
    await stage.task(n=1, agent_name=agent)
    async with stage.sampler():
        record = await stage.one()
    assert record.status == "failed"
    assert record.outcome == ("engine_failed" if agent == "swallows" else "loop_failed")


@register_loop("breaks")
class Breaks(AgentLoop):
    async def run(self, episode: Episode) -> Outcome:
        raise RuntimeError("it broke")


@register_loop("swallows")
class Swallows(AgentLoop):
    async def run(self, episode: Episode) -> Outcome:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(episode.model(episode.first_prompt()))
        except Exception:  # noqa: BLE001 - what users write
            return Outcome.ANSWERED
        return Outcome.ANSWERED


@register_loop("gathers")
class Gathers(AgentLoop):
    async def run(self, episode: Episode) -> Outcome:
        prompt = episode.first_prompt()
        await asyncio.gather(episode.model(prompt), episode.model(prompt))
        return Outcome.ANSWERED


@register_loop("groups_tasks")
class GroupsTasks(AgentLoop):
    async def run(self, episode: Episode) -> Outcome:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(episode.model(episode.first_prompt()))
        return Outcome.ANSWERED


@pytest.mark.parametrize("agent", ["gathers", "groups_tasks"])
async def test_a_second_model_call_at_the_same_time_is_refused_with_what_to_do(stage: Stage, agent: str) -> None:
    await stage.engine(lambda got: "<answer>3</answer>")
    await stage.task(n=1, agent_name=agent)
    async with stage.sampler():
        record = await stage.one()
    assert (record.status, record.outcome, record.error) == ("failed", "loop_failed", SECOND_CALL)
    assert [call.index for call in await stage.calls()] == list(range(len(await stage.calls())))
    assert not await stage.open_ends()


async def test_a_model_call_that_the_loop_left_behind_belongs_to_no_record(stage: Stage) -> None:
    @register_loop("leaves_a_task")
    class LeavesATask(AgentLoop):
        async def run(self, episode: Episode) -> Outcome:
            reply = await episode.model(episode.first_prompt())
            left.append(asyncio.create_task(episode.model([*episode.first_prompt(), *reply.ids])))
            await aeventually(lambda: len(engine.prompts) == 2, what="the second call is running")
            return self.ending(reply.text, episode.task)

    left: list[asyncio.Task[Reply]] = []
    reply = iter(["<answer>3</answer>"])
    engine = await stage.engine(lambda got: next(reply, None) or silent(got))
    await stage.task(n=1, agent_name="leaves_a_task")
    async with stage.sampler():
        record = await stage.one()
        await asyncio.wait(left)
    assert (record.outcome, record.score, record.turns) == ("answered", 1.0, 1)
    assert [call.status for call in await stage.calls()] == ["done", "failed"]
    assert (await stage.data())[0].trained_tokens == record.generated_tokens
    assert left[0].cancelled()


async def test_a_single_turn_agent_asks_once(stage: Stage) -> None:
    engine = await stage.engine(lambda got: "<tool_call>lookup(pear)</tool_call>")
    await stage.task(n=1, agent_name="single_turn_agent", answer_schema="")
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns, len(engine.prompts)) == ("answered", 1, 1)


async def test_evaluations_ask_the_version_that_they_pin(stage: Stage) -> None:
    await stage.engine(lambda got: "never", version=1)
    engine = await stage.engine(lambda got: "<answer>3</answer>", version=2)
    rule = {"temperature": 0.0, "top_p": 0.9, "top_k": 20, "presence_penalty": 1.5}
    await stage.task(n=4, purpose="eval", version=2, sampling=rule)
    async with stage.sampler():
        records = await stage.ended(count=4)
    assert {record.score for record in records} == {1.0}
    assert len(engine.prompts) == 4
    assert all(rule.items() <= got.params.items() for got in engine.prompts)
    assert all(rule.items() <= call.sampling.items() for call in await stage.calls())


async def test_the_environment_may_limit_turns(stage: Stage) -> None:
    stage.config = configuration(environments={"shop": {"dataset": "none.jsonl", "parser": "minicpm", "max_turns": 2}})
    await stage.engine(lambda got: "<tool_call>broken" + "!" * len(got.ids))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.outcome_class, record.turns, record.score) == ("turn_limit", "limit", 2, 0.0)
    assert (await stage.all(Record))[0].error == ""
