"""What the process of an environment says to its sampler, if it is not what agentrl would say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.adapters.player import OWN_PYTHON, PlayerError
from agentrl.config import tool_sandbox
from agentrl.rollout import environments_elsewhere, scorers
from agentrl.rollout.environments_elsewhere import Ended, FileProgram, activity
from agentrl.rollout.sandboxed_starts import Confined

FILE = """
import asyncio, os, sys
import agentrl as rl
from agentrl.environments import user_code_guard

user_code_guard.BLOCKED_AT_MOST_S = 1.0

async def exits():
    sys.exit(3)

async def cancels_its_own_task():
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task

async def leaves(episode):
    asyncio.create_task(episode.branch("beside").chat("slow"))
    await asyncio.sleep(0)

async def asks_for_much(episode):
    await asyncio.gather(*(episode.call("slow") for _ in range(20)))

@rl.agent
async def agent(episode: rl.Conversation) -> None:
    match episode.query:
        case "cancels":
            await cancels_its_own_task()
        case "leaves":
            await leaves(episode)
        case "much":
            await asks_for_much(episode)
        case "calm":
            await episode.chat()
        case "spins":
            while True: pass
        case "exits":
            os._exit(3)
        case "exits in a task":
            await asyncio.create_task(exits())

rl.Environment("mine", dataset="mine.jsonl", agent=agent)
"""
Play = Callable[..., Any]


@pytest.fixture
def released() -> asyncio.Event:
    """What episodes ask for is given from then on."""
    return asyncio.Event()


@pytest.fixture
async def play(tmp_path: Path, released: asyncio.Event) -> AsyncIterator[Play]:
    """One episode; `said` is what the process says instead of its own messages."""
    (tmp_path / "mine.py").write_text(FILE)
    confined = Confined("mine", tool_sandbox.required("none"), tmp_path, ())
    program = FileProgram(str(tmp_path / "mine.py"), "mine", OWN_PYTHON, confined)

    async def serve(want: dict[str, Any]) -> Any:
        await released.wait()
        return {"text": "", "calls": [], "errors": []}

    async def played(query: str, said: Any = None) -> Ended:
        if said is not None:
            says = f"    async def next(self, **_): return json.loads({json.dumps(said)!r})\n"
            (tmp_path / "mine.py").write_text(FILE + PATCH + says + "activities.Environment.next = Said.next\n")
        async with asyncio.timeout(20):
            return await activity(program, "act", {"query": query, "row": {}, "tools": []}, serve)

    yield played
    await scorers.close_scorers()


PATCH = """
import json
from agentrl.environments import activities

class Said:
"""


async def test_an_agent_that_awaits_what_it_cancelled_fails_and_does_not_wait_for_its_deadline(play: Play) -> None:
    sentence = r"it raised CancelledError although nothing cancelled it \(mine\.py, line 14\)"
    with pytest.raises(PlayerError, match=sentence):
        await play("cancels")


async def test_code_that_holds_up_or_ends_its_process_costs_no_other_episode(
    play: Play, released: asyncio.Event
) -> None:
    calm = asyncio.create_task(play("calm"))
    sentences = {
        "spins": r"it blocks the event loop for more than 1 s \(mine\.py, line \d+\)",
        "exits": r"it called os\._exit\(3\) \(mine\.py, line \d+\)",
        "exits in a task": r"it raised SystemExit \(mine\.py, line \d+\)",
    }
    for kind, sentence in sentences.items():
        with pytest.raises(PlayerError, match=sentence):
            await play(kind)
    released.set()
    assert (await calm).returned is None


async def test_what_an_agent_leaves_behind_is_not_waited_for(play: Play) -> None:
    assert (await play("leaves")).returned is None


async def test_what_an_agent_asks_for_at_the_same_time_is_bounded(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments_elsewhere, "MOST_WANTS", 10)
    with pytest.raises(PlayerError, match="it asks for more than 10 things at the same time"):
        await play("much")


@pytest.mark.parametrize(
    "said",
    [
        5,
        "want",
        [1],
        {},
        {"want": 1},
        {"want": "x", "do": 3, "state": {}},
        {"done": None},
        {"done": 1, "state": 7},
        {"failed": ["x"], "state": {}},
    ],
)
async def test_what_is_no_message_is_one_sentence(play: Play, said: Any) -> None:
    with pytest.raises(PlayerError, match=r"mine\.py: its program says what is no message: "):
        await play("", said)
