"""Answers of a tool server that break the protocol: each has one outcome, and does not affect other calls and servers.

The sandbox changes nothing about these; they hold without one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.toolbox.api_messages import UnknownToolError
from tests.sandboxes.attacked_run import Run, attacked
from tests.waiting import aeventually

WRITE = "import __main__ as server\n"


@pytest.fixture(params=["process", "none"])
async def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    async with attacked(Run(tmp_path, monkeypatch), kind=request.param, required=request.param != "none") as run:
        yield run


async def echoed(run: Run, text: str) -> str:
    return (await run.hands.call("attack", f"echo {text}", "echo", server="attacked", text=text)).content


async def test_of_two_answers_the_first_counts(lying: Run) -> None:
    code = f"{WRITE}server._answer(server._id(), server._content('first')); found = 'second'"
    assert await lying.attack(code) == "first"
    assert await echoed(lying, "after") == "after"


async def test_answers_to_calls_of_others_and_of_later_reach_nothing(lying: Run) -> None:
    other = asyncio.create_task(
        lying.hands.call("victim", "slow", "note", server="other", path=str(lying.workspace / "notes"), seconds=0.5)
    )
    await aeventually((lying.workspace / "notes").exists)
    code = f"""
{WRITE}
mine = server._id()
for number in range(300):
    for id in (number, str(number)):
        if str(id) != str(mine):
            server._answer(id, server._content('forged'))
            server._fail(id, -32603, 'forged')
found = 'mine'
"""
    assert await lying.attack(code) == "mine"
    assert (await other).content == "noted"
    assert await echoed(lying, "later") == "later"


async def test_tool_that_is_removed_during_an_episode_is_named(lying: Run) -> None:
    code = f"{WRITE}del server.TOOLS['count']; server._write({{'method': 'notifications/tools/list_changed'}})"
    await lying.attack(code)

    await aeventually(lambda: "attacked.count" not in {tool.id for tool in lying.hands.toolbox.tools("attacked")})
    with pytest.raises(UnknownToolError, match="attacked has no tool 'count'"):
        await lying.hands.call("attack", "gone", "count", server="attacked")
    assert await echoed(lying, "goes on") == "goes on"
    assert {"other.count"} <= {tool.id for tool in lying.hands.toolbox.tools("other")}


async def test_server_that_dies_in_the_middle_or_hangs_is_named(lying: Run) -> None:
    late = await lying.hands.call("attack", "hangs", "hang", server="attacked", timeout_s=0.5)
    assert (late.status, late.error_class) == ("timeout", "infrastructure")
    await lying.hands.toolbox.close("attack")
    await lying.hands.open("next", "attacked")
    died = await lying.hands.call("next", "dies", "die", server="attacked", words="no more")
    assert (died.status, died.error_class) == ("lost", "infrastructure")
    assert "it exited with 3" in died.content
    assert "no more" in died.content


async def test_names_and_results_with_terminal_codes_stay_text(lying: Run) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[red]markup[/red]"
    assert await echoed(lying, evil) == evil, "the model gets the unchanged answer of the tool"
    code = f"{WRITE}import sys; print({evil!r}, file=sys.stderr, flush=True); server.os._exit(3)"
    answer = await lying.hands.call("attack", "stderr", "python", server="attacked", code=code)
    assert answer.status == "lost"
