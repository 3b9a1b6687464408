"""A failed call is repeated once in a fresh session of a real server, and the result of that decides the
classification.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config.data_plane import ToolServer
from agentrl.policies.outcomes import AROUND_A_TOOL_CALL_S
from agentrl.toolbox import fresh_session_retry, mcp_connection, sessions
from agentrl.toolbox.api_messages import CallAnswer, ToolInfo
from agentrl.toolbox.call_registry import Call
from agentrl.toolbox.circuit_breaker import BreakerRule
from agentrl.toolbox.fresh_session_retry import FreshSessionRetry
from agentrl.toolbox.toolbox import STARTS_AT_ONCE
from tests.toolbox.conftest import Hands, MakeToolbox, faulty
from tests.waiting import PATIENCE_S, aeventually

AGAIN = "It failed alike in a fresh session."


def twice(**settings: Any) -> ToolServer:
    return faulty(**{"try_again": True, **settings})


@contextlib.asynccontextmanager
async def others_use(hands: Hands, tool: str, **arguments: Any) -> AsyncIterator[None]:
    """During the body, another session makes calls one after the other, and one more call in parallel to every second
    of them. So even on a busy machine one call begins and ends during the body.
    """
    await hands.open("others")
    used = 0

    async def use() -> None:
        nonlocal used
        for number in itertools.count():
            await hands.call("others", f"others.{number}", tool, **arguments)
            used += 1

    retry = hands.toolbox._servers["faulty"].retry
    alone = retry._fresh

    async def beside_others(call: Call, wanted: ToolInfo, timeout_s: float) -> CallAnswer | None:
        before = used
        answer = await alone(call, wanted, timeout_s)
        if call.session != "others":
            await aeventually(lambda: used >= before + 2, what="calls of others")
        return answer

    retry._fresh = beside_others  # type: ignore[method-assign]
    using = asyncio.create_task(use())
    try:
        yield
    finally:
        using.cancel()
        await asyncio.wait([using])


@pytest.mark.parametrize("session", ["process", "keyed"])
async def test_equal_failures_of_a_working_tool_are_the_policys_fault(
    make: MakeToolbox, tmp_path: Path, session: str
) -> None:
    down = tmp_path / "down"
    down.touch()
    async with make({"faulty": twice(session=session)}, breaker=BreakerRule(least=1)) as hands:
        await hands.open("s")
        async with others_use(hands, "search", while_down=str(tmp_path / "nothing")):
            answer = await hands.call("s", "c", "search", while_down=str(down))
        assert (answer.status, answer.reason, answer.error_class) == ("lost", "server", "policy")
        assert answer.content.endswith(AGAIN)
        assert not answer.breaker_open
        assert answer.tried_again == "lost"
        assert hands.server().breaker == "closed", "a single failure of the server would have opened it"
        assert await hands.call("s", "c", "search", while_down=str(down)) == answer, (
            "the repeated request gets the kept answer"
        )


async def test_a_repeated_timeout_is_the_policys_fault(make: MakeToolbox, tmp_path: Path) -> None:
    async with make({"faulty": twice(timeout_s=4.0)}) as hands:
        await hands.open("s")
        async with others_use(hands, "note", path="/dev/null"):
            answer = await hands.call("s", "c", "note", path=str(tmp_path / "notes"), seconds=60.0)
        assert (answer.status, answer.error_class) == ("timeout", "policy")
        assert (tmp_path / "notes").read_text().splitlines().count("begun") == 2


async def test_a_good_second_call_blames_the_infrastructure(make: MakeToolbox, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with make({"faulty": twice()}) as hands:
        await hands.open("s")
        (tmp_path / "other").touch()
        async with others_use(hands, "stumble", path=str(tmp_path / "other")):
            answer = await hands.call("s", "c", "stumble", path=str(path))
        assert (answer.status, answer.error_class) == ("lost", "infrastructure")
        assert AGAIN not in answer.content
        assert answer.tried_again == "ok"
        assert path.read_text().splitlines() == ["s", "s~fresh"], "in a session of its own"
        (seen,) = hands.toolbox.statistics.all()
        assert [sample.call for sample in seen.samples] == ["c"], "the second call is in no statistics"


async def test_an_outage_blames_no_call(make: MakeToolbox, tmp_path: Path) -> None:
    down = tmp_path / "down"
    down.mkdir()
    async with make({"faulty": twice()}, breaker=BreakerRule(least=1000)) as hands:
        await hands.open("s")
        async with others_use(hands, "search", while_down=f"{down}/."):
            answers = [await hands.call("s", f"c{number}", "search", while_down=str(down)) for number in range(3)]
        assert {answer.error_class for answer in answers} == {"infrastructure"}
        assert "no: fails for others" in {answer.tried_again for answer in answers}, (
            "the answer says why it was not repeated"
        )


async def test_without_other_calls_no_call_is_blamed(make: MakeToolbox, tmp_path: Path) -> None:
    async with make({"faulty": twice()}) as hands:
        await hands.open("s")
        assert (await hands.call("s", "a", "search", while_down=str(tmp_path / "nothing"))).status == "ok"
        (tmp_path / "down").touch()
        answer = await hands.call("s", "b", "search", while_down=str(tmp_path / "down"))
        assert answer.error_class == "infrastructure", "the server may be down since the last success"


async def test_a_tool_without_try_again_is_never_repeated(make: MakeToolbox, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with make() as hands:
        await hands.open("s")
        answer = await hands.call("s", "c", "stumble", path=str(path))
        assert (answer.status, answer.error_class, answer.tried_again) == ("lost", "infrastructure", "")
        assert path.read_text().splitlines() == ["s"]


async def test_closing_the_session_ends_the_second_call(make: MakeToolbox, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with make({"faulty": twice()}) as hands:
        await hands.open("s")
        call = asyncio.create_task(hands.call("s", "c", "stumble", path=str(path), then_s=60.0))
        await aeventually(lambda: path.exists() and path.read_text().split() == ["s", "s~fresh"], what="it runs again")
        await hands.toolbox.close("s")
        answer = await call
        assert (answer.status, answer.tried_again) == ("cancelled", "cancelled")


async def test_equal_calls_of_a_group_do_not_count_as_others(make: MakeToolbox, tmp_path: Path) -> None:
    down = tmp_path / "down"
    down.touch()
    async with make({"faulty": twice()}, breaker=BreakerRule(least=1000)) as hands:
        members = [f"s{number}" for number in range(3)]
        for member in members:
            await hands.open(member)
        async with others_use(hands, "search", while_down=str(tmp_path / "nothing")):
            answers = [await hands.call(member, member, "search", while_down=str(down)) for member in members]
        assert [answer.error_class for answer in answers] == ["policy"] * len(members)


@pytest.mark.parametrize(("session", "arguments"), [("s", "nothing"), ("t", "down")], ids=["caller", "arguments"])
async def test_equal_sessions_or_arguments_do_not_count_as_others(tmp_path: Path, session: str, arguments: str) -> None:
    retry = FreshSessionRetry(twice(), lambda: pytest.fail("no session is needed"), asyncio.Semaphore())
    tool, lost = ToolInfo(server="faulty", name="search"), CallAnswer(status="lost", error_class="infrastructure")

    async def fresh(*_: object) -> CallAnswer:
        """While the body runs, the tool works for another session."""
        await retry.judge(Call("b", session, tool.id, {"text": arguments}), tool, CallAnswer(status="ok"), 1.0)
        return lost

    retry._fresh = fresh  # type: ignore[method-assign]
    answer = await retry.judge(Call("a", "s", tool.id, {"text": "down"}), tool, lost, 1.0)
    assert (answer.error_class, answer.tried_again) == ("infrastructure", "lost")


async def test_the_second_call_has_the_time_limit_of_the_caller(make: MakeToolbox, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with make({"faulty": twice(timeout_s=300.0)}) as hands:
        await hands.open("s")
        async with asyncio.timeout(PATIENCE_S):
            answer = await hands.call("s", "c", "stumble", timeout_s=3.0, path=str(path), then_s=300.0)
        assert (answer.status, answer.error_class, answer.tried_again) == ("lost", "infrastructure", "timeout")


async def test_a_slow_fresh_session_is_given_up(
    monkeypatch: pytest.MonkeyPatch, make: MakeToolbox, tmp_path: Path
) -> None:
    monkeypatch.setattr(fresh_session_retry, "OPENED_WITHIN_S", 0.2)
    async with make({"faulty": twice()}) as hands:
        await hands.open("s")
        async with contextlib.AsyncExitStack() as full:
            for _ in range(STARTS_AT_ONCE):
                await full.enter_async_context(hands.toolbox._gate)
            async with asyncio.timeout(PATIENCE_S):
                answer = await hands.call("s", "c", "stumble", path=str(tmp_path / "asked"))
        assert (answer.status, answer.error_class, answer.tried_again) == ("lost", "infrastructure", "no: no session")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (CallAnswer(status="lost", error_class="infrastructure", alone=False), "no: not alone"),
        (CallAnswer(status="tool_error", error_class="infrastructure"), "no: told by the tool"),
        (CallAnswer(status="timeout", error_class="policy"), ""),
        (CallAnswer(status="ok"), ""),
    ],
)
async def test_a_failed_call_without_a_second_one_has_the_reason(answer: CallAnswer, why: str) -> None:
    tool, call = ToolInfo(server="faulty", name="search"), Call("a", "s", "faulty.search", {})
    retry = FreshSessionRetry(twice(), lambda: pytest.fail("no session is needed"), asyncio.Semaphore())
    assert (await retry.judge(call, tool, answer, 1.0)).tried_again == why
    never = FreshSessionRetry(faulty(), lambda: pytest.fail("no session is needed"), asyncio.Semaphore())
    assert (await never.judge(call, tool, answer, 1.0)).tried_again == "", "the tool does not ask for a second call"


async def test_a_short_limit_or_an_open_breaker_prevents_the_second_call(make: MakeToolbox, tmp_path: Path) -> None:
    (tmp_path / "down").touch()
    rule = BreakerRule(least=1, open_s=0.0)
    async with make({"faulty": twice()}, breaker=rule) as hands:
        await hands.open("s")
        note = await hands.call("s", "a", "note", timeout_s=0.5, path="/dev/null", seconds=60.0)
        assert (note.status, note.tried_again) == ("timeout", "no: hurried")
        first = await hands.call("s", "b", "search", while_down=str(tmp_path / "down"))
        assert first.breaker_open
        probe = await hands.call("s", "c", "search", while_down=str(tmp_path / "down"))
        assert (probe.status, probe.tried_again) == ("lost", "no: breaker")


def test_the_callers_time_limit_covers_both_calls() -> None:
    longest_queue_s = 40.0
    with pytest.raises(ValidationError, match="queue_s"):
        faulty(queue_s=longest_queue_s + 1)
    before = longest_queue_s + sessions.RETURN_WITHIN_S
    leaving = 2 * mcp_connection.LEAVE_WITHIN_S
    assert before + fresh_session_retry.OPENED_WITHIN_S + 2 * mcp_connection._LATE_S + leaving < AROUND_A_TOOL_CALL_S
