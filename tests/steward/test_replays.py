"""Replays over a real database, with a real toolbox and real MCP servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.protocol.data_changes import ReplayCalls
from agentrl.protocol.effects import Effect
from agentrl.store import indexes, replays
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database
from agentrl.store.replay_documents import Replay
from agentrl.toolbox.toolbox import Toolbox
from tests.steward.replaying import House, Start, everything, recorded
from tests.toolbox.conftest import faulty
from tests.waiting import aeventually


async def test_a_call_with_its_recorded_result_is_the_same_and_the_record_is_unchanged(
    house: Start, db: Database
) -> None:
    made = await house()
    (id,) = await recorded(db, ("echo", {"text": "hello"}, "ok", "hello"))
    before = await everything(db)
    replay = await made.one(id, times=3)
    assert (replay.status, replay.verdict, len(replay.runs)) == ("judged", "same", 3)
    assert (replay.who, replay.server_version, replay.then and replay.then.result) == ("ada", "faulty 1", "hello")
    assert replay.duration_s > 0
    assert await everything(db) == before
    await aeventually(lambda: made.toolbox.open_sessions == 0, what="the session is closed")
    assert made.toolbox.statistics.calls == 0


async def test_a_failed_call_that_works_now_is_fixed_and_its_failure_was_the_infrastructures(
    house: Start, db: Database, tmp_path: Path
) -> None:
    made = await house()
    down = tmp_path / "down"
    lost = ("search", {"while_down": str(down)}, "lost", "search failed: the line is down (-32603)")
    (id,) = await recorded(db, lost)
    fixed = await made.one(id)
    assert (fixed.verdict, fixed.fault) == ("fixed", "infrastructure")
    assert (fixed.runs[0].changes[0].path, fixed.runs[0].changes[0].now) == ("status", "ok")
    down.touch()
    again = await made.one(id)
    assert (again.verdict, again.fault) == ("same", "policy")
    assert again.runs[0].changes == []


async def test_a_flaky_call_says_how_often_it_worked(house: Start, db: Database, tmp_path: Path) -> None:
    made = await house(effects={"*": "pure"})
    (id,) = await recorded(db, ("stumble", {"path": str(tmp_path / "seen")}, "lost", "the line is down"))
    replay = await made.one(id, times=4)
    assert (replay.verdict, replay.agreed, len(replay.runs)) == ("flaky", 3, 4)


async def test_earlier_calls_rebuild_the_session_before_every_run(house: Start, db: Database) -> None:
    made = await house(session="process", pool=1)
    ids = await recorded(db, *[("count", {}, "ok", f"1  {number}") for number in (1, 2, 3)])
    replay = await made.one(ids[2], times=2, despite_differences=True)
    counted = [run.result.split()[-1] for run in replay.runs]
    assert counted == ["3", "3"], "each run has its own session with the state of the recorded time"
    assert [one.call for one in replay.rebuilt] == ids[:2]
    await aeventually(lambda: made.toolbox.servers()[0].sessions == 0, what="the sessions are closed")


async def test_the_first_difference_ends_the_rebuilding(house: Start, db: Database) -> None:
    made = await house()
    echo = ("echo", {"text": "two\nlines"}, "ok", "two\nlines")
    ids = await recorded(db, echo, ("echo", {"text": "now"}, "ok", "then"), echo, echo)
    replay = await made.one(ids[3])
    assert (replay.status, replay.verdict, replay.runs) == ("judged", "not reproducible", [])
    assert [one.same for one in replay.rebuilt] == [True, False]
    assert replay.reason == f"{ids[1]} (echo) returned something else: line 1 was then, is now"
    consented = await made.one(ids[3], despite_differences=True)
    assert (consented.verdict, [one.same for one in consented.rebuilt]) == ("same", [True, False, True])


async def test_a_pure_tool_is_not_called_to_rebuild(house: Start, db: Database) -> None:
    made = await house(effects={"echo": "pure"})
    ids = await recorded(db, ("echo", {"text": "x"}, "ok", "another"), ("refuse", {"text": "no"}, "tool_error", "no"))
    replay = await made.one(ids[1])
    assert (replay.verdict, replay.rebuilt) == ("same", [])


OWN = """
from agentrl.toolservers import Session, effect

class Counter(Session):
    count = 0

def count(counter: Counter) -> int:
    '''Count.'''
    counter.count += 1
    return counter.count

@effect("pure")
def double(number: int) -> int:
    '''Twice the number.'''
    return 2 * number

@effect("outside")
def order(what: str) -> str:
    '''Order something.'''
    return f"ordered {what}"
"""


async def test_what_functions_declare_holds_unless_the_run_file_says_otherwise(
    house: Start, db: Database, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    own = ToolServer(functions=str(file), pool=1)
    made = await house(servers={"own": own, "trusting": own.model_copy(update={"effects": {"order": "session"}})})
    counts = [("count", {}, "ok", str(number)) for number in (1, 2)]
    double = ("double", {"number": 4}, "ok", "another result than it would have")
    ids = await recorded(
        db, counts[0], double, counts[1], ("order", {"what": "tea"}, "ok", "ordered tea"), server="own"
    )
    replay = await made.one(ids[2])
    assert (replay.verdict, [one.call for one in replay.rebuilt]) == ("same", [ids[0]]), "a pure call is not run again"
    assert (await made.one(ids[1])).verdict == "different"
    with pytest.raises(RefusedError, match=r"own\.order acts outside"):
        await made.ask("replay_calls", ReplayCalls(calls=(ids[3],)), dry_run=True)
    trusted = await made.one(ids[3], server="trusting")
    assert (trusted.verdict, trusted.effect) == ("same", "session")


async def test_an_edited_argument_is_marked_and_shows_no_fault(house: Start, db: Database) -> None:
    made = await house()
    (id,) = await recorded(db, ("echo", {"text": "x"}, "lost", "the line is down"))
    replay = await made.one(id, edit={"text": "y"})
    assert (replay.edited, replay.arguments, replay.verdict, replay.fault) == (True, {"text": "y"}, "fixed", "")
    effect: Effect = await made.ask("replay_calls", ReplayCalls(calls=(id,), edit={"text": "y"}), dry_run=True)
    assert "can never repair" in effect.sentence()


async def test_a_replay_runs_on_another_server_by_name(house: Start, db: Database) -> None:
    made = await house(servers={"faulty": faulty(), "mended": faulty()})
    (id,) = await recorded(db, ("echo", {"text": "x"}, "ok", "x"))
    replay = await made.one(id, server="mended")
    assert (replay.server, replay.recorded_server, replay.verdict) == ("mended", "faulty", "same")
    with pytest.raises(UnknownNameError, match="no tool server 'other'"):
        await made.ask("replay_calls", ReplayCalls(calls=(id,), server="other"), dry_run=True)


async def test_a_tool_that_is_gone_cannot_run(house: Start, db: Database) -> None:
    made = await house()
    (id,) = await recorded(db, ("former", {}, "ok", "x"))
    replay = await made.one(id)
    assert (replay.status, replay.verdict) == ("judged", "cannot run")
    assert "has no tool 'former'" in replay.reason


@pytest.mark.parametrize(
    ("status", "why"), [("refused", "never ran"), ("running", "has not ended"), ("requested", "has not ended")]
)
async def test_a_call_without_an_end_of_its_own_is_refused(house: Start, db: Database, status: str, why: str) -> None:
    made = await house(steward=False)
    (id,) = await recorded(db, ("echo", {}, status, ""))
    with pytest.raises(RefusedError, match=why):
        await made.ask("replay_calls", ReplayCalls(calls=(id,)), dry_run=True)


async def test_a_preview_says_what_will_run_and_changes_nothing(house: Start, db: Database) -> None:
    made = await house()
    ids = await recorded(db, *[("echo", {"text": "x"}, "ok", "x")] * 3)
    effect: Effect = await made.ask("replay_calls", ReplayCalls(calls=(ids[2],), times=2), dry_run=True)
    said = effect.sentence()
    assert f"echo of {ids[2]} runs again 2 times on faulty (faulty 1), in a session of its own" in said
    assert "2 earlier calls of the record rebuild the session first: echo, echo" in said
    assert "these calls took 1.5 s" in said
    assert await db.count("Replay", {}) == 0


async def test_failed_calls_are_replayed_by_a_filter(house: Start, db: Database, tmp_path: Path) -> None:
    made = await house(effects={"*": "pure"})
    lost = ("search", {"while_down": str(tmp_path / "down")}, "lost", "the line is down")
    ids = await recorded(db, lost, ("echo", {"text": "x"}, "ok", "x"), lost, lost)
    await db.update_many(CALLS, {}, [{"$set": {"called_at": "$$NOW", "failed_at": "$$NOW"}}])
    done = await made.replay(filter="tool=search", most=2)
    assert len(done) == 2
    assert {replay.verdict for replay in done} == {"fixed"}
    assert {replay.call for replay in done} < {*ids} - {ids[1]}


# ---- calls that are lost while a session is rebuilt ----


def dies_while(path: Path, deaths: int) -> dict[str, Any]:
    """Arguments of `python`: its server dies the first times, and leaves a line each time."""
    code = f"import os, pathlib; file = pathlib.Path({str(path)!r}); text = file.read_text() if file.exists() else ''"
    code += f"; file.write_text(text + 'ran ') and len(text.split()) < {deaths} and os._exit(3); found = 'done'"
    return {"code": code}


@pytest.mark.parametrize(("deaths", "verdict"), [(0, "same"), (2, "same"), (3, "cannot run")])
async def test_session_of_which_a_call_is_lost_is_rebuilt_three_times_at_most(
    house: Start, db: Database, tmp_path: Path, deaths: int, verdict: str
) -> None:
    made = await house()
    path = tmp_path / "ran"
    tick, echo = ("tick", {}, "ok", "tick 1"), ("echo", {"text": "x"}, "ok", "x")
    ids = await recorded(db, tick, ("python", dies_while(path, deaths), "ok", "done"), echo)
    replay = await made.one(ids[2], despite_differences=deaths > 0)
    assert (replay.verdict, replay.attempt, len(path.read_text().split())) == (verdict, 1, min(deaths + 1, 3))
    if deaths == 3:
        assert (replay.error_class, replay.fault) == ("infrastructure", "")
        assert replay.reason.startswith(f"3 sessions could not be rebuilt: {ids[1]} (python) was lost:")
    else:
        assert [one.same for one in replay.rebuilt] == [True, True], "each session begins with the first tick"
    await aeventually(lambda: made.toolbox.open_sessions == 0, what="the sessions are closed")


async def test_call_with_effects_outside_is_not_repeated_for_a_session_that_is_lost(
    house: Start, db: Database, tmp_path: Path
) -> None:
    made = await house(effects={"note": "outside"})
    path = tmp_path / "notes"
    note, echo = ("note", {"path": str(path)}, "ok", "noted"), ("echo", {"text": "x"}, "ok", "x")
    ids = await recorded(db, note, ("python", dies_while(tmp_path / "ran", 1), "ok", "done"), echo)
    replay = await made.one(ids[2], allow=("faulty.note",))
    assert (replay.status, replay.attempt, path.read_text().splitlines()) == ("failed", 1, ["begun", "ended"])
    assert "faulty.note may have run and is not run again" in replay.reason


async def test_call_that_was_recorded_as_lost_is_compared(house: Start, db: Database, tmp_path: Path) -> None:
    made = await house()
    path = tmp_path / "ran"
    ids = await recorded(
        db, ("python", dies_while(path, 0), "lost", "its server died"), ("echo", {"text": "x"}, "ok", "x")
    )
    replay = await made.one(ids[1])
    assert (replay.verdict, replay.reason.partition(": ")[2]) == ("not reproducible", "status was lost, is ok")
    assert path.read_text().split() == ["ran"]


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_session_is_rebuilt_in_the_next_toolbox(db: Database, tmp_path: Path, end: str) -> None:
    await indexes.ensure(db)
    made = House(db, tmp_path, {"faulty": faulty()})
    path, until = tmp_path / "notes", tmp_path / "go on"
    ids = await recorded(
        db, ("note", {"path": str(path), "until": str(until)}, "ok", "noted"), ("tick", {}, "ok", "tick 1")
    )
    async with made.steward_up():
        async with made.toolbox_up(killed=end == "killed"):
            await made.ask("replay_calls", ReplayCalls(calls=(ids[1],)), id="op-1")
            await aeventually(path.exists, what="a call that rebuilds the session")
        made.toolbox = Toolbox(made.servers, run_dir=tmp_path, name="toolbox-0.1")
        until.touch()
        async with made.toolbox_up():

            async def over() -> Replay | None:
                (found,) = await replays.of_operation(db, "op-1")
                return found if found.status not in replays.OPEN else None

            replay = await aeventually(over, what="its end")
    assert (replay.verdict, replay.attempt, replay.reason) == ("same", 1, "")
