"""A call that failed is made once more in a fresh session of a real server, and blamed by what happens there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.toolbox.breaker import BreakerRule
from tests.toolbox.conftest import Hands, MakeToolbox, unruly
from tests.waiting import aeventually

AGAIN = "It failed alike in a fresh session."


@contextlib.asynccontextmanager
async def others_use(hands: Hands, tool: str, **arguments: Any) -> AsyncIterator[None]:
    """Calls of another session, one after the other, for as long as the body runs."""
    await hands.open("others")

    async def use() -> None:
        for number in itertools.count():
            await hands.call("others", f"others.{number}", tool, **arguments)

    using = asyncio.create_task(use())
    try:
        yield
    finally:
        using.cancel()
        await asyncio.wait([using])


@pytest.mark.parametrize("session", ["process", "keyed"])
async def test_what_fails_alike_while_it_works_for_others_is_the_policys_fault(
    make: MakeToolbox, tmp_path: Path, session: str
) -> None:
    down = tmp_path / "down"
    down.touch()
    async with make({"unruly": unruly(session=session)}, breaker=BreakerRule(least=1)) as hands:
        await hands.open("s")
        async with others_use(hands, "search", while_down=str(tmp_path / "nothing")):
            answer = await hands.call("s", "c", "search", while_down=str(down))
        assert (answer.status, answer.reason, answer.error_class) == ("lost", "server", "policy")
        assert answer.content.endswith(AGAIN)
        assert not answer.breaker_open
        assert hands.server().breaker == "closed", "a single failure of the server would have opened it"
        assert await hands.call("s", "c", "search", while_down=str(down)) == answer, "asked again, it is answered"


async def test_a_timeout_that_repeats_itself_is_told_to_the_model(make: MakeToolbox, tmp_path: Path) -> None:
    async with make({"unruly": unruly(timeout_s=1.0)}) as hands:
        await hands.open("s")
        async with others_use(hands, "note", path="/dev/null"):
            answer = await hands.call("s", "c", "note", path=str(tmp_path / "notes"), seconds=60.0)
        assert (answer.status, answer.error_class) == ("timeout", "policy")
        assert (tmp_path / "notes").read_text().splitlines().count("begun") == 2


async def test_what_goes_well_the_second_time_was_the_infrastructures_fault(make: MakeToolbox, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with make() as hands:
        await hands.open("s")
        (tmp_path / "other").touch()
        async with others_use(hands, "stumble", path=str(tmp_path / "other")):
            answer = await hands.call("s", "c", "stumble", path=str(path))
        assert (answer.status, answer.error_class) == ("lost", "infrastructure")
        assert AGAIN not in answer.content
        assert path.read_text().splitlines() == ["s", "s~fresh"], "in a session of its own"
        (told,) = hands.toolbox.statistics.all()
        assert [sample.call for sample in told.samples] == ["c"], "the second call is in no statistics"


async def test_in_an_outage_nothing_is_proven_against_anybody(make: MakeToolbox, tmp_path: Path) -> None:
    down = tmp_path / "down"
    down.touch()
    async with make(breaker=BreakerRule(least=1000)) as hands:
        await hands.open("s")
        async with others_use(hands, "search", while_down=str(down)):
            answers = [await hands.call("s", f"c{number}", "search", while_down=str(down)) for number in range(3)]
        assert {answer.error_class for answer in answers} == {"infrastructure"}


async def test_without_others_nothing_is_proven_either(make: MakeToolbox, tmp_path: Path) -> None:
    async with make() as hands:
        await hands.open("s")
        assert (await hands.call("s", "a", "search", while_down=str(tmp_path / "nothing"))).status == "ok"
        (tmp_path / "down").touch()
        answer = await hands.call("s", "b", "search", while_down=str(tmp_path / "down"))
        assert answer.error_class == "infrastructure", "it may have gone down since"


async def test_a_tool_with_lasting_effects_is_not_tried_again(make: MakeToolbox, tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with make({"unruly": unruly(try_again=False)}) as hands:
        await hands.open("s")
        answer = await hands.call("s", "c", "stumble", path=str(path))
        assert (answer.status, answer.error_class) == ("lost", "infrastructure")
        assert path.read_text().splitlines() == ["s"]


async def test_a_session_that_is_closed_meanwhile_ends_the_second_call_too(make: MakeToolbox, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with make({"unruly": unruly(timeout_s=2.0)}) as hands:
        await hands.open("s")
        call = asyncio.create_task(hands.call("s", "c", "note", path=str(notes), seconds=60.0))
        await aeventually(lambda: notes.exists() and notes.read_text().count("begun") == 2, what="it runs again")
        await hands.toolbox.close("s")
        assert (await call).status == "cancelled"
