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


async def test_a_parser_that_does_not_read_the_calls_of_the_template_is_told(stage: Stage, tmp_path: Path) -> None:
    play(stage, "mistral", tmp_path / "model", parser="qwen")
    assert chat_format.other_calls(stage.words, stage.config) == [
        "environments.shop.parser is qwen, and the model's chat template writes tool calls that mistral reads."
    ]
