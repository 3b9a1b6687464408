"""The process of an environment of another package: a fault in it disturbs nothing outside of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.adapters.made_tasks import made
from agentrl.adapters.player import Player, PlayerError
from agentrl.adapters.player_process import PlayerProcess
from agentrl.adapters.sources import Source, source_of

ROOT = Path(__file__).parents[2]
COUNTING = Player(source=Source("gymnasium", "tests.adapters.planted:Counting-v0"), rows=2, held_out=0)
ROW = {"seed": 1}


def action_text(action: int) -> str:
    return f"<action>{action}</action>"


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayerProcess]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = PlayerProcess(COUNTING)
    yield started
    await started.close()


async def test_an_episode_is_scored_from_its_play_or_from_its_texts_if_that_is_gone(process: PlayerProcess) -> None:
    await process.ask("begin", episode="a", row=ROW)
    assert await process.ask("answer", episode="a", text=action_text(1)) == {"message": "observation: 1"}
    process.send("end", episode="a")
    texts = [action_text(1), "cut off", action_text(1)]
    expected = {"reward": 2.0, "steps": 2, "no_action": 1, "terminated": 0}
    for _ in ("goes on with what was played", "plays it all again", "in a new process"):
        assert await process.ask("score", row=ROW, texts=texts) == {"value": 2.0, "parts": expected}
    await process.close()
    assert await process.ask("score", row=ROW, texts=texts) == {"value": 2.0, "parts": expected}


async def test_a_blocked_game_delays_no_other_and_a_program_that_exited_is_started_again(
    process: PlayerProcess,
) -> None:
    for episode in ("blocks", "goes on", "exits"):
        await process.ask("begin", episode=episode, row=ROW)
    blocked = asyncio.create_task(process.ask("answer", episode="blocks", text=action_text(3)))
    for number in (1, 2):
        assert await process.ask("answer", episode="goes on", text=action_text(1)) == {
            "message": f"observation: {number}"
        }
    with pytest.raises(PlayerError, match=r"planted:Counting-v0: its program ended with 7: "):
        await process.ask("answer", episode="exits", text=action_text(2))
    with pytest.raises(PlayerError, match="its program ended with 7"):
        await blocked
    assert await process.ask("begin", episode="again", row=ROW) is None
    with pytest.raises(PlayerError, match="the program that played this episode has ended"):
        await process.ask("answer", episode="goes on", text=action_text(1))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("gymnasium:NoGame-v0", r"gymnasium:NoGame-v0: NameNotFound: .*NoGame"),
        ("reasoning-gym:no_puzzle", r"reasoning-gym:no_puzzle: ValueError: Dataset 'no_puzzle' not registered"),
        ("gymnasium:CarRacing-v3", r"gymnasium:CarRacing-v3: "),
    ],
)
def test_an_unplayable_environment_is_refused_with_one_sentence(tmp_path: Path, word: str, sentence: str) -> None:
    source = source_of(word)
    assert source is not None
    with pytest.raises(PlayerError, match=sentence) as refused:
        made(Player(source=source, rows=2, held_out=0), tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.json*")), "a failure leaves no files"


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S -E "$@"\n')
    bare.chmod(0o755)
    player = Player(source=Source("reasoning-gym", "basic_arithmetic"), python=str(bare), rows=2, held_out=0)
    with pytest.raises(PlayerError, match=rf"the package reasoning-gym is not installed in {bare}\.") as refused:
        made(player, tmp_path)
    assert refused.value.hint == f"{bare} -m pip install reasoning-gym"


def test_a_path_is_not_taken_for_an_environment_of_a_package() -> None:
    assert [source_of(word) for word in ("quiz.py", "c:quiz.py", "gymnasium:", "harbour:x")] == [None] * 4


def test_a_program_sets_only_described_keys_and_its_invalid_answer_is_one_sentence(tmp_path: Path) -> None:
    says = {"system": "Play.", "max_turns": "many", "dataset": "/etc/passwd", "sandbox": "none"}
    answers = json.dumps({"id": 1, "ok": says}) + "\n" + json.dumps({"id": 2, "ok": [{"query": "1"}]})
    found = made(COUNTING, tmp_path, [sys.executable, "-c", f"print({answers!r})"])
    assert found.described == {"system": "Play."}
    for number, wrong in enumerate(("no JSON", "[1]", '{"id": 1, "ok": 3}\n{"id": 2, "ok": [1]}')):
        with pytest.raises(PlayerError, match=r"cannot be read|its program ended with 0"):
            made(COUNTING, tmp_path / str(number), [sys.executable, "-c", f"print({wrong!r})"])
