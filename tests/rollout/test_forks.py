"""Forks with real samplers, toolboxes and MCP servers: repairs, branches and probes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import Rollout
from agentrl.errors import RefusedError
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_changes import (
    Done,
    ExcludeReplayed,
    ForkRecords,
    KeepReplays,
    ReplayCalls,
)
from agentrl.protocol.effects import Effect, Tier
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import raw
from agentrl.queries.dispatcher import Dispatcher
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.episode import Episode
from agentrl.steward import admission, group_upkeep
from agentrl.steward.replays import ReplayRunner
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import accounting, forks, owners, pruning, replays, tasks
from agentrl.store import calls as call_store
from agentrl.store.documents import DBRecordData, Record, Task
from agentrl.store.replay_documents import Replay
from agentrl.toolbox import mcp_connection
from agentrl.training.batch_assembly import trajectory_of
from tests.rollout.actors import Prompt
from tests.rollout.conftest import TOKEN, Stage, configuration, unruly_tools
from tests.rollout.test_tools import calls
from tests.waiting import aeventually

SETTINGS = StewardSettings(environments={"shop": EnvironmentSettings(servers=("faulty",))}, n=2)


class Outage:
    """While it is down, `search` fails for infrastructure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def mend(self) -> None:
        self.path.unlink()


@pytest.fixture
def down(tmp_path: Path) -> Outage:
    return Outage(tmp_path / "down")


async def ask(stage: Stage, name: str, args: Args, *, dry_run: bool = False, id: str = "op-1") -> Any:
    runner = ReplayRunner(stage.db, stage.config.tools, owner="steward-0.1", token=TOKEN)
    dispatcher = Dispatcher(stage.db, lambda: SETTINGS, {}, Path.cwd(), replays=runner)
    return await dispatcher.answer(AskUnit("1", id, name, raw(args), who="ada", dry_run=dry_run))


async def fork(stage: Stage, target: str = "", *, id: str = "op-1", **args: Any) -> str:
    done: Done = await ask(stage, "fork_records", ForkRecords(target=target, **args), id=id)
    return str(done.result["forked"])


async def preview(stage: Stage, target: str = "", **args: Any) -> Effect:
    effect: Effect = await ask(stage, "fork_records", ForkRecords(target=target, **args), dry_run=True)
    return effect


def searcher(down: Outage, then: str = "<answer>3</answer>") -> Any:
    """Seat 0 ticks, searches, ticks and answers; the other seats answer at once, and wrongly."""

    def says(prompt: Prompt) -> str:
        if ".s0." not in prompt.record and "branch" not in prompt.record:
            return "<answer>4</answer>"
        said = [calls("tick()"), calls(f"search(while_down={str(down.path)!r})"), calls("tick()"), then]
        return said[len(prompt.answers) - 1]

    return says


async def failed_search(stage: Stage, down: Outage, **settings: Any) -> tuple[Task, Record]:
    """A group of which one record failed for infrastructure in its second turn."""
    stage.config = configuration(**unruly_tools(**settings))
    await stage.toolbox()
    await stage.engine(searcher(down))
    task = await stage.task(n=2)
    async with stage.sampler("sampler-0.1"):
        records = await stage.ended(count=2)
    (base,) = (record for record in records if record.status == "failed")
    assert base.outcome == "tool_server_failed"
    return task, base


async def of_record(stage: Stage, id: str) -> Record:
    (found,) = await stage.all(Record, _id=id)
    record: Record = found
    return record


async def scored(stage: Stage, id: str) -> Record:
    async def look() -> Record | None:
        record = await of_record(stage, id)
        assert record.status not in ("failed", "abandoned"), record.error
        return record if record.status == "scored" else None

    record: Record = await aeventually(look, what=f"{id} is scored")
    return record


async def failure(stage: Stage, **of: Any) -> Record:
    async def look() -> Record | None:
        return next(iter(await stage.all(Record, status="failed", **of)), None)

    record: Record = await aeventually(look, what="it failed")
    return record


async def trained_tokens(stage: Stage, record: str) -> tuple[int, int]:
    """How many tokens of a record train, and how many it has generated or inherited from its trunk."""
    answered = (await call_store.with_tokens(stage.db, [record]))[record]
    (data,) = await stage.all(DBRecordData, _id=record)
    trajectory = trajectory_of(data, answered)
    assert trajectory.trained_tokens == data.trained_tokens
    return trajectory.trained_tokens, sum(len(one.output) // 4 for one in answered)


async def test_repaired_record_enters_its_group_as_if_it_had_not_failed(stage: Stage, down: Outage) -> None:
    task, base = await failed_search(stage, down)
    effect = await preview(stage, base.id)
    assert effect.changes[0] == f"repair: a fork takes seat 0 of {task.id}, and goes on with turn 2 of {base.id}"
    assert "1 tool call before it; 1 of the calls runs again" in effect.changes[1]
    down.mend()
    id = await fork(stage, base.id)
    assert await fork(stage, base.id) == id, "a repeated operation makes no second fork"
    assert id == f"{task.id}#r1.s0.a2"
    async with stage.sampler("sampler-1.1"):
        record = await scored(stage, id)
    assert (record.score, record.turns, record.outcome) == (1.0, 4, "answered")
    assert record.fork is not None
    assert (record.fork.kind, record.fork.base, record.fork.turns) == ("repair", base.id, 1)
    parent = await of_record(stage, base.id)
    assert (parent.status, parent.forks, parent.excluded_by) == ("excluded", [id], "op-1")
    made = [one.result for one in await stage.tool_calls() if one.id.startswith(f"{id}/")]
    assert made == ["tick 1", "found", "tick 2"], "the session is the one of the trunk"
    trains, tokens = await trained_tokens(stage, id)
    assert trains == tokens > 0, "trunk and continuation train"
    closed = await tasks.get(stage.db, task.id)
    assert (closed.status, closed.signal, closed.baseline and closed.baseline.mean) == ("ready", True, 0.5)
    account = await accounting.account(stage.db)
    assert account.balanced, account.problems


async def test_edited_result_branches_off_into_a_group_of_which_only_the_continuation_trains(
    stage: Stage, down: Outage
) -> None:
    down.mend()
    stage.config = configuration(**unruly_tools())
    await stage.toolbox()
    engine = await stage.engine(searcher(down))
    task = await stage.task(n=2)
    async with stage.sampler("sampler-0.1"):
        await stage.ended(count=2)
    base = await of_record(stage, f"{task.id}#r1.s0.a1")
    effect = await preview(stage, f"{base.id}/1.0", result="nothing")
    assert effect.changes[0] == f"branch: 2 records go on with turn 2 of {base.id}, as a group of their own"
    assert effect.changes[1] == "it does not repair, because what a person wrote never repairs"
    id = await fork(stage, f"{base.id}/1.0", result="nothing")
    assert await fork(stage, f"{base.id}/1.0", result="nothing") == id
    assert (await admission.admit(stage.db, SETTINGS)).groups == 1
    async with stage.sampler("sampler-1.1"):
        records = [await scored(stage, f"{id}#r1.s{seat}.a1") for seat in range(2)]
    shown = [prompt.answers[1:] for prompt in engine.prompts if prompt.record == records[0].id]
    assert shown == [["tick 1", "nothing"], ["tick 1", "nothing", "tick 2"]], "the trunk is not sampled"
    for record in records:
        assert (record.purpose, record.turns, record.fork and record.fork.kind) == ("branch", 4, "branch")
        trains, tokens = await trained_tokens(stage, record.id)
        assert 0 < trains < tokens
        answered = (await call_store.with_tokens(stage.db, [record.id]))[record.id]
        assert [call.context for call in answered] == [True, True, False, False]
    closed = await tasks.get(stage.db, id)
    assert (closed.status, closed.members, closed.signal) == ("ready", 2, False)
    before = await tasks.get(stage.db, task.id)
    assert (before.status, before.members) == ("ready", 2), "the group of the base stays as it was"
    assert (await of_record(stage, base.id)).forks == [id]
    account = await accounting.account(stage.db)
    assert account.balanced, account.problems


async def test_single_continuation_is_a_probe_that_does_not_train(stage: Stage, down: Outage) -> None:
    task, base = await failed_search(stage, down)
    down.mend()
    assert await tasks.next_round(stage.db, task, Actor.STEWARD, "too few")
    effect = await preview(stage, base.id, times=1)
    assert effect.changes[1] == "it does not repair, because its group is over: its task is queued"
    id = await fork(stage, base.id, times=1)
    again: Done = await ask(stage, "fork_records", ForkRecords(target=base.id, times=1))
    assert again.result == {"probe": 1, "forked": id}, "an operation that is carried out again has the same result"
    assert await admission.admit_evaluations(stage.db, SETTINGS) == 1
    async with stage.sampler("sampler-1.1"):
        await scored(stage, f"{id}#r1.s0.a1")
    assert (await tasks.get(stage.db, id)).purpose == "probe"
    assert await forks.end_probes(stage.db) == 1
    assert (await tasks.get(stage.db, id)).status == "done"
    account = await accounting.account(stage.db)
    assert account.balanced, account.problems


async def test_fork_that_generated_nothing_before_its_deadline_is_no_fault_of_the_policy(
    stage: Stage, down: Outage
) -> None:
    _, base = await failed_search(stage, down)
    down.mend()
    id = await fork(stage, base.id)

    async def never(prompt: Prompt) -> str:
        await asyncio.Event().wait()
        return ""

    (engine,) = stage.made_engines
    engine.says = never
    settings = Rollout(call_s=20, episode_s=4, episode_timeout_means="policy")
    async with stage.sampler("sampler-1.1", settings=settings):
        record = await failure(stage, _id=id)
    assert (record.outcome, record.turns) == ("episode_timeout", 2), "both turns are of the trunk"


async def test_edited_message_begins_a_branch(stage: Stage, down: Outage) -> None:
    _, base = await failed_search(stage, down)
    down.mend()
    id = await fork(stage, base.id, message="what costs a plum?")
    assert await admission.admit(stage.db, SETTINGS)
    async with stage.sampler("sampler-1.1"):
        record = await scored(stage, f"{id}#r1.s0.a1")
    assert (await tasks.get(stage.db, id)).query == "what costs a plum?"
    assert record.turns == 4
    with pytest.raises(RefusedError, match="Only the message that a record begins with"):
        await preview(stage, f"{base.id}/1", message="what?")


async def test_trunk_that_a_tool_does_not_repeat_ends_as_not_reproducible(stage: Stage, down: Outage) -> None:
    task, base = await failed_search(stage, down)
    await stage.db.update_many(
        "DispatchedSamplingTask", {"record": base.id, "turn": 0}, {"$set": {"tool_calls.0.result": "tick 7"}}
    )
    id = await fork(stage, base.id)
    async with stage.sampler("sampler-1.1"):
        record = await failure(stage, _id=id)
    assert record.outcome == "not_reproducible"
    assert record.error == f"{base.id}/000.0 (tick) returned something else: line 1 was tick 7, is tick 1"
    assert await group_upkeep.open_next_attempts(stage.db) == 1, "its seat may be sampled again"
    assert await of_record(stage, f"{task.id}#r1.s0.a3")


@pytest.mark.parametrize(("deaths", "ends"), [(2, "scored"), (3, "failed")])
async def test_session_of_a_fork_of_which_a_call_is_lost_is_rebuilt_three_times_at_most(
    stage: Stage, down: Outage, tmp_path: Path, deaths: int, ends: str
) -> None:
    path = tmp_path / "deaths left"
    path.write_text("0")
    code = f"import os, pathlib; file = pathlib.Path({str(path)!r}); left = int(file.read_text())"
    code += "; left and file.write_text(str(left - 1)) and os._exit(3); found = 'done'"

    def says(prompt: Prompt) -> str:
        first = calls("tick()", f"python(code={code!r})")
        said = [first, calls(f"search(while_down={str(down.path)!r})"), calls("tick()"), "<answer>3</answer>"]
        return said[len({*prompt.answers[1:]} - {"done"})]

    stage.config = configuration(**unruly_tools())
    await stage.toolbox()
    await stage.engine(says)
    await stage.task(n=1)
    async with stage.sampler("sampler-0.1"):
        base = await failure(stage)
    down.mend()
    path.write_text(str(deaths))
    id = await fork(stage, base.id)
    async with stage.sampler("sampler-1.1"):
        record = await (scored(stage, id) if ends == "scored" else failure(stage, _id=id))
    assert path.read_text() == "0"
    if ends == "failed":
        assert record.outcome == "tool_server_failed"
        assert record.error.startswith(f"3 sessions could not be rebuilt: {base.id}/000.1 (python) was lost:")
        return
    made = [one.result for one in await stage.tool_calls() if one.id.startswith(f"{id}/")]
    assert made == ["tick 1", "done", "found", "tick 2"]
    assert (await accounting.account(stage.db)).balanced


@pytest.mark.parametrize("effect", ["outside", "pure"])
async def test_what_servers_declare_of_their_tools_decides_what_a_fork_runs_again(
    stage: Stage, down: Outage, monkeypatch: pytest.MonkeyPatch, effect: str
) -> None:
    monkeypatch.setattr(mcp_connection, "_declared_effect", lambda tool: effect if tool.name == "tick" else "")
    _, base = await failed_search(stage, down)
    down.mend()
    if effect == "outside":
        with pytest.raises(RefusedError, match=r"faulty\.tick acts outside of the session"):
            await preview(stage, base.id)
        return
    assert "run again" not in (await preview(stage, base.id)).changes[1]
    id = await fork(stage, base.id)
    async with stage.sampler("sampler-1.1"):
        await scored(stage, id)
    made = [one.result for one in await stage.tool_calls() if one.id.startswith(f"{id}/")]
    assert made == ["tick 1", "found", "tick 1"], "the pure call of the trunk did not run again"


async def test_fork_of_a_base_whose_details_were_removed_samples_nothing(stage: Stage, down: Outage) -> None:
    task, base = await failed_search(stage, down)
    id = await fork(stage, base.id)
    await pruning.remove_details(stage.db, [task.id])
    prompts = len(stage.made_engines[0].prompts)
    async with stage.sampler("sampler-1.1"):
        record = await failure(stage, _id=id)
    assert (record.outcome, record.error) == (
        "not_reproducible",
        f"turn 0 of its base {base.id} is not stored any more",
    )
    assert len(stage.made_engines[0].prompts) == prompts


@register_loop("silent_loop")
class SilentLoop(AgentLoop):
    """A loop that sends another prompt in its second run."""

    runs = 0

    async def run(self, episode: Episode) -> Outcome:
        SilentLoop.runs += 1
        ids = episode.first_prompt()
        reply = await episode.model(ids)
        tail = episode.template.tool_results([f"run {SilentLoop.runs}"], ended=reply.ended)
        reply = await episode.model([*ids, *reply.ids, *tail])
        await episode.model([*ids, *reply.ids, *tail])
        return Outcome.ANSWERED


async def test_loop_with_other_prompts_in_its_trunk_is_not_reproducible(stage: Stage) -> None:
    await stage.engine(lambda prompt: "<answer>3</answer>")
    task = await stage.task(n=2, agent_name="silent_loop")
    async with stage.sampler("sampler-0.1"):
        await stage.ended(count=2)
    id = await fork(stage, f"{task.id}#r1.s0.a1/2")
    assert (await admission.admit(stage.db, SETTINGS)).groups == 1
    async with stage.sampler("sampler-1.1"):
        failed = await failure(stage, task=id)
    assert (failed.outcome, failed.error) == (
        "not_reproducible",
        "the loop asks another prompt in turn 1 than the base did",
    )


async def test_another_sampler_goes_on_with_a_fork_and_its_session(stage: Stage, down: Outage) -> None:
    _, base = await failed_search(stage, down)
    down.mend()
    id = await fork(stage, base.id)
    go_on = asyncio.Event()

    async def late(prompt: Prompt) -> str:
        await go_on.wait()
        return str(searcher(down)(prompt))

    (engine,) = stage.made_engines
    engine.says = late
    async with stage.sampler("sampler-1.1"):
        await aeventually(lambda: any(prompt.record == id for prompt in engine.prompts), what="it goes on")
    go_on.set()
    async with stage.sampler("sampler-2.1"):
        record = await scored(stage, id)
    made = [one.result for one in await stage.tool_calls() if one.id.startswith(f"{id}/")]
    assert (record.turns, made) == (4, ["tick 1", "found", "tick 2"])


async def test_calls_that_work_now_are_replayed_and_their_records_forked(stage: Stage, down: Outage) -> None:
    _, base = await failed_search(stage, down)
    wanted = ReplayCalls(filter="tool=search", then="fork")
    effect: Effect = await ask(stage, "replay_calls", wanted, dry_run=True)
    assert effect.changes[-1] == "if it works now: 1 record of 1 group is repaired: forks take their seats"
    down.mend()
    await owners.Lease(stage.db, "steward-0.1", unit="steward-0", role="steward").open()
    runner = ReplayRunner(stage.db, stage.config.tools, owner="steward-0.1", token=TOKEN)
    replaying = asyncio.create_task(runner.run())

    async def over() -> Done | None:
        done: Done = await ask(stage, "replay_calls", wanted)
        return None if done.under_way else done

    done: Done = await aeventually(over, what="the replay and the fork are over")
    assert done == await over(), "the operation may be repeated"
    runner.stop()
    await replaying
    (id,) = (await of_record(stage, base.id)).forks
    assert any(f"repair: {id} goes on from {base.id}" in line for line in done.lines)
    (replay,) = await stage.all(Replay)
    assert (replay.status, replay.forked, replay.verdict) == ("forked", id, "fixed")
    async with stage.sampler("sampler-1.1"):
        record = await scored(stage, id)
    assert record.fork is not None
    assert (record.fork.kind, record.fork.replay, record.turns) == ("repair", replay.id, 4)


async def test_forks_lose_nothing_but_what_they_displace_makes_them_disruptive(stage: Stage, down: Outage) -> None:
    tier = COMMANDS["fork_records"].tier
    first, base = await failed_search(stage, down)
    assert tier(await preview(stage, base.id)) is Tier.REVERSIBLE
    assert await group_upkeep.open_next_attempts(stage.db) == 1
    effect = await preview(stage, base.id)
    assert (effect.displaces, effect.loses) == ((f"{first.id}#r1.s0.a2 ends: the fork has its seat",), ())
    assert tier(effect) is Tier.DISRUPTIVE

    await stage.task(n=2)
    async with stage.sampler("sampler-1.1"):
        await stage.ended(count=5)
    many = await ask(stage, "replay_calls", ReplayCalls(filter="tool=search", then="fork"), dry_run=True)
    assert many.displaces == ("if they work now: 2 records of 2 groups are repaired: forks take their seats",)
    assert COMMANDS["replay_calls"].tier(many) is Tier.DISRUPTIVE


async def test_replay_is_kept_or_its_record_excluded_once(stage: Stage) -> None:
    await stage.engine(lambda prompt: "<answer>3</answer>")
    task = await stage.task(n=3)
    async with stage.sampler("sampler-0.1"):
        await stage.ended(count=3)
    record = f"{task.id}#r1.s0.a1"
    for name in ("one", "two"):
        made = Replay(id=f"{record}/000.0~{name}", operation=name, call=f"{record}/000.0", record=record, task=task.id)
        await replays.insert(stage.db, [made])
    await stage.db.update_many("Replay", {}, {"$set": {"status": "judged", "verdict": "different"}})
    await ask(stage, "keep_replays", KeepReplays(ids=("one",), note="as it should be"))
    with pytest.raises(RefusedError, match="is kept: there is nothing to decide"):
        await ask(stage, "exclude_replayed", ExcludeReplayed(ids=("one",)), id="op-2")
    await ask(stage, "exclude_replayed", ExcludeReplayed(ids=("two",)), id="op-3")
    found = {replay.operation: (replay.status, replay.decision) for replay in await stage.all(Replay)}
    assert found == {"one": ("kept", "as it should be"), "two": ("excluded", "")}
    assert (await of_record(stage, record)).status == "excluded"
