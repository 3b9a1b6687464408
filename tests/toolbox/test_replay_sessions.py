"""Sessions that replay recorded calls: beside the pool, the statistics and the circuit breaker of the episodes."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from agentrl.toolbox.api_messages import OpenSession, QuotaError, UnavailableError
from agentrl.toolbox.circuit_breaker import BreakerRule
from tests.toolbox.conftest import Hands, MakeToolbox, faulty
from tests.waiting import aeventually

QUICK = BreakerRule(least=2, open_s=60.0)


async def opened(hands: Hands, id: str, *, wait_s: float = 20.0) -> None:
    await hands.toolbox.open(OpenSession(id=id, servers=("faulty",), wait_s=wait_s, replays=True))


async def test_a_replay_takes_no_process_of_a_pool_and_its_own_one_ends_with_it(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="process", pool=1)}) as hands:
        await hands.open("an episode")
        await opened(hands, "a replay")
        first, second = [await hands.call(id, f"{id} 1", "count") for id in ("an episode", "a replay")]
        pids = [int(answer.content.split()[0]) for answer in (first, second)]
        assert pids[0] != pids[1]
        with pytest.raises(QuotaError, match="use all processes beside the pool"):
            await opened(hands, "another replay", wait_s=0.1)
        await hands.toolbox.close("a replay")
        await aeventually(lambda: not psutil.pid_exists(pids[1]), what="the end of its process")
        await opened(hands, "another replay")
        assert (await hands.call("another replay", "2", "count")).content.split()[-1] == "1"
        assert (await hands.call("an episode", "3", "count")).content.split()[-1] == "2"


async def test_a_replay_is_in_no_statistics_and_meets_no_breaker(make: MakeToolbox) -> None:
    async with make({"faulty": faulty(session="keyed", try_again=True)}, breaker=QUICK) as hands:
        await opened(hands, "a replay")
        for number in range(6):
            answer = await hands.call("a replay", f"r{number}", "fail")
            assert (answer.status, answer.tried_again) == ("lost", "")
        assert hands.server().breaker == "closed"
        assert hands.toolbox.statistics.calls == 0
        await hands.open("an episode")
        await asyncio.gather(*(hands.call("an episode", f"e{number}", "excuse") for number in range(6)))
        assert hands.server().breaker == "open"
        with pytest.raises(UnavailableError):
            await hands.call("an episode", "e9", "echo", text="x")
        assert (await hands.call("a replay", "r9", "echo", text="x")).content == "x"
        await opened(hands, "a later replay")


async def test_a_server_reports_its_version(make: MakeToolbox) -> None:
    async with make() as hands:
        await hands.open("s")
        assert hands.server().version == "faulty 1"
