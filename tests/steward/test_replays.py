"""Replays over a real database, with a real toolbox and real MCP servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.errors import RefusedError, UnknownNameError, UsageError
from agentrl.http.token_server import listening
from agentrl.policies.status_tables import ReplayStatus
from agentrl.protocol.data_commands import ContinueReplays, Done, ReplayCalls, StopReplays
from agentrl.protocol.effects import Effect
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import raw
from agentrl.queries.dispatcher import Dispatcher
from agentrl.queries.fork_changes import ForkChanges
from agentrl.queries.replay_changes import ReplayChanges
from agentrl.steward.replays import ReplayRunner, _Execution
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import accounting, indexes, owners, replays, service_registry
from agentrl.store.call_writer import CALLS, now
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.documents import Service, load
from agentrl.store.replay_documents import Replay
from agentrl.toolbox.api import build_app
from agentrl.toolbox.toolbox import Toolbox
from tests.toolbox.conftest import TOKEN, faulty
from tests.waiting import aeventually

RECORD = "shop/train/0/000000#r1.s0.a1"
Start = Callable[..., Awaitable["House"]]


class House:
    """A toolbox over HTTP, and a steward's replays beside it."""

    def __init__(self, db: Database, run_dir: Path, servers: dict[str, ToolServer]) -> None:
        self.db = db
        self.run_dir = run_dir
        self.servers = servers
        self.toolbox = Toolbox(servers, run_dir=run_dir, name="toolbox-0.1")
        self.runner: ReplayRunner | None = None
        self._asked = 0

    @contextlib.asynccontextmanager
    async def toolbox_up(self, *, killed: bool = False) -> AsyncIterator[None]:
        """`killed`: its connections break before its calls end."""
        toolbox = contextlib.AsyncExitStack()
        async with toolbox:
            if killed:
                await toolbox.enter_async_context(self.toolbox.running())
            url = await toolbox.enter_async_context(listening(build_app(self.toolbox, TOKEN)))
            if not killed:
                await toolbox.enter_async_context(self.toolbox.running())
            me = Service(id="toolbox-0.1", unit="toolbox-0", kind="toolbox", url=url, state="serving")
            me.names = list(self.servers)
            reporting = asyncio.create_task(self._report(me))
            try:
                await aeventually(self._is_serving)
                await self._report_once(me)
                yield
            finally:
                reporting.cancel()
                await asyncio.wait([reporting])

    async def _is_serving(self) -> bool:
        here = await service_registry.alive(self.db, "toolbox")
        return bool(here) and all(server.state == "serving" for server in self.toolbox.servers())

    async def _report(self, me: Service) -> None:
        while True:
            await self._report_once(me)
            await asyncio.sleep(1.0)

    async def _report_once(self, me: Service) -> None:
        me.effects = [(tool.server, tool.name, tool.effect) for tool in self.toolbox.tools() if tool.effect]
        await service_registry.report(self.db, me)

    @contextlib.asynccontextmanager
    async def steward_up(self, owner: str = "steward-0.1") -> AsyncIterator[asyncio.Task[None]]:
        """A steward of which only the replays run."""
        await owners.Lease(self.db, owner, unit="steward-0", role="steward").open()
        self.runner = ReplayRunner(self.db, self.servers, owner=owner, token=TOKEN)
        task = asyncio.create_task(self.runner.run())
        try:
            yield task
        finally:
            self.runner.stop()
            await asyncio.wait([task])

    async def ask(self, name: str, args: Args, *, dry_run: bool = False, id: str = "") -> Any:
        self._asked += 1
        settings = StewardSettings(environments={"shop": EnvironmentSettings()})
        runner = self.runner or ReplayRunner(self.db, self.servers, owner="steward-0.1", token=TOKEN)
        dispatcher = Dispatcher(self.db, lambda: settings, {}, self.run_dir, replays=runner)
        question = AskUnit("1", id or f"{self._asked:08d}-operation", name, raw(args), who="ada", dry_run=dry_run)
        return await dispatcher.answer(question)

    async def replay(self, *calls: str, **args: Any) -> list[Replay]:
        """Replay, wait for the end, and return the documents."""
        id = f"{self._asked:08d}-replay"
        wanted = ReplayCalls(calls=calls, **args)

        async def ended() -> Done | None:
            done: Done = await self.ask("replay_calls", wanted, id=id)
            return None if done.under_way else done

        await aeventually(ended, what="the end of the replay")
        return [await replays.get(self.db, each.id) for each in await replays.of_operation(self.db, id)]

    async def one(self, call: str, **args: Any) -> Replay:
        (replay,) = await self.replay(call, **args)
        return replay


@pytest.fixture
async def house(db: Database, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[House]]]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(*, steward: bool = True, servers: dict[str, ToolServer] | None = None, **of: Any) -> House:
            await indexes.ensure(db)
            made = House(db, tmp_path, servers or {"faulty": faulty(**of)})
            await stack.enter_async_context(made.toolbox_up())
            if steward:
                await stack.enter_async_context(made.steward_up())
            return made

        yield start


async def recorded(db: Database, *calls: tuple[str, dict[str, Any], str, str], server: str = "faulty") -> list[str]:
    """Store a record with one tool call a turn: tool, arguments, status and result. Returns the ids."""
    ids = []
    for turn, (tool, arguments, status, result) in enumerate(calls):
        model_call = f"{RECORD}/{turn:03d}"
        ids.append(f"{model_call}.0")
        error = "" if status == "ok" else "infrastructure"
        call = {"id": ids[-1], "server": server, "tool": tool, "arguments": arguments, "status": status}
        call |= {"result": result, "error_class": error, "latency_s": 0.5, "session": RECORD, "requested_at": now()}
        document = {"_id": model_call, "record": RECORD, "task": RECORD.partition("#")[0], "turn": turn}
        await db.insert_many(CALLS, [document | {"index": turn, "tool_calls": [call]}])
    return ids


async def everything(db: Database) -> list[dict[str, Any]]:
    return await db.find(CALLS, {}, sort=[("_id", 1)])


async def test_a_call_that_works_as_then_is_the_same_and_the_record_stays_as_it_was(house: Start, db: Database) -> None:
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
    assert counted == ["3", "3"], "each run has a session of its own, with the state of that time"
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
    # What a steward did until it was killed, without what it does at its end.
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


async def test_an_operation_whose_replays_were_half_queued_queues_the_rest(house: Start, db: Database) -> None:
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
