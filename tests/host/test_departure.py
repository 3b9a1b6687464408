"""A host that goes away: its agent lets the units finish, and ends in time."""

from __future__ import annotations

import signal
from pathlib import Path

from agentrl.errors import ExitCode
from agentrl.host import condition
from agentrl.host.agent_lock import AgentLock
from agentrl.protocol import messages
from tests.host.harness import SLEEP, Bench, home, python, spawn
from tests.waiting import aeventually

STUBBORN = python(
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
)


async def test_agent_reports_that_it_leaves_and_ends_when_its_units_have_moved(tmp_path: Path) -> None:
    bench = Bench(home(tmp_path))
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        await bench.sent.one(messages.Spawned, "web-0")
        agent.leave(600.0, "evicted")
        agent.leave(1.0, "again")
        (leaving,) = bench.sent.all(messages.HostLeaving)
        assert (leaving.why, 540.0 < leaving.within_s <= 600.0) == ("evicted", True)
        agent.connected()  # to another coordinator
        assert len(bench.sent.all(messages.HostLeaving)) == 2
        agent.receive(messages.SignalUnit("web-0", 1, signal.SIGTERM))
        await bench.sent.one(messages.GroupEmpty, "web-0")
        assert not agent.finished.is_set(), "the coordinator has not read the report yet"
        agent.receive(messages.AgentExit())
        assert agent.finished.is_set()


async def test_agent_without_a_coordinator_ends_its_units_itself_and_in_time(tmp_path: Path) -> None:
    bench = Bench(home(tmp_path))
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *STUBBORN))
        agent.receive(spawn("web-1", *SLEEP))
        await bench.sent.one(messages.Spawned, "web-1")
        log = agent.services.logs.path("web-0", 1)
        await aeventually(lambda: log.read_text() == "up\n", what="a unit that ignores SIGTERM")
        agent.disconnected()
        agent.leave(1.0, "evicted")
        await aeventually(agent.finished.is_set, what="its end")
        ends = {name: each.entry.exit and each.entry.exit.signal for name, each in agent.incarnations.items()}
        assert ends == {"web-0.1": signal.SIGKILL, "web-1.1": signal.SIGTERM}


async def test_empty_agent_that_has_not_joined_ends_at_once(tmp_path: Path) -> None:
    async with Bench(home(tmp_path)).tidy_agent() as agent:
        agent.disconnected()
        agent.leave(600.0, "evicted")
        assert agent.finished.is_set()


async def test_agent_whose_key_is_refused_ends_once_its_units_have_ended(tmp_path: Path) -> None:
    bench = Bench(home(tmp_path))
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        await bench.sent.one(messages.Spawned, "web-0")
        agent.disconnected()
        agent.not_admitted("Another coordinator answers.")
        agent.not_admitted("The key was revoked.", final=True)
        assert not agent.finished.is_set(), "its unit lives"
        agent.receive(messages.SignalUnit("web-0", 1, signal.SIGTERM))
        await aeventually(agent.finished.is_set, what="its end")
        assert agent.exit_code == ExitCode.KEY_REFUSED


async def test_probes_say_what_is_wrong(tmp_path: Path) -> None:
    bench = Bench(home(tmp_path))
    state_dir = bench.home.state_dir
    assert condition.why_not_live(state_dir, "h1") == "No host agent of h1 lives here."
    lock = AgentLock(state_dir / "hosts" / "h1", bench.home.run, "h1")
    assert not condition.why_not_live(state_dir, "h1"), "it has just started"
    assert "has not joined the run: no coordinator answers." in condition.why_not_ready(state_dir, "h1")
    try:
        async with bench.tidy_agent() as agent:
            assert condition.why_not_ready(state_dir, "h1") == ""
            agent.disconnected()
            agent.not_admitted("The key was revoked.")
            assert condition.why_not_ready(state_dir, "h1") == "Host h1 has not joined the run: The key was revoked."
            agent.connected()
            agent.receive(messages.Welcome(epoch="e", run=bench.home.run, run_name="test", now_ct=0.0, heartbeat_s=0.1))
            assert condition.why_not_ready(state_dir, "h1") == ""
            agent.leave(600.0, "evicted")
            assert condition.why_not_ready(state_dir, "h1") == "Host h1 leaves: evicted."
            assert not condition.why_not_live(state_dir, "h1")
        found = condition._read(state_dir, "h1")
        file = condition.ConditionFile(state_dir / "hosts" / "h1")
        file._path.write_text(f'{{"at": {found.at - 90}, "joined": true}}')
        assert "stands still since 9" in condition.why_not_live(state_dir, "h1")
    finally:
        lock.release()
