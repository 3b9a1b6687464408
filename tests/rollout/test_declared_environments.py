"""Environments of Python files at work: their tools, loops, scores and what the tools keep."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from msgspec import to_builtins as to_plain

from agentrl.config.load import load_config
from agentrl.environments import environment
from agentrl.formatting.record_text import decisions
from agentrl.rollout import agent_loops, scorers, user_code
from tests.environments.page import blocks
from tests.rollout.conftest import Stage

RUN = "name: x\nmodel: {build: tiny}\nenvironments:\n  shop: {code: shop.py, parser: minicpm}\n"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is known in this test only."""
    monkeypatch.setattr(environment, "_declared", {})
    monkeypatch.setattr(agent_loops, "_registry", dict(agent_loops._registry))
    monkeypatch.setattr(scorers, "_registry", dict(scorers._registry))


async def begin(stage: Stage, folder: Path, code: str) -> None:
    (folder / "shop.py").write_text(code)
    (folder / "shop.jsonl").write_text(json.dumps({"query": "what costs a pear?", "answer": "3"}) + "\n")
    (folder / "run.yaml").write_text(RUN)
    stage.config = load_config(folder / "run.yaml", environ={}).config
    user_code.load(stage.config)
    if stage.config.tools:
        await stage.toolbox()


async def test_the_example_of_the_page_acts_and_is_scored_by_what_its_tools_keep(stage: Stage, tmp_path: Path) -> None:
    await begin(stage, tmp_path, blocks("python")[0].replace("shopping", "shop"))
    said = iter(["<tool_call>put(tea)</tool_call><tool_call>put(milk)</tool_call>", "<answer>3</answer>"])
    engine = await stage.engine(lambda prompt: next(said))
    await stage.task(n=1, answer="3", extra={"wanted": ["tea"]})
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns) == ("answered", 2), record.error
    assert record.score == pytest.approx(1.2), "total and bought, by their weights"
    assert record.score_parts == {"total": 1.0, "bought": 1.0, "failed_calls": 1.0}
    assert decisions(to_plain(record)) == ["parts of the score: total 1, bought 1, failed_calls 1"]
    assert "agentrl_state" not in stage.words.template.tokenizer.decode(engine.prompts[0].ids)
    assert [call.tool for call in await stage.tool_calls()] == ["put", "put", "agentrl_state"]


async def test_a_sampler_finds_the_modules_beside_the_file_wherever_it_runs(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "worth_of_the_test.py").write_text("RIGHT = 0.5\n")
    scored = "import worth_of_the_test\ndef right(episode):\n    return worth_of_the_test.RIGHT\n"
    declares = "rl.Environment('shop', dataset='shop.jsonl', scorers=[right])\n"
    await begin(stage, tmp_path, f"import agentrl as rl\n{scored}{declares}")
    await stage.engine(lambda prompt: "<answer>3</answer>")
    await stage.task(n=1)
    async with stage.sampler():
        assert (await stage.one()).score == 0.5


async def test_a_loop_of_messages_trains_the_sampled_tokens(stage: Stage, tmp_path: Path) -> None:
    await begin(stage, tmp_path, blocks("python")[1].replace("puzzle", "shop"))
    said = iter(["<answer>2</answer>", "<answer>3</answer>"])
    engine = await stage.engine(lambda prompt: next(said))
    await stage.task(n=1, answer="3")
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.score, record.turns) == ("answered", 1.0, 2), record.error
    first, second = engine.prompts
    assert second.ids[: len(first.ids)] == first.ids
    assert second.answers[-1] == "Are you sure? Repeat your answer."
    (data,) = await stage.data()
    assert data.trained_tokens == record.generated_tokens


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("@rl.scorer\ndef bad(episode):\n    return 1 / 0\n", "ZeroDivisionError: division by zero (shop.py, line 4)"),
        ("@rl.scorer\ndef bad(episode): ...\n", "the scorer bad returned nothing"),
        ("@rl.scorer\ndef bad(episode):\n    return 'much'\n", "could not convert string to float"),
        (
            "@rl.scorer\ndef bad(episode):\n    return rl.Score(0, turns=(1, 2))\n",
            "2 rewards of turns to an episode of 1",
        ),
    ],
)
async def test_a_scorer_that_cannot_say_leaves_the_record_unscored(
    stage: Stage, tmp_path: Path, code: str, sentence: str
) -> None:
    declares = "rl.Environment('shop', dataset='shop.jsonl', scorers=[bad])\n"
    await begin(stage, tmp_path, f"import agentrl as rl\n{code}{declares}")
    await stage.engine(lambda prompt: "<answer>3</answer>")
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.status, record.score) == ("unscored", None)
    assert sentence in record.error
