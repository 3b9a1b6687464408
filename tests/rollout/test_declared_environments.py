"""Environments of Python files in episodes: their tools, loops, scores and the state of the tools."""

from __future__ import annotations

import asyncio
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
from tests.rollout.actors import Prompt
from tests.rollout.conftest import Stage
from tests.waiting import PATIENCE_S, aeventually

RUN = "name: x\nmodel: {build: tiny}\nenvironments:\n  shop: {code: shop.py, APART parser: minicpm}\n"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the declarations of a test at its end."""
    monkeypatch.setattr(environment, "_declared", {})
    monkeypatch.setattr(agent_loops, "_registry", dict(agent_loops._registry))
    monkeypatch.setattr(scorers, "_registry", dict(scorers._registry))


async def begin(stage: Stage, folder: Path, code: str, more: str = "", apart: str = "") -> None:
    (folder / "shop.py").write_text(code)
    (folder / "shop.jsonl").write_text(json.dumps({"query": "what costs a pear?", "answer": "3"}) + "\n")
    (folder / "run.yaml").write_text(RUN.replace("APART ", apart) + more)
    stage.config = load_config(folder / "run.yaml", environ={}).config
    user_code.load(stage.config)
    if stage.config.tools:
        await stage.toolbox()


async def test_the_example_of_the_page_acts_and_is_scored_by_what_its_tools_keep(stage: Stage, tmp_path: Path) -> None:
    await begin(stage, tmp_path, blocks("python")[0].replace("shopping", "shop"))
    cheats = "<tool_call>agentrl_state()</tool_call><tool_call>shop.agentrl_state()</tool_call>"
    said = iter(["<tool_call>put(tea)</tool_call><tool_call>put(milk)</tool_call>", cheats, "<answer>3</answer>"])
    engine = await stage.engine(lambda prompt: next(said))
    await stage.task(n=1, answer="3", extra={"wanted": ["tea"]})
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns) == ("answered", 3), record.error
    assert record.score == pytest.approx(1.2), "total and bought, by their weights"
    assert record.score_parts == {"total": 1.0, "bought": 1.0, "failed_calls": 3.0}
    assert decisions(to_plain(record)) == ["parts of the score: total 1, bought 1, failed_calls 3"]
    assert "agentrl_state" not in stage.words.template.tokenizer.decode(engine.prompts[1].ids)
    assert [call.tool for call in await stage.tool_calls() if call.status == "ok"] == ["put", "agentrl_state"]
    assert [answer.strip() for answer in engine.prompts[2].answers[-2:]] == [
        f"There is no tool {name}. There are: put." for name in ("agentrl_state", "shop.agentrl_state")
    ]


STATEFUL = """
import asyncio
from pathlib import Path
import agentrl as rl

class Game(rl.Session):
    async def setup(self, task: rl.Task):
        self.word = task.row["word"] + task.truth
    def teardown(self):
        Path("ended").write_text(self.word)

@rl.tool
def tell(game: Game) -> str:
    return game.word

def begin(episode):
    episode.state["seen"] = []

async def end(episode):
    Path("torn_down").write_text(episode.query)

@rl.agent
async def two_sides(episode):
    pro, con = episode.branch("pro", system="for"), episode.branch("con", system="against")
    said = await asyncio.gather(pro.chat("is it so?"), con.chat("is it so?"))
    episode.state["seen"] += [each.text for each in said]
    reply = await episode.chat(f"{said[0].text} or {said[1].text}?")
    await episode.chat(results=await episode.results_of(reply))

@rl.scorer
def right(episode):
    assert episode.state == {"Game": {"word": "plum3"}, "seen": ["yes", "no"]}, episode.state
    assert list(episode.branches) == ["pro", "con", "", ""]
    assert episode.texts_of("con") == ["no"] and episode.calls_of("tell")[0].result == "plum3"
    return float(episode.answer == episode.truth)

rl.Environment("shop", dataset="shop.jsonl", tools=[tell], agent=two_sides, setup=begin, teardown=end, scorers=[right])
"""


async def test_state_is_made_and_ended_and_two_agents_speak_side_by_side(stage: Stage, tmp_path: Path) -> None:
    code = STATEFUL.replace('"ended"', repr(str(tmp_path / "ended")))
    code = code.replace('"torn_down"', repr(str(tmp_path / "torn_down")))
    await begin(stage, tmp_path, code, more="tools:\n  shop: {sandbox: none}\n")
    both = asyncio.Barrier(2)

    async def says(prompt: Prompt) -> str:
        if "for" in prompt.text or "against" in prompt.text:
            await both.wait()  # Answers only once both agents have asked.
            return "yes" if "for" in prompt.text else "no"
        return "<answer>3</answer>" if "plum3" in prompt.text else "<tool_call>tell()</tool_call>"

    engine = await stage.engine(says)
    await stage.task(n=1, answer="3", extra={"word": "plum"})
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.score, record.turns) == ("answered", 1.0, 4), record.error
    assert [call.branch for call in await stage.turns()] == ["pro", "con", "", ""]
    assert engine.prompts[2].answers == ["yes or no?"]
    (data,) = await stage.data()
    assert data.trained_tokens == record.generated_tokens, "all sides train"
    assert (tmp_path / "torn_down").read_text() == "what costs a pear?"
    await aeventually(lambda: (tmp_path / "ended").exists() and (tmp_path / "ended").read_text() == "plum3")


APART = """
import agentrl as rl

@rl.agent(resumable=True)
async def asks_twice(episode):
    first = await episode.chat()
    episode.state["seen"] = first.text
    await episode.chat(f"Are you sure of {first.text}?")

@rl.scorer
def right(episode):
    return float(episode.answer == episode.truth and episode.state == {"seen": "perhaps"})

rl.Environment("shop", dataset="shop.jsonl", agent=asks_twice, scorers=[right])
"""


async def test_an_agent_in_a_sandbox_goes_on_in_another_sampler(stage: Stage, tmp_path: Path) -> None:
    """The first sampler is drained during the second turn. In the next one, the agent runs again from its beginning."""
    await begin(stage, tmp_path, APART, apart="sandbox: process, ")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def says(prompt: Prompt) -> str:
        if not prompt.answers or "sure" not in prompt.answers[-1]:
            return "perhaps"
        begun.set()
        await go_on.wait()
        return "<answer>3</answer>"

    engine = await stage.engine(says)
    await stage.task(n=1)
    try:
        async with stage.sampler("sampler-0.1") as leaving:
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            leaving.drain()
            await aeventually(lambda: leaving.running == 0, what="it left at once")
        go_on.set()
        async with stage.sampler("sampler-1.1"):
            record = await stage.one()
    finally:
        await scorers.close_scorers()
    assert (record.outcome, record.score, record.turns, record.attempt) == ("answered", 1.0, 2, 1), record.error
    first, *again = engine.prompts
    assert "sure" not in first.text
    assert len(again) >= 2
    assert all("sure of perhaps?" in prompt.text for prompt in again), "the first turn is not sampled again"


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
        (
            "@rl.scorer\ndef bad(episode):\n    return 'much'\n",
            "the scorer bad returned 'much'; it must",
        ),
        (
            "@rl.scorer\ndef bad(episode):\n    return rl.Score(0, turns=(1, 2))\n",
            "2 rewards of turns to an episode of 1",
        ),
    ],
)
async def test_a_scorer_without_a_result_leaves_the_record_unscored(
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
