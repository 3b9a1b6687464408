"""Forks in the store: made once, seats held once, and no token trained too often, whatever happens in which order."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import AgentrlError, RefusedError
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.status_tables import Actor
from agentrl.protocol.data_changes import ExcludeRecords, ForkRecords
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import raw
from agentrl.queries.dispatcher import Dispatcher
from agentrl.rollout.record_ending import structure
from agentrl.steward import admission, group_upkeep
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import accounting, calls, claims, forks, groups, indexes, lineages, replays, steps, tasks
from agentrl.store.call_writer import CALLS
from agentrl.store.claims import Claim, Ending, Reached
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.document_ids import call_id
from agentrl.store.documents import DispatchedSamplingTask, Record, Task, load, to_bson
from agentrl.store.replay_documents import Replay, ReplayedCall
from agentrl.tokens import spans as span_lists
from agentrl.tokens.binary_format import pack_floats, pack_ids
from agentrl.tokens.token_tree import TokenTree
from tests.store.deaths import repeated_after_deaths
from tests.store.flow import RULE, claim_one, commit, queue, sampler

SETTINGS = StewardSettings(environments={"shop": EnvironmentSettings()}, n=2, max_in_flight=1000, groups=50)
OWNER = "sampler-0.1"


async def ask(
    db: Database, name: str, args: Args, id: str, *, settings: StewardSettings = SETTINGS, dry_run: bool = False
) -> Any:
    dispatcher = Dispatcher(db, lambda: settings, {}, Path.cwd())
    return await dispatcher.answer(AskUnit("1", id, name, raw(args), who="ada", dry_run=dry_run))


async def fork(db: Database, target: str, id: str, **args: Any) -> str:
    done = await ask(db, "fork_records", ForkRecords(target=target, **args), id)
    return str(done.result["forked"])


class Sampled:
    """Plays samplers with outputs that are all different."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.made = 0

    async def run(self, claim: Claim, *, score: float | None, turns: int = 2) -> None:
        """Some turns of its own after the trunk; `score` None fails for infrastructure."""
        record = claim.record
        if record.fork is not None:
            await forks.copy_trunk(self.db, record, OWNER)
        trunk = await calls.of_record(self.db, record.id)
        for index in range(len(trunk), len(trunk) + turns):
            await self.db.insert_many(CALLS, [to_bson(self._call(record, index))])
        answered = await calls.of_record(self.db, record.id)
        generated = sum(len(call.output) // 4 for call in answered)
        reached = Reached(turns=len(answered), generated_tokens=generated, oldest_version=1, versions=[1])
        if score is None:
            await claims.fail(self.db, record.id, OWNER, Outcome.ENGINE_FAILED, reached=reached)
            return
        stored = calls.stored_calls(answered)
        prompts = span_lists.full_prompts(stored)
        tree = TokenTree.from_calls((index, prompts[index], call.output) for index, call in stored.items())
        context = {call.index for call in answered if call.context}
        runs = {call.index: call.versions for call in answered}
        data = structure(record, tree, runs, OutcomeClass.POLICY, context)
        ending = Ending(outcome=Outcome.ANSWERED, turns=len(answered), generated_tokens=generated, versions=[1])
        assert await claims.finish(self.db, record.id, OWNER, ending)
        assert await claims.score(self.db, record.id, OWNER, score, data)
        await groups.close(self.db, record.task, RULE, Actor.SAMPLER)

    def _call(self, record: Record, index: int) -> DispatchedSamplingTask:
        self.made += 1
        return DispatchedSamplingTask(
            id=call_id(record.id, index),
            record=record.id,
            task=record.task,
            turn=index,
            index=index,
            owner=OWNER,
            status="done",
            prompt=pack_ids([1, index]),
            output=pack_ids([self.made, self.made]),
            log_probs=pack_floats([-0.5, -0.5]),
            versions=[(1, 2)],
        )


async def failed(db: Database) -> tuple[Task, str]:
    """An admitted task of two seats, of which the first record failed for infrastructure."""
    await indexes.ensure(db)
    await sampler(db)
    (task,) = await queue(db, 1)
    assert (await admission.admit(db, SETTINGS)).groups == 1
    claim = await claim_one(db, OWNER)
    assert claim is not None
    await Sampled(db).run(claim, score=None)
    return await tasks.get(db, task.id), claim.record.id


async def statuses(db: Database, seat: int = 0) -> list[str]:
    found = await db.find("Record", {"seat": seat}, sort=[("attempt", 1)], projection=["status"])
    return [one["status"] for one in found]


async def test_repair_takes_the_seat_from_an_attempt_that_was_opened_meanwhile(db: Database) -> None:
    task, base = await failed(db)
    assert await group_upkeep.open_next_attempts(db) == 1
    assert await fork(db, f"{base}/1", "op-1") == f"{task.id}#r1.s0.a3"
    assert await statuses(db) == ["excluded", "superseded", "open"]
    assert await group_upkeep.open_next_attempts(db) == 0
    assert (await accounting.account(db)).balanced


async def test_attempt_that_is_scored_before_the_repair_keeps_its_seat(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, base = await failed(db)
    assert await group_upkeep.open_next_attempts(db) == 1
    claimed = [await claim_one(db, OWNER) for _ in range(2)]
    (second,) = (claim for claim in claimed if claim is not None and claim.record.seat == 0)
    repair = forks.repair

    async def late(*args: Any) -> str:
        await Sampled(db).run(second, score=1.0)
        return await repair(*args)

    monkeypatch.setattr(forks, "repair", late)
    with pytest.raises(RefusedError, match="went on meanwhile"):
        await fork(db, f"{base}/1", "op-1")
    assert await statuses(db) == ["failed", "scored"]
    after = await tasks.get(db, task.id)
    assert (after.excluded, after.repairs, after.repairing) == ([], [], False)
    (other,) = (claim for claim in claimed if claim is not None and claim.record.seat == 1)
    await Sampled(db).run(other, score=0.0)
    closed = await tasks.get(db, task.id)
    assert (closed.status, closed.members) == ("ready", 2)
    assert (await accounting.account(db)).balanced


async def replayed(db: Database, base: str, verdict: str, *results: str, id: str = "op-0") -> str:
    """A replay of a call in the first turn of a record."""
    call = f"{base}/000.0"
    replay = Replay(id=f"{call}~{id}", operation=id, call=call, record=base, turn=0, status="judged", verdict=verdict)
    replay.task, replay.fault = base.partition("#")[0], "infrastructure"
    replay.runs = [
        ReplayedCall(status=status, error_class="" if status == "ok" else "infrastructure") for status in results
    ]
    await replays.insert(db, [replay])
    return id


@pytest.mark.parametrize(("verdict", "kind"), [("fixed", "repair"), ("flaky", "branch")])
async def test_success_that_was_chosen_among_failures_repairs_nothing(db: Database, verdict: str, kind: str) -> None:
    _, base = await failed(db)
    id = await replayed(db, base, verdict, *(["ok"] if verdict == "fixed" else ["lost", "ok"]))
    done = await ask(db, "fork_records", ForkRecords(replays=(id,)), "op-1")
    assert done.result == {kind: 1, "forked": done.result["forked"]}
    assert (await statuses(db))[0] == ("excluded" if kind == "repair" else "failed")


async def test_second_replay_of_a_seat_that_is_repaired_is_refused(db: Database) -> None:
    _, first = await failed(db)
    assert await group_upkeep.open_next_attempts(db) == 1
    claimed = [await claim_one(db, OWNER) for _ in range(2)]
    (second,) = (claim for claim in claimed if claim is not None and claim.record.seat == 0)
    await Sampled(db).run(second, score=None)
    for base in (first, second.record.id):
        await replayed(db, base, "fixed", "ok")
    args = ForkRecords(replays=("op-0",))
    effect = await ask(db, "fork_records", args, "op-1", dry_run=True)
    assert len(effect.notes) == 1
    assert "takes the same seat" in effect.notes[0]
    for _ in range(2):
        done = await ask(db, "fork_records", args, "op-1")
        assert (done.result["repair"], done.result["refused"]) == (1, 1)
    assert len(await statuses(db)) == 3
    assert (await accounting.account(db)).balanced


async def test_group_is_not_closed_between_the_decision_and_the_fork(db: Database, monkeypatch: Any) -> None:
    """The steward dies after its decision, while the last other seat is scored."""
    task, base = await failed(db)

    async def dies(*_: Any) -> None:
        raise StoreUnavailableError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(forks, "_take_seat", dies)
        with pytest.raises(StoreUnavailableError):
            await fork(db, f"{base}/1", "op-1")
    other = await claim_one(db, OWNER)
    assert other is not None
    await Sampled(db).run(other, score=1.0)
    assert (await group_upkeep.close(db, SETTINGS))["open"] == 1
    assert await forks.finish_repairs(db) == 1
    claim = await claim_one(db, OWNER)
    assert claim is not None
    await Sampled(db).run(claim, score=0.0)
    closed = await tasks.get(db, task.id)
    assert (closed.status, closed.signal, closed.repairing, closed.members) == ("ready", True, False, 2)
    assert (await accounting.account(db)).balanced


@pytest.mark.parametrize("times", [0, 2], ids=["repair", "branch"])
async def test_steward_that_dies_at_any_write_leaves_one_fork(
    db: Database, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    task, base = await failed(db)
    await group_upkeep.open_next_attempts(db)

    async def upkeep() -> None:
        await forks.finish_repairs(db)
        await group_upkeep.open_next_attempts(db)

    id, deaths = await repeated_after_deaths(
        monkeypatch, lambda: fork(db, f"{base}/1", "op-1", times=times), after_death=upkeep
    )
    assert deaths > 0
    if times:
        assert await db.count("Task", {"fork.base": base}) == 1
        assert await statuses(db) == ["failed", "open"]
    else:
        assert await statuses(db) == ["excluded", "superseded", "open"]
        assert id == f"{task.id}#r1.s0.a3"
    record = await db.find_one("Record", {"_id": base})
    assert record is not None
    assert record["forks"] == [id]
    assert (await accounting.account(db)).balanced


async def test_branch_that_became_too_large_holds_up_nothing(db: Database) -> None:
    _, base = await failed(db)
    id = await fork(db, f"{base}/1", "op-1", times=6)
    lowered, wanted = SETTINGS.changed(bound=0, groups=2), ForkRecords(target=f"{base}/1", times=6)
    with pytest.raises(RefusedError, match="A group of 6 forks does not fit beside a batch"):
        await ask(db, "fork_records", wanted, "op-2", settings=lowered, dry_run=True)
    await group_upkeep.open_next_attempts(db)
    for _ in range(2):
        claim = await claim_one(db, OWNER)
        assert claim is not None
        await Sampled(db).run(claim, score=1.0)
    assert (await admission.admit(db, lowered)).groups == 1
    assert (await tasks.get(db, id)).status == "admitted"


async def trained(db: Database) -> Counter[bytes]:
    """How often the output of each model call was trained, over all records that have it."""
    counted: Counter[bytes] = Counter()
    for step in await db.find("Step", {"status": "committed"}):
        for record in step["records"]:
            counted.update(call.output for call in await calls.of_record(db, record) if not call.context)
    return counted


@pytest.mark.parametrize("seed", range(16))
async def test_token_trains_at_most_as_often_as_it_may_in_any_order(db: Database, seed: int) -> None:
    chance = random.Random(seed)
    most = 1 + seed % 2
    await indexes.ensure(db)
    await sampler(db)
    await queue(db, 4)
    sampled, lives, number = Sampled(db), 1, 1
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    did: Counter[str] = Counter()
    for act in range(70):
        await admission.admit(db, SETTINGS)
        await admission.admit_evaluations(db, SETTINGS)
        match chance.choice(("sample", "sample", "sample", "upkeep", "fork", "fork", "exclude", "train", "rollback")):
            case "sample":
                if claim := await claim_one(db, OWNER):
                    await sampled.run(claim, score=chance.choice((None, 0.0, 1.0)), turns=chance.randint(1, 2))
            case "upkeep":
                await group_upkeep.open_next_attempts(db)
                await group_upkeep.close(db, SETTINGS)
                await forks.end_probes(db)
                for task in await db.find("Task", {"status": "trained"}):
                    await tasks.again(db, task["_id"], most=most)
            case "fork":
                names = [load(Record, one) for one in await db.find("Record", {"turns": {"$gt": 0}})]
                if names:
                    base = chance.choice(names)
                    place = f"/{chance.randint(1, base.turns)}"
                    try:
                        id = await fork(db, base.id + place, f"op-{act}", times=chance.choice((0, 0, 0, 1, 2)))
                        did["repair" if "#" in id else "branch"] += 1
                    except AgentrlError:
                        did["refused"] += 1
            case "exclude":
                names = [load(Record, one) for one in await db.find("Record", {"status": "scored"})]
                if names:
                    ids = (chance.choice(names).id,)
                    try:
                        await ask(db, "exclude_records", ExcludeRecords(ids=ids), f"op-{act}")
                    except AgentrlError:
                        did["refused"] += 1
            case "train":
                chosen = [one.task for one in await steps.ready(db, limit=3) if one.records]
                if chosen:
                    await commit(db, lineage.id, number, chosen[:1])
                    number += 1
                    did["train"] += 1
            case "rollback" if act % 5 == 0:
                lives, number = lives + 1, 1
                lineage = await lineages.begin(db, f"trainer-0.{lives}", parent_checkpoint="", after_step=0)
    counted = await trained(db)
    assert max(counted.values(), default=0) <= most, did
    account = await accounting.account(db, max_trained_count=most)
    assert account.balanced, account.problems
    excluded = {record["_id"] for record in await db.find("Record", {"excluded_by": {"$gt": ""}})}
    committed = await db.find("Step", {"status": "committed"})
    assert not excluded & {record for step in committed for record in step["records"]}
