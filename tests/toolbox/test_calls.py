"""Calls to real servers run once, within their limit, and failures are classified correctly."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from agentrl.host import procfs
from agentrl.toolbox import bounded_lines, mcp_connection, stdio_transport
from agentrl.toolbox.api_messages import (
    CallConflictError,
    QuotaError,
    SessionError,
    SessionLostError,
    UnavailableError,
    UnknownToolError,
)
from agentrl.toolbox.circuit_breaker import BreakerRule
from agentrl.toolbox.toolbox import Quotas
from tests.toolbox.conftest import Hands, MakeToolbox, faulty
from tests.waiting import aeventually


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_a_call_id_never_runs_twice(make: MakeToolbox, tmp_path: Path) -> None:
    """The call is repeated before, during and after its run, by a caller that stays and by one that leaves."""
    notes, over = tmp_path / "notes", tmp_path / "over"
    async with make() as hands:
        await hands.open("s")
        wanted = {"path": str(notes), "until": str(over)}
        asking = [asyncio.create_task(hands.call("s", "c", "note", **wanted)) for _ in range(5)]
        await aeventually(lambda: lines(notes) == ["begun"])
        asking[0].cancel()
        over.touch()
        answers = await asyncio.gather(*asking[1:])
        again = await hands.call("s", "c", "note", **wanted)
        assert {answer.status for answer in answers} == {"ok"}
        assert again == answers[0]
        assert lines(notes) == ["begun", "ended"]
        with pytest.raises(CallConflictError):
            await hands.call("s", "c", "note", **{**wanted, "path": "another"})
        (statistics,) = hands.toolbox.statistics.all()
        assert statistics.calls == 1


async def test_a_call_continues_without_its_caller_and_keeps_its_answer(make: MakeToolbox, tmp_path: Path) -> None:
    notes, over = tmp_path / "notes", tmp_path / "over"
    async with make() as hands:
        await hands.open("s")
        wanted = {"path": str(notes), "until": str(over)}
        leaving = asyncio.create_task(hands.call("s", "c", "note", **wanted))
        await aeventually(lambda: lines(notes) == ["begun"])
        leaving.cancel()
        await asyncio.wait([leaving])
        over.touch()
        answer = await hands.call("s", "c", "note", **wanted)
        assert (answer.status, lines(notes)) == ("ok", ["begun", "ended"])


async def test_failures_are_classified(make: MakeToolbox) -> None:
    async with make() as hands:
        await hands.open("s")
        seen = {}
        for tool, arguments in (
            ("echo", {"text": "hi"}),
            ("echo", {"wrong": 1}),
            ("refuse", {"text": "no such page"}),
            ("fail", {}),
            ("excuse", {}),
            ("babble", {}),
            ("nonsense", {}),
            ("rubbish", {}),
        ):
            answer = await hands.call("s", f"{tool}{len(seen)}", tool, **arguments)
            seen[f"{tool}{len(seen)}"] = (answer.status, answer.error_class, answer.reason)
            assert answer.content
        assert seen == {
            "echo0": ("ok", "", ""),
            "echo1": ("tool_error", "policy", ""),
            "refuse2": ("tool_error", "policy", ""),
            "fail3": ("lost", "infrastructure", "server"),
            "excuse4": ("tool_error", "infrastructure", ""),
            "babble5": ("ok", "", ""),
            "nonsense6": ("lost", "infrastructure", "server"),
            "rubbish7": ("lost", "infrastructure", "server"),
        }


@pytest.mark.parametrize("means", ["policy", "infrastructure"])
async def test_a_timeout_is_classified_as_the_server_declares(make: MakeToolbox, tmp_path: Path, means: str) -> None:
    notes = tmp_path / "notes"
    async with make({"faulty": faulty(timeout_s=5.0, timeout_means=means)}) as hands:
        await hands.open("s")
        answer = await hands.call("s", "c", "note", path=str(notes), seconds=600.0)
        assert (answer.status, answer.error_class) == ("timeout", means)
        await aeventually(lambda: lines(notes) == ["begun", "cancelled"], what="the server is told")
        hurried = await hands.call("s", "d", "note", path=str(notes), seconds=60.0, timeout_s=0.1)
        assert (hurried.status, hurried.error_class) == ("timeout", "infrastructure")
        assert (await hands.call("s", "e", "echo", text="on")).content == "on"


async def test_a_result_of_fifty_megabytes_keeps_both_ends(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(result_max_chars=2_000, timeout_s=60.0)}) as hands:
        await hands.open("s")
        answer = await hands.call("s", "c", "big", chars=50 << 20)
        assert answer.status == "ok"
        assert (answer.content[0], answer.content[-1], len(answer.content)) == ("<", ">", 2_000)
        assert answer.left_out > 52_000_000


async def test_an_endless_answer_fails_only_its_own_call(make: MakeToolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_lines, "MOST_BYTES", 1 << 20)
    async with make() as hands:
        await hands.open("s")
        beside = asyncio.create_task(hands.call("s", "beside", "echo", text="here"))
        answer = await hands.call("s", "c", "big", chars=5 << 20)
        assert (answer.status, answer.error_class) == ("tool_error", "policy")
        assert "bytes" in answer.content
        assert (await beside).content == "here"


async def test_a_keyed_server_restarts_and_its_sessions_are_lost(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(crash_means="policy")}) as hands:
        await hands.open("used")
        await hands.open("unused")
        first = await hands.call("used", "a", "count")
        died = await hands.call("used", "b", "die", words="out of beans")
        assert (died.status, died.reason, died.error_class) == ("lost", "server", "policy")
        assert "exited with 3" in died.content
        assert "out of beans" in died.content
        with pytest.raises(SessionLostError):
            await hands.call("used", "c", "count")
        later = await hands.call("unused", "d", "count")
        assert later.status == "ok"
        assert later.content.split()[0] != first.content.split()[0]
        assert (hands.server().starts, hands.server().died) == (2, 1)
        assert "exited with 3" in hands.server().last_death


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
async def test_the_end_of_a_process_is_known_before_asyncio_reaps_it(command: str, code: int) -> None:
    """asyncio reaps in a thread, which may get no processor time for a while."""
    with subprocess.Popen(["sh", "-c", command]) as process:  # noqa: ASYNC220
        assert await stdio_transport._death_of(process) == code  # type: ignore[arg-type]
        assert process.returncode is None
    assert process.returncode == code, "the exit code can still be read"


async def test_a_crash_with_several_calls_blames_none_of_them(make: MakeToolbox, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with make({"faulty": faulty(crash_means="policy")}) as hands:
        await hands.open("a")
        await hands.open("b")
        beside = asyncio.create_task(hands.call("a", "a", "note", path=str(notes), seconds=60.0))
        await aeventually(lambda: lines(notes) == ["begun"])
        died = await hands.call("b", "b", "die")
        assert [died.error_class, (await beside).error_class] == ["infrastructure"] * 2


async def test_a_shared_server_restarts_under_the_same_session(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="shared")}) as hands:
        await hands.open("s")
        await hands.call("s", "a", "count")
        assert (await hands.call("s", "b", "die")).status == "lost"
        answer = await hands.call("s", "c", "count")
        assert (answer.status, answer.content.split()[1:]) == ("ok", ["1"])


async def test_a_hung_server_is_restarted_with_a_line_in_the_log(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_connection, "ANSWER_WITHIN_S", 1.5)
    async with make({"faulty": faulty(session="shared")}) as hands:
        await hands.open("s")
        pid = int((await hands.call("s", "a", "count")).content.split()[0])
        assert (await hands.call("s", "b", "hang", timeout_s=1.0)).status == "timeout"
        await aeventually(lambda: not psutil.pid_exists(pid), what="the one that hangs is gone")
        await aeventually(lambda: hands.server().state == "serving" and hands.server().starts == 2)
        assert (await hands.call("s", "c", "echo", text="on")).content == "on"
    told = [record for record in caplog.records if record.name == "toolbox" and record.levelno > logging.DEBUG]
    sentence = "faulty died: it did not answer a check (no answer within 1.5 s)"
    assert [(record.getMessage(), record.exc_info) for record in told] == [(sentence, None)]


async def test_closing_a_session_cancels_its_calls(make: MakeToolbox, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with make() as hands:
        await hands.open("s")
        running = asyncio.create_task(hands.call("s", "c", "note", path=str(notes), seconds=60.0))
        await aeventually(lambda: lines(notes) == ["begun"])
        await hands.toolbox.close("s")
        assert (await running).status == "cancelled"
        await aeventually(lambda: lines(notes) == ["begun", "cancelled"])
        again = await hands.call("s", "c", "note", path=str(notes), seconds=60.0)
        assert again.status == "cancelled"
        with pytest.raises(SessionError, match="was closed"):
            await hands.call("s", "d", "echo", text="late")


async def test_a_call_cancelled_at_once_has_an_answer(make: MakeToolbox) -> None:
    async with make() as hands:
        await hands.open("s")
        running = [asyncio.create_task(hands.call("s", f"c{number}", "echo", text="x")) for number in range(3)]
        await asyncio.sleep(0)
        await hands.toolbox.close("s")
        assert [answer.status for answer in await asyncio.gather(*running)] == ["cancelled"] * 3


class Clock:
    """A real clock that a test can move forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


async def test_the_breaker_opens_refuses_and_closes(make: MakeToolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("agentrl.toolbox.toolbox.time", clock)
    rule = BreakerRule(least=4, open_s=600.0, open_most_s=600.0, probes=2)
    async with make(breaker=rule) as hands:
        await hands.open("s")
        bad = [await hands.call("s", f"bad{number}", "fail") for number in range(4)]
        assert {answer.error_class for answer in bad} == {"infrastructure"}
        # The call that opened the breaker is marked too, because its failure says nothing about its episode.
        assert [answer.breaker_open for answer in bad] == [False, False, False, True]
        with pytest.raises(UnavailableError) as parked:
            await hands.call("s", "c", "echo", text="parked")
        assert 0.0 < parked.value.retry_after_s <= 600.0
        with pytest.raises(UnavailableError):
            await hands.open("another")
        assert (hands.server().breaker, hands.server().usable) == ("open", False)
        clock.ahead_s = 600.0
        assert hands.server().breaker == "half-open"
        # The refused call did not run, so its id is free.
        assert (await hands.call("s", "c", "echo", text="probe")).content == "probe"
        assert (await hands.call("s", "d", "echo", text="probe")).content == "probe"
        assert hands.server().breaker == "closed"


async def test_failures_of_the_policy_never_open_the_breaker(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(timeout_means="infrastructure")}, breaker=BreakerRule(least=4)) as hands:
        await hands.open("s")
        for number in range(6):
            await hands.call("s", f"r{number}", "refuse", text="no")
            await hands.call("s", f"n{number}", "note", path="/dev/null", seconds=60.0, timeout_s=0.05)
        assert hands.server().breaker == "closed"


async def test_quotas_refuse_and_leave_the_id_free(make: MakeToolbox, tmp_path: Path) -> None:
    notes, over = tmp_path / "notes", tmp_path / "over"
    quotas = Quotas(calls_of_session=2, waiting_of_server=1)
    async with make({"faulty": faulty(calls=1, queue_s=20.0)}, quotas=quotas) as hands:
        await hands.open("s")
        await hands.open("t")
        slow = asyncio.create_task(hands.call("s", "slow", "note", path=str(notes), until=str(over)))
        await aeventually(lambda: lines(notes) == ["begun"])
        waiting = asyncio.create_task(hands.call("s", "waits", "echo", text="a"))
        await aeventually(lambda: hands.server().waiting == 1)
        with pytest.raises(QuotaError, match="under way"):
            await hands.call("s", "third", "echo", text="a")
        with pytest.raises(QuotaError, match="wait for faulty"):
            await hands.call("t", "crowd", "echo", text="a")
        over.touch()
        assert (await slow).status == "ok"
        assert (await waiting).status == "ok"


async def test_a_call_waits_as_long_as_its_server_allows(make: MakeToolbox, tmp_path: Path) -> None:
    notes, over = tmp_path / "notes", tmp_path / "over"
    async with make({"faulty": faulty(calls=2, queue_s=0.1)}) as hands:
        await hands.open("s")
        slow = [
            asyncio.create_task(hands.call("s", f"slow{number}", "note", path=str(notes), until=str(over)))
            for number in range(2)
        ]
        await aeventually(lambda: lines(notes) == ["begun", "begun"])
        with pytest.raises(QuotaError, match=r"busy for 0\.1 s with 2 calls at once \(tools\.faulty\.calls\)"):
            await hands.call("s", "waits", "echo", text="a")
        over.touch()
        assert [(await call).status for call in slow] == ["ok", "ok"]


async def test_a_tool_that_is_added_later_can_be_called(make: MakeToolbox) -> None:
    async with make() as hands:
        await hands.open("s")
        assert "added" not in [tool.name for tool in hands.toolbox.tools()]
        await hands.call("s", "a", "change_tools")
        await aeventually(lambda: "added" in [tool.name for tool in hands.toolbox.tools()])
        assert (await hands.call("s", "b", "added")).content == "it is new"


async def test_a_server_that_works_without_answering_is_not_given_up(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_connection, "ANSWER_WITHIN_S", 1.0)
    async with make({"faulty": faulty(timeout_s=0.3, timeout_means="policy")}) as hands:
        await hands.open("s")
        for number, kind in enumerate(("compute", "log")):
            assert (await hands.call("s", f"busy{number}", "block", seconds=4.0, kind=kind)).status == "timeout"
            await aeventually(lambda: _answers(hands, "count"))
        assert hands.server().starts == 1
        assert (await hands.call("s", "idle", "block", seconds=60.0, kind="sleep")).status == "timeout"
        await aeventually(lambda: hands.server().starts == 2)


async def _answers(hands: Hands, tool: str) -> bool:
    return bool((await hands.call("s", f"try-{time.monotonic()}", tool)).status == "ok")


async def test_an_unknown_tool_or_server_is_named(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(block="echo")}) as hands:
        await hands.open("s")
        for tool, text in (("echo", "has no tool 'echo'"), ("nothing", "has no tool 'nothing'")):
            with pytest.raises(UnknownToolError, match=text):
                await hands.call("s", "c", tool)
        with pytest.raises(UnknownToolError, match=r"no tool 'a\.b'"):
            await hands.call("s", "c", "b", server="a")
        with pytest.raises(UnknownToolError, match="known are: faulty"):
            await hands.open("t", "other")
        assert "echo" not in [tool.name for tool in hands.toolbox.tools()]


async def test_a_server_gets_a_mark_and_neither_the_uuid_of_the_run_nor_a_secret(
    make: MakeToolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("AGENTRL_RUN", "u"), ("AGENTRL_INCARNATION", "toolbox-0.1"), ("AGENTRL_TOKEN", "fencing")):
        monkeypatch.setenv(name, value)
    async with make() as hands:
        await hands.open("s")
        seen = json.loads((await hands.call("s", "c", "environment")).content)
        ours = {name: value for name, value in seen.items() if name.startswith("AGENTRL_")}
        assert ours == {"AGENTRL_MARK": procfs.mark_of("u"), "AGENTRL_INCARNATION": "toolbox-0.1"}
        assert len(seen) < len(os.environ) + 5


async def test_no_process_of_a_server_is_left_at_the_end(make: MakeToolbox) -> None:
    """This includes a server that hangs and has a child that holds its pipes."""
    async with make({"faulty": faulty(timeout_s=5.0)}) as hands:
        await hands.open("s")
        server = int((await hands.call("s", "a", "count")).content.split()[0])
        child = int((await hands.call("s", "b", "bear")).content)
        assert psutil.pid_exists(child)
    assert not psutil.pid_exists(server)
    await aeventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
