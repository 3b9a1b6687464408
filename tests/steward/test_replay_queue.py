"""Replays are queued once, wait, are stopped and continued, and outlive their steward."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import RefusedError, UsageError
from agentrl.policies.status_tables import ReplayStatus
from agentrl.protocol.data_changes import (
    ContinueReplays,
    Done,
    ReplayCalls,
    StopReplays,
)
from agentrl.protocol.effects import Effect
from agentrl.queries.fork_changes import ForkChanges
from agentrl.queries.replay_changes import ReplayChanges
from agentrl.steward.replays import ReplayRunner, _Execution
from agentrl.steward.settings import StewardSettings
from agentrl.store import accounting, owners, replays
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.documents import load
from agentrl.store.replay_documents import Replay
from tests.steward.replaying import Start, recorded
from tests.toolbox.conftest import TOKEN
from tests.waiting import aeventually

# ---- effects outside of the session ----


async def test_a_tool_with_effects_outside_needs_consent_by_name(house: Start, db: Database, tmp_path: Path) -> None:
    made = await house(effects={"note": "outside"})
    path = tmp_path / "notes"
    ids = await recorded(db, ("note", {"path": str(path)}, "ok", "noted"), ("echo", {"text": "x"}, "ok", "x"))
    for id in ids:
        with pytest.raises(RefusedError, match=r"faulty\.note acts outside") as refused:
            await made.ask("replay_calls", ReplayCalls(calls=(id,)), dry_run=True)
        assert "--allow faulty.note" in refused.value.hint
    allowed = ReplayCalls(calls=(ids[1],), times=2, allow=("faulty.note",))
    effect: Effect = await made.ask("replay_calls", allowed, dry_run=True)
    assert effect.loses == ("faulty.note acts outside of its session, and is called 2 times",)
    replay = await made.one(ids[1], allow=("faulty.note",))
    assert (replay.verdict, replay.sent) == ("same", ["faulty.note"])
    assert path.read_text().splitlines() == ["begun", "ended"]


async def under_way(db: Database, path: Path) -> Replay:
    """The only replay, while its call runs."""
    await aeventually(path.exists, what="the call")
    found = await db.find_one("Replay", {"status": "replaying"})
    assert found is not None
    return load(Replay, found)


@pytest.mark.parametrize(("effect", "ends"), [("outside", "failed"), ("session", "judged")])
async def test_a_replay_of_a_killed_steward_ends_once_and_never_runs_twice_outside(
    house: Start, db: Database, tmp_path: Path, effect: str, ends: str
) -> None:
    made = await house(effects={"note": effect}, steward=False)
    path, until = tmp_path / "notes", tmp_path / "go on"
    (id,) = await recorded(db, ("note", {"path": str(path), "until": str(until)}, "ok", "noted"))
    await made.ask("replay_calls", ReplayCalls(calls=(id,), allow=("faulty.note",)), id="op-1")
    await owners.Lease(db, "steward-0.1", unit="steward-0", role="steward").open()
    killed = await replays.claim(db, "steward-0.1")
    assert killed is not None
    # Run the work of a steward until it is killed, without its clean-up.
    runner = ReplayRunner(db, made.servers, owner="steward-0.1", token=TOKEN)
    first = asyncio.create_task(_Execution(runner, killed, db).run())
    await under_way(db, path)
    await owners.expire(db, "steward-0.1", "killed")
    async with made.steward_up("steward-0.2"):

        async def over() -> Replay | None:
            (found,) = await replays.of_operation(db, "op-1")
            if found.attempt == 2:
                until.touch()
            return found if found.status == ends else None

        replay = await aeventually(over, what="its end")
    with contextlib.suppress(Exception):
        await first
    begun = path.read_text().splitlines().count("begun")
    if effect == "outside":
        assert (begun, replay.verdict) == (1, "")
        assert "faulty.note may have run and is not run again" in replay.reason
    else:
        assert (begun, replay.attempt, replay.verdict) == (2, 2, "same")
    found = await replays.of_operation(db, "op-1")
    assert [one.status for one in found] == [ends]
    assert found[0].runs == replay.runs, "the steward that was declared dead wrote nothing"
    assert not any(run.result for run in found[0].runs), "the progress of an operation is read without results"


async def test_session_of_a_later_run_is_released_when_its_steward_dies(
    house: Start, db: Database, tmp_path: Path
) -> None:
    made = await house(effects={"note": "session"}, steward=False, session="process", pool=1)
    path, until = tmp_path / "notes", tmp_path / "go on"
    (id,) = await recorded(db, ("note", {"path": str(path), "until": str(until)}, "ok", "noted"))
    until.touch()
    await made.ask("replay_calls", ReplayCalls(calls=(id,), times=3), id="op-1")
    await owners.Lease(db, "steward-0.1", unit="steward-0", role="steward").open()
    killed = await replays.claim(db, "steward-0.1")
    assert killed is not None
    runner = ReplayRunner(db, made.servers, owner="steward-0.1", token=TOKEN)
    execution = _Execution(runner, killed, db)
    plan = await runner.planner.plan(id)
    for _ in range(2):
        await execution._open(plan)
    await db.update_one("Replay", {}, {"$push": {"sent": "faulty.note"}})  # so no attempt comes after it
    await owners.expire(db, "steward-0.1", "killed")
    async with made.steward_up("steward-0.2"):
        await aeventually(lambda: made.toolbox.open_sessions == 0, what="the session to be closed")
        assert (await replays.of_operation(db, "op-1"))[0].status == "failed"


async def test_steward_ends_although_the_store_is_away_while_it_puts_replays_back(
    house: Start, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.steward.replays.PUT_BACK_WITHIN_S", 0.3)
    monkeypatch.setattr("agentrl.steward.replays.STOPPED_WITHIN_S", 0.1)
    made = await house(steward=False)
    path, until = tmp_path / "notes", tmp_path / "go on"
    (id,) = await recorded(db, ("note", {"path": str(path), "until": str(until)}, "ok", "noted"))
    await made.ask("replay_calls", ReplayCalls(calls=(id,)), id="op-1")

    async def away(*_: object) -> str:
        raise StoreUnavailableError("MongoDB did not answer.")

    async with made.steward_up() as steward:
        await under_way(db, path)
        monkeypatch.setattr(replays, "put_back", away)
        assert made.runner is not None
        made.runner.stop()
        await asyncio.wait_for(asyncio.wait([steward]), 20.0)
    assert (await replays.of_operation(db, "op-1"))[0].status == "replaying", "the next steward frees it"
    until.touch()


async def test_replays_of_slow_calls_take_turns_at_one_process(
    house: Start, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.steward.replays.PATIENCE_S", 0.5)
    monkeypatch.setattr("agentrl.steward.replays.RESERVED_WITHIN_S", 0.2)
    made = await house(session="process", pool=1)
    slow = {"path": str(tmp_path / "notes"), "seconds": 1.0}
    ids = await recorded(db, *[("note", slow, "ok", "noted")] * 3)
    # The sessions of the later ones are rebuilt by the earlier calls, so the last one waits longest.
    assert [one.verdict for one in await made.replay(*ids)] == ["same"] * 3


async def test_a_claim_whose_answer_was_lost_is_put_back_by_its_own_steward(house: Start, db: Database) -> None:
    made = await house(steward=False)
    (id,) = await recorded(db, ("echo", {"text": "x"}, "ok", "x"))
    await made.ask("replay_calls", ReplayCalls(calls=(id,)), id="op-1")
    assert await replays.claim(db, "steward-0.1") is not None
    async with made.steward_up("steward-0.1"):

        async def over() -> Replay | None:
            (found,) = await replays.of_operation(db, "op-1")
            return found if found.status == ReplayStatus.JUDGED else None

        replay = await aeventually(over, what="its end")
    assert (replay.attempt, replay.verdict) == (2, "same")


# ---- stop and continue ----


async def test_stopped_replays_wait_until_they_are_continued(house: Start, db: Database) -> None:
    made = await house(steward=False)
    ids = await recorded(db, *[("echo", {"text": "x"}, "ok", "x")] * 3)
    wanted = ReplayCalls(calls=tuple(ids))
    done: Done = await made.ask("replay_calls", wanted, id="op-12345678")
    assert done.under_way == "0 of 3 replays ended"
    stopped: Done = await made.ask("stop_replays", StopReplays(ids=("op-123",)))
    assert stopped.result == {"stopped": 3}
    done = await made.ask("replay_calls", wanted, id="op-12345678")
    assert (done.under_way, done.result) == ("", {"stopped": 3})
    assert "agentrl replays continue op-12345678" in done.lines[-1]
    async with made.steward_up():
        assert await replays.claim(db, "steward-0.1") is None
        again = ContinueReplays(ids=("op-123",))

        async def over() -> Done | None:
            answer: Done = await made.ask("continue_replays", again, id="op-next")
            return None if answer.under_way else answer

        done = await aeventually(over, what="the end of the replays")
    assert done.result == {"same": 3}


async def test_name_that_fits_several_operations_chooses_none(house: Start, db: Database) -> None:
    made = await house(steward=False)
    (id,) = await recorded(db, ("echo", {"text": "x"}, "ok", "x"))
    for operation in ("op-1a", "op-1b"):
        await made.ask("replay_calls", ReplayCalls(calls=(id,)), id=operation)
    with pytest.raises(UsageError, match="op-1 is the beginning of 2 operations"):
        await made.ask("stop_replays", StopReplays(("op-1",)))
    assert StopReplays(("",)).problem() == ContinueReplays(()).problem() != ""
    assert "at most 1000 calls, and 1001 are named" in ReplayCalls(calls=(id,) * 1001).problem()
    assert not [one for one in await replays.chosen(db, ["op-1a", "op-1b"]) if one.stopped]
    await made.ask("stop_replays", StopReplays(("op-1a",)))
    assert [one.stopped for one in await replays.chosen(db, ["op-1a", "op-1b"])] == [True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "judged"},
        {"verdict": "same"},
        {"sent": ["faulty.order"]},
        {"owner": "steward-0.1"},
        {"status": "preparing"},
        {"status": "lent"},
    ],
)
async def test_account_names_a_replay_whose_fields_contradict_its_status(
    house: Start, db: Database, wrong: dict[str, Any]
) -> None:
    made = await house(steward=False)
    (id,) = await recorded(db, ("echo", {"text": "x"}, "ok", "x"))
    await made.ask("replay_calls", ReplayCalls(calls=(id,)), id="op-1")

    async def problems() -> list[str]:
        return [one.what for one in (await accounting.account(db)).problems if "replay" in one.what.lower()]

    assert not await problems()
    await db.update_one("Replay", {}, {"$set": wrong})
    assert await problems()


async def test_a_replay_is_queued_once_however_often_the_operation_is_sent(house: Start, db: Database) -> None:
    made = await house(steward=False)
    (id,) = await recorded(db, ("echo", {"text": "x"}, "ok", "x"))
    for _ in range(3):
        await made.ask("replay_calls", ReplayCalls(calls=(id,)), id="op-1")
    assert await db.count("Replay", {}) == 1
    assert await db.count("Replay", {"status": ReplayStatus.QUEUED, "who": "ada"}) == 1


async def test_an_interrupted_operation_queues_the_rest_of_its_replays(house: Start, db: Database) -> None:
    made = await house(steward=False)
    ids = await recorded(db, *[("echo", {"text": "x"}, "ok", "x")] * 3)
    wanted = ReplayCalls(calls=tuple(ids))
    await made.ask("replay_calls", wanted, id="op-1")
    await db.delete_many("Replay", {"place": 0})
    done: Done = await made.ask("replay_calls", wanted, id="op-1")
    assert done.under_way == "0 of 3 replays ended"


async def test_operations_whose_ids_begin_alike_have_replays_of_their_own(house: Start, db: Database) -> None:
    made = await house(steward=False)
    (id,) = await recorded(db, ("echo", {"text": "x"}, "ok", "x"))
    for operation in ("nightly-1", "nightly-2"):
        await made.ask("replay_calls", ReplayCalls(calls=(id,)), id=operation)
    assert await db.count("Replay", {}) == 2


async def test_plans_of_many_replays_hold_no_results_of_earlier_calls(house: Start, db: Database) -> None:
    made = await house(steward=False)
    ids = await recorded(db, *[("echo", {"text": "x"}, "ok", "x" * 1000)] * 3)
    runner = ReplayRunner(db, made.servers, owner="steward-0.1", token=TOKEN)
    forks = ForkChanges(db, lambda: StewardSettings(environments={}), runner)
    planned = await ReplayChanges(db, runner, forks)._plan(ReplayCalls(calls=tuple(ids)))
    assert [len(plan.rebuild) for plan in planned.plans] == [0, 1, 2]
    assert {one.call.result for plan in planned.plans for one in plan.rebuild} == {""}
