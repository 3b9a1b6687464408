"""Conversations that are too long: what each strategy leaves out, what the model reads afterwards, and which tokens
train."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins as to_plain

from agentrl.config.run import RunConfig
from agentrl.formatting.record_text import decisions
from agentrl.store import calls as stored_calls
from agentrl.tokens import spans as span_lists
from agentrl.tokens.token_tree import TokenTree
from tests.other_models.services import Service
from tests.rollout.actors import Prompt
from tests.rollout.conftest import Stage

TOOLS = "def look(at: str) -> str:\n    'Look at something.'\n    return f'{at}: ' + 'pears and apples ' * 20\n"
CONTEXT, MOST = 900, 60


@pytest.fixture
async def helper() -> AsyncIterator[Service]:
    made = await Service(lambda asked: "The shelf has pears.").start()
    yield made
    await made.close()


async def prepare(stage: Stage, folder: Path, **environment: Any) -> None:
    """An environment with one tool of long results."""
    (folder / "tools.py").write_text(TOOLS)
    models = {"models": environment.pop("models", {})}
    stage.config = RunConfig.model_validate(
        {
            "name": "x",
            "model": {"build": "tiny"},
            "environments": {
                "shop": {"dataset": "none.jsonl", "parser": "minicpm", "tools": ["shop"], "max_turns": 9, **environment}
            },
            "tools": {"shop": {"functions": str(folder / "tools.py"), "session": "shared"}},
            "sampling": {"context": CONTEXT, "max_tokens": MOST},
            **models,
        }
    )
    await stage.toolbox()


def looking(turns: int) -> Any:
    """A model that looks at a place in each of these turns and then answers. It writes notes if it is asked to."""
    seen = iter([f"<tool_call>look('place {number}')</tool_call>" for number in range(turns)])

    def says(prompt: Prompt) -> str:
        if "Write down all that you need" in prompt.answers[-1]:
            return "I looked at place 0 and saw pears."
        return next(seen, "<answer>3</answer>")

    return says


async def played(stage: Stage, turns: int) -> Any:
    engine = await stage.engine(looking(turns))
    await stage.task(n=1, sampling={"max_tokens_per_call": MOST, "context": CONTEXT})
    async with stage.sampler():
        return engine, await stage.one()


async def of_record(stage: Stage, record: Any) -> tuple[Any, Any]:
    """The prompts and the data of a record, rebuilt from the store."""
    calls = (await stored_calls.with_tokens(stage.db, [record.id]))[record.id]
    stored = stored_calls.stored_calls(calls)
    prompts = span_lists.full_prompts(stored)
    tree = TokenTree.from_calls((index, prompts[index], call.output) for index, call in stored.items())
    (data,) = await stage.data()
    assert data.spans == tree.spans
    assert data.trained_tokens == record.generated_tokens == sum(len(call.output) for call in stored.values()), (
        "each sampled token trains once, even if it was left out later"
    )
    return prompts, data


@pytest.mark.parametrize("strategy", ["discard_tool_results", "sliding_window"])
async def test_removed_parts_are_counted_and_each_edit_is_a_branch(stage: Stage, tmp_path: Path, strategy: str) -> None:
    await prepare(stage, tmp_path, context={"strategy": strategy, "budget": 600})
    engine, record = await played(stage, 5)
    assert (record.outcome, record.turns, record.score) == ("answered", 6, 1.0), record.error
    assert all(len(prompt.ids) <= 600 for prompt in engine.prompts)
    assert record.context["edits"] >= 1
    (line,) = [line for line in decisions(to_plain(record)) if line.startswith("context: ")]
    assert f"left out {record.context['tokens']} tokens" in line
    prompts, _ = await of_record(stage, record)
    branches = sum(prompts[index][: len(prompts[index - 1])] != prompts[index - 1] for index in list(prompts)[1:])
    assert branches == record.context["edits"]
    last = engine.prompts[-1].text
    assert "what costs a pear?" in last
    assert "place 4: pears" in last, "the last result stays"
    assert "place 0: pears" not in last
    if strategy == "discard_tool_results":
        assert "(removed: the conversation was too long)" in last
        assert "look('place 0')" in last, "sampled tokens stay"
        assert record.context["results"] >= 3
    else:
        assert "place 0" not in last
        assert record.context["turns"] >= 2


async def test_stop_ends_the_episode_at_its_budget(stage: Stage, tmp_path: Path) -> None:
    await prepare(stage, tmp_path, context={"budget": 400})
    _, record = await played(stage, 5)
    assert (record.outcome, record.context) == ("context_full", {})


async def test_the_model_writes_notes_that_train_and_goes_on_with_them(stage: Stage, tmp_path: Path) -> None:
    await prepare(stage, tmp_path, context={"strategy": "discard_all_with_summary", "budget": 500})
    engine, record = await played(stage, 3)
    assert (record.outcome, record.score) == ("answered", 1.0), record.error
    assert record.context["edits"] == 1
    notes = next(number for number, prompt in enumerate(engine.prompts) if "Write down all" in prompt.answers[-1])
    assert "place" in engine.prompts[notes].answers[-1], "the model sees the last results"
    after = engine.prompts[notes + 1]
    assert after.answers == [
        "what costs a pear?\n\nYou have worked on this already. Your notes:\nI looked at place 0 and saw pears."
    ]
    await of_record(stage, record)


async def test_another_model_summarises_and_its_words_train_nothing(
    stage: Stage, tmp_path: Path, helper: Service
) -> None:
    models = {"helper": [{"url": helper.url, "model": "m"}]}
    await prepare(stage, tmp_path, models=models, context={"strategy": "summarise", "budget": 500, "model": "helper"})
    engine, record = await played(stage, 5)
    assert (record.outcome, record.score) == ("answered", 1.0), record.error
    assert record.context["edits"] == len(helper.asked) >= 2
    assert "The shelf has pears." in engine.prompts[-1].text
    assert "[tool] place 0: pears" in helper.asked[0].text
    assert "[earlier notes] The shelf has pears." in helper.asked[1].text
    await of_record(stage, record)


async def test_equal_calls_end_the_episode_or_get_a_warning(stage: Stage, tmp_path: Path) -> None:
    await prepare(stage, tmp_path, repetition={"calls": 2, "texts": 0, "means": "warn"})
    said = iter(["Hm. <tool_call>look('x')</tool_call>", "Well. <tool_call>look('x')</tool_call>"])
    engine = await stage.engine(lambda prompt: next(said, "<answer>3</answer>"))
    await stage.task(n=1)
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns) == ("answered", 3), record.error
    assert "(2 turns in a row make the same calls. Do something else, or answer.)" in engine.prompts[2].answers[-1]
    assert "in a row" not in engine.prompts[1].answers[-1]
    shop = stage.config.environments["shop"]
    ending = shop.model_copy(update={"repetition": shop.repetition.model_copy(update={"means": "end"})})
    stage.config = stage.config.model_copy(update={"environments": {"shop": ending}})
    await stage.task(n=1)
    said = iter(["Hm. <tool_call>look('x')</tool_call>", "Well. <tool_call>look('x')</tool_call>"])
    async with stage.sampler("sampler-1.1"):
        records = await stage.ended(count=2)
    assert json.dumps(sorted(record.outcome for record in records)) == '["answered", "repetition"]'
