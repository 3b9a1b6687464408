"""A session reserves all its servers or none, keeps its state separate, and gets processes from a pool."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import psutil
import pytest

from agentrl.config.data_plane import ToolServer
from agentrl.protocol.messages import Wait
from agentrl.toolbox import connection_starts, server_pool, service_report, toolbox
from agentrl.toolbox.api_messages import BadRequestError, QuotaError, SessionError, SessionLostError, UnavailableError
from agentrl.toolbox.toolbox import Quotas
from tests.toolbox.conftest import MakeToolbox, faulty
from tests.waiting import PATIENCE_S, aeventually


async def test_a_session_opens_once_and_keeps_its_servers(make: MakeToolbox) -> None:
    async with make({"a": faulty(), "b": faulty()}) as hands:
        opened = await asyncio.gather(*(hands.open("s", "b", "a") for _ in range(4)))
        assert sorted(opened) == [False, False, False, True]
        assert not await hands.open("s", "a", "b")
        with pytest.raises(SessionError, match="is open with"):
            await hands.open("s", "a")
        await hands.toolbox.close("s")
        await hands.toolbox.close("s")
        with pytest.raises(SessionError, match="was closed"):
            await hands.open("s", "a", "b")
        with pytest.raises(BadRequestError):
            await hands.open("", "a")
        assert hands.server("a").sessions == 0


async def test_a_call_needs_its_session_and_a_reserved_server(make: MakeToolbox) -> None:
    async with make({"a": faulty(), "b": faulty()}) as hands:
        await hands.open("s", "a")
        await hands.open("t", "b")
        with pytest.raises(SessionError, match="is not open"):
            await hands.call("never", "c", "echo", server="a", text="x")
        with pytest.raises(SessionError, match="has not reserved b"):
            await hands.call("s", "c", "echo", server="b", text="x")


async def test_keyed_sessions_share_a_process_and_no_state(make: MakeToolbox) -> None:
    async with make() as hands:
        for session in ("one", "two"):
            await hands.open(session)
        seen = [
            (await hands.call(session, f"{session}{number}", "count")).content.split()
            for number in range(2)
            for session in ("one", "two")
        ]
        assert len({pid for pid, *_ in seen}) == 1
        assert [rest for _, *rest in seen] == [["one", "1"], ["two", "1"], ["one", "2"], ["two", "2"]]


async def test_each_process_session_has_its_own_process(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=2)}) as hands:
        pids: list[str] = []
        for batch in range(2):
            sessions = [f"{batch}{name}" for name in "ab"]
            await asyncio.gather(*(hands.open(session) for session in sessions))
            for session in sessions:
                for number in (1, 2):
                    pid, counted = (await hands.call(session, f"{session}{number}", "count")).content.split()
                    assert counted == str(number)
                pids.append(pid)
            await asyncio.gather(*(hands.toolbox.close(session) for session in sessions))
        assert len(set(pids)) == 4
        await aeventually(lambda: hands.server().sessions == 0)


async def test_a_process_without_calls_is_reused(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=1)}) as hands:
        for number in range(5):
            await hands.open(f"s{number}")
            await hands.toolbox.close(f"s{number}")
        assert hands.server().starts == 1


async def test_a_full_pool_waits_and_then_refuses(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=1)}) as hands:
        await hands.open("first")
        with pytest.raises(QuotaError, match="in use"):
            await hands.open("second", wait_s=0.05)
        waiting = asyncio.create_task(hands.open("third"))
        await aeventually(lambda: hands.toolbox.open_sessions == 2)
        await hands.toolbox.close("first")
        assert await waiting
        assert await hands.call("third", "c", "echo", text="x")


async def test_pool_shrinks_without_sessions_and_grows_by_demand(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.policies.warm_pool.WINDOW_S", 0.5)
    monkeypatch.setattr("agentrl.toolbox.server_pool.SIZED_EVERY_S", 0.1)
    async with make({"faulty": faulty(session="process", pool=8)}) as hands:
        await aeventually(lambda: hands.server().starts == 8, what="the whole pool, with which a run begins")
        await aeventually(lambda: hands.server().ready == 4, what="the least without demand")
        for number in range(6):
            await hands.open(f"s{number}")
        assert hands.server().waited <= 2
        assert await hands.call("s5", "c", "echo", text="works")
        assert hands.server().died == 0, "an idle process that was ended is no death"


async def test_pool_with_fewer_processes_than_sessions_is_a_wait(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits() -> list[Wait]:
        return service_report.waits_of("toolbox-0", hands.toolbox.servers())

    async with make({"faulty": faulty(session="process", pool=1), "shared": faulty()}) as hands:
        await hands.open("first")
        assert waits() == [], "all processes are in use, and no session waits"
        with pytest.raises(QuotaError):
            await hands.open("second", wait_s=0.05)
        (refused,) = waits()
        assert (refused.on, refused.who) == ("tool server faulty", "toolbox-0")
        waiting = asyncio.create_task(hands.open("second"))
        await aeventually(lambda: any("1 wait while at most 1 " in wait.what for wait in waits()))
        (wait,) = waits()
        assert wait.age_s > refused.age_s, "a refused session that comes again is the same wait"
        assert "tools.faulty.pool" in wait.what
        await hands.toolbox.close("first")
        assert await waiting
        monkeypatch.setattr(server_pool, "COMES_AGAIN_S", 0.0)
        assert waits() == []


async def test_a_session_may_be_closed_while_it_opens(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=1)}) as hands:
        await hands.open("first")
        waiting = asyncio.create_task(hands.open("second"))
        await aeventually(lambda: hands.toolbox.open_sessions == 2)
        await hands.toolbox.close("second")
        with pytest.raises(SessionError, match="while it was being opened"):
            await waiting
        await hands.toolbox.close("first")
        assert await hands.open("third", wait_s=PATIENCE_S)


async def test_parallel_calls_after_a_death_share_one_new_process(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=2)}) as hands:
        await hands.open("s")
        await aeventually(lambda: hands.server().starts == 2)
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a process that an earlier test has ended
                if "faulty" in " ".join(process.cmdline()):
                    process.kill()
        await aeventually(lambda: hands.server().starts >= 3, what="the idle one is replaced")
        answers = await asyncio.gather(*(hands.call("s", f"c{number}", "count") for number in range(4)))
        assert len({answer.content.split()[0] for answer in answers}) == 1
        assert await hands.open("t", wait_s=PATIENCE_S)


async def test_a_session_reserves_all_servers_or_none(make: MakeToolbox) -> None:
    """Two sessions that reserve the same servers in different orders never wait for each other."""
    pools = {name: faulty(session="process", pool=1) for name in ("a", "b")}
    async with make(pools) as hands:

        async def episode(number: int) -> None:
            await hands.open(f"s{number}", *(("a", "b") if number % 2 else ("b", "a")))
            await hands.toolbox.close(f"s{number}")

        await asyncio.gather(*(episode(number) for number in range(12)))
        await hands.open("holds-b", "b")
        with pytest.raises(QuotaError):
            await hands.open("wants-both", "a", "b", wait_s=0.05)
        assert await hands.open("wants-a", "a", wait_s=PATIENCE_S)


async def test_the_death_of_a_process_ends_only_its_session(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=2, crash_means="policy")}) as hands:
        await hands.open("a")
        await hands.open("b")
        await hands.call("b", "b1", "count")
        died = await hands.call("a", "a1", "die")
        assert (died.status, died.error_class) == ("lost", "policy")
        with pytest.raises(SessionLostError):
            await hands.call("a", "a2", "count")
        assert (await hands.call("b", "b2", "count")).content.endswith("2")
        await hands.toolbox.close("a")
        assert await hands.open("c", wait_s=PATIENCE_S)


async def test_an_idle_session_is_closed(make: MakeToolbox) -> None:
    async with make(quotas=Quotas(idle_s=0.2, sessions=1)) as hands:
        await hands.open("forgotten")
        with pytest.raises(QuotaError, match="1 sessions open"):
            await hands.open("next")
        await aeventually(lambda: hands.toolbox.open_sessions == 0)
        with pytest.raises(SessionError, match="it was idle"):
            await hands.call("forgotten", "c", "echo", text="x")


async def test_a_server_that_does_not_start_leaves_the_others_serving(make: MakeToolbox) -> None:
    servers = {
        "absent": ToolServer(command="/no/such/program", session="keyed"),
        "broken": ToolServer(command=("sh", "-c", "echo cannot load library >&2; exit 7"), session="process"),
        "secret": ToolServer(command="sh", env={"KEY": "env:NOT_SET_ANYWHERE"}),
        "faulty": faulty(),
    }
    async with make(servers) as hands:
        await hands.open("s", "faulty")

        def whys() -> dict[str, str] | None:
            found = {server.id: server.why for server in hands.toolbox.servers() if server.why}
            return found if "it is being started" not in found.values() else None

        found = await aeventually(whys)
        assert "No such file" in found["absent"]
        assert "exited with 7" in found["broken"]
        assert "cannot load library" in found["broken"]
        assert "NOT_SET_ANYWHERE" in found["secret"]
        assert "faulty" not in found
        for name in ("absent", "broken", "secret"):
            with pytest.raises(UnavailableError, match="does not serve"):
                await hands.open("t", name, wait_s=0.0)


async def test_a_draining_or_paused_toolbox_refuses_new_sessions(make: MakeToolbox) -> None:
    async with make() as hands:
        await hands.open("s")
        hands.toolbox.paused = True
        with pytest.raises(UnavailableError, match="paused"):
            await hands.open("t")
        hands.toolbox.paused, hands.toolbox.draining = False, True
        with pytest.raises(UnavailableError, match="about to end"):
            await hands.open("t")
        assert (await hands.call("s", "c", "echo", text="on")).status == "ok"


async def test_a_silent_server_is_reported_and_delays_no_other(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox, "SLOW_START_S", 0.5)
    monkeypatch.setattr(connection_starts, "COMPUTES_S", 0.2)
    silent = ToolServer(command=("sh", "-c", "echo loading >&2; exec sleep 600"), session="process", start_s=5.0)
    async with make({"a-silent": silent, "faulty": faulty()}) as hands:
        await hands.open("s")
        assert service_report.starting(hands.toolbox.servers()) == "a-silent is being started"
        await aeventually(
            lambda: "does not answer (it runs; its last lines: loading" in hands.server("a-silent").problem
        )
        assert service_report.starting(hands.toolbox.servers()) == "a-silent is being started", "it may still answer"
        await aeventually(lambda: service_report.starting(hands.toolbox.servers()) == "")
        assert service_report.problems_of(hands.toolbox.servers())["tool server faulty"] == ""


async def test_the_error_of_a_traceback_comes_first(make: MakeToolbox) -> None:
    program = "import sys\nprint('x' * 400, file=sys.stderr)\nimport no_such_module"
    async with make({"faulty": ToolServer(command=(sys.executable, "-c", program))}) as hands:
        await aeventually(lambda: hands.server().problem)
        assert (
            "it exited with 1: ModuleNotFoundError: No module named 'no_such_module'; its last"
            in hands.server().problem
        )
