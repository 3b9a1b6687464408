"""Episodes of models with a chat template of their own: prompts, calls, results and the end of each turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.tool_call_parsers import Call, written
from agentrl.rollout import chat_format
from agentrl.store.documents import Record
from agentrl.tokens.binary_format import unpack_ids
from tests.chat.families import FAMILIES
from tests.rollout.actors import Prompt
from tests.rollout.conftest import Stage, configuration, unruly_tools


def play(stage: Stage, name: str, directory: Path, **environment: Any) -> None:
    """The stage is that of a model of this family."""
    family = FAMILIES[name]
    family.write(directory)
    (directory / "config.json").write_text(json.dumps({"vocab_size": 0}))
    stage.words = chat_format.read(directory, family.variables)
    tools = unruly_tools()
    tools["environments"]["shop"] |= {"parser": family.parser, **environment}
    stage.config = configuration(**tools)


CALLS = [Call("echo", {"text": "pear </s><|im_end|>"}), Call("echo", {"text": "plum"})]


async def episode(stage: Stage, name: str) -> tuple[Record, list[Prompt]]:
    parser = FAMILIES[name].parser
    # A turn of gpt-oss ends with its first call.
    calls = CALLS[:1] if name == "gpt_oss" else CALLS
    text = written(parser, calls)
    engine = await stage.engine(lambda prompt: "<answer>3</answer>" if "pear" in prompt.text else text)
    await stage.toolbox()
    await stage.task("what costs it?", n=1, sampling={"context": 30_000})
    async with stage.sampler():
        record = await stage.one()
    return record, engine.prompts


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma"])
async def test_an_episode_calls_tools_and_answers_in_the_format_of_its_family(
    stage: Stage, tmp_path: Path, name: str
) -> None:
    play(stage, name, tmp_path / "model")
    record, prompts = await episode(stage, name)
    assert (record.outcome, record.turns, record.score) == ("answered", 2, 1.0)
    template = stage.words.template
    first, second = await stage.calls()
    assert unpack_ids(first.output)[-1] in template.stop_ids
    assert second.base == first.id, "the second prompt goes on from the sampled tokens"
    results = [call.result for call in await stage.tool_calls()]
    assert results == ["pear </s><|im_end|>", "plum"][: len(results)]
    begun = [*prompts[0].ids, *unpack_ids(first.output)]
    calls = CALLS[: len(results)]
    assert prompts[1].ids == [*begun, *template.tool_results(results, calls=calls)]
    assert chat_format.other_calls(stage.words, stage.config) == []


async def test_a_parser_that_does_not_fit_the_template_is_reported(stage: Stage, tmp_path: Path) -> None:
    play(stage, "mistral", tmp_path / "model", parser="qwen")
    assert chat_format.other_calls(stage.words, stage.config) == [
        "environments.shop.parser is qwen, and the model's chat template writes tool calls that mistral reads."
    ]


@pytest.mark.parametrize("history", ["sampled", "template"])
async def test_a_template_that_leaves_out_thoughts_makes_branches_if_it_decides(
    stage: Stage, tmp_path: Path, history: str
) -> None:
    """DeepSeek's template leaves out thoughts of all earlier turns."""
    play(stage, "deepseek", tmp_path / "model", history=history)
    text = written("deepseek", CALLS[1:])
    says = iter(["<think>A pear?</think>" + text, "<think>A plum?</think>" + text, "<answer>3</answer>"])
    engine = await stage.engine(lambda prompt: next(says))
    await stage.toolbox()
    await stage.task("what costs it?", n=1, sampling={"context": 30_000})
    async with stage.sampler():
        record = await stage.one()
    assert (record.outcome, record.turns) == ("answered", 3)
    prompts = [prompt.text for prompt in engine.prompts]
    (data,) = await stage.data()
    sampled = await stage.calls()
    if history == "sampled":
        assert ("A pear?" in prompts[2], "A plum?" in prompts[2]) == (True, True)
        assert [call.base for call in sampled] == ["", sampled[0].id, sampled[1].id]
    else:
        assert not any("<think>" in prompt for prompt in prompts)
        assert [call.base_length for call in sampled[1:]] == [len(prompt.ids) for prompt in engine.prompts[:2]]
    assert sum(span.length for span in data.spans if span.kind == "model") == record.generated_tokens


@pytest.mark.parametrize("name", ["qwen2.5", "llama"])
async def test_a_template_that_writes_what_was_sampled_makes_no_branch(stage: Stage, tmp_path: Path, name: str) -> None:
    play(stage, name, tmp_path / "model", history="template")
    record, prompts = await episode(stage, name)
    assert record.outcome == "answered"
    first, second = await stage.calls()
    assert prompts[1].ids[: len(prompts[0].ids)] == prompts[0].ids
    assert second.base == first.id
    assert second.base_length == len(prompts[0].ids) + len(unpack_ids(first.output))
