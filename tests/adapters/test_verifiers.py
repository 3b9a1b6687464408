"""Environments of the package verifiers in its own Python: its rollouts, tools and rubrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from agentrl.adapters.made_tasks import made
from agentrl.adapters.player import Player, PlayerError
from agentrl.adapters.player_process import PlayerProcess
from agentrl.adapters.sources import Source

PYTHON = Path(__file__).parents[2] / ".venv-verifiers" / "bin" / "python"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'


def player(kind: str, **arguments: Any) -> Player:
    assert PYTHON.exists(), "make verifiers"
    source = Source("verifiers", "verifiers_tasks")
    return Player(source=source, python=str(PYTHON), arguments={"kind": kind, **arguments}, rows=512, held_out=64)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@asynccontextmanager
async def process_of(player: Player) -> AsyncIterator[PlayerProcess]:
    process = PlayerProcess(player)
    try:
        yield process
    finally:
        await process.close()


async def played(process: PlayerProcess, row: dict[str, Any], *texts: str) -> list[Any]:
    """The answer of the environment to each text, then the score."""
    await process.ask("begin", episode=row["id"], row=row)
    said = [await process.ask("answer", episode=row["id"], text=text) for text in texts]
    process.send("end", episode=row["id"])
    return [*said, await process.ask("score", row=row, texts=list(texts))]


async def test_puzzles_of_the_package_get_the_scores_of_reasoning_gym() -> None:
    theirs = reasoning_gym.create_dataset("basic_arithmetic", seed=5, size=6)
    async with process_of(player("puzzles", gym="basic_arithmetic")) as process:
        rows = await process.ask("rows")
        assert [row["split"] for row in rows] == ["train"] * 4 + ["eval"] * 2
        for row, puzzle in zip(rows, theirs, strict=True):
            assert [message["role"] for message in row["query"]] == ["system", "user"]
            assert row["query"][1]["content"] == puzzle["question"]
            for answer in (puzzle["answer"], "-1", ""):
                done, score = await played(process, row, f"I think.\n<answer>{answer}</answer>")
                assert done == {"done": True}
                expected = theirs.score_answer(answer, puzzle)
                assert score["value"] == score["parts"]["check_answer_reward_func"] == expected


async def test_a_model_calls_tools_as_the_first_message_describes() -> None:
    wrong = '<tool_call>{"name": "sub", "arguments": {}}</tool_call><tool_call>{{</tool_call>'
    async with process_of(player("tools")) as process:
        row, forgets, breaks = await process.ask("rows")
        assert row["query"][0]["content"].startswith("Add.\n\nYou may call these functions:\n")
        assert '"name": "add"' in row["query"][0]["content"]
        called, refused, done, score = await played(process, row, CALL, wrong, "It is 7.")
        assert called == {"message": "7"}
        assert refused["message"].startswith("'sub'\n\n")
        assert done == {"done": True}
        assert (score["value"], score["parts"]["add_calls"]) == (0.5, 1.0), "the weight is the rubric's"
        # The same episode is scored again from its texts, and so is one that ended at a limit in the middle.
        assert await process.ask("score", row={**row, "id": "again"}, texts=[CALL, wrong, "It is 7."]) == score
        assert (await process.ask("score", row=row, texts=[CALL]))["value"] == 0.0, "no text contains 7"
        # An episode that cannot become a record is refused with one sentence.
        with pytest.raises(PlayerError, match="it changes what was said before, which a record cannot have"):
            await played(process, forgets, CALL, CALL)
        with pytest.raises(PlayerError, match="InfraError: its sandbox is away"):
            await played(process, breaks, CALL)


def test_an_environment_that_cannot_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PlayerError, match="its rubric compares the rollouts of a group"):
        made(player("together"), tmp_path)
    own = Player(source=Source("verifiers", "wordle"), rows=1, held_out=0)
    with pytest.raises(PlayerError, match="the package verifiers is not installed in") as refused:
        made(own, tmp_path)
    assert refused.value.hint is not None
    assert "DIR/bin/pip install 'verifiers<0.2'; then `python: DIR/bin/python`" in refused.value.hint
