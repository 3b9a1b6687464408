"""Messages that a loop adds between turns are decoded from stored prompts; results of tools are not repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.markups import CHATML, COMPACT, Markup
from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tokenizer_training import build_tokenizer
from agentrl.queries import loop_messages
from agentrl.tokens.binary_format import pack_ids


@pytest.fixture(params=[COMPACT, CHATML], ids=lambda markup: markup.name)
def template(request: pytest.FixtureRequest, tmp_path: Path) -> Template:
    file = tmp_path / "tokenizer.json"
    markup: Markup = request.param
    build_tokenizer(["Are you sure? 42 <tool_response>\n", "user\nassistant\n"]).save(str(file))
    if markup is CHATML:
        # The same tokenizer with the control tokens of the other family.
        text = file.read_text().replace("<|end|>", "<|im_end|>").replace("<|user|>", "<|im_start|>")
        file.write_text(text)
    found = Template(Tokenizer(file))
    assert found.writer is markup
    return found


def call(turn: int, prompt: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": turn, "turn": turn, "status": "done", "prompt": pack_ids(prompt or [])} | fields


def of_second_turn(template: Template, prompt: list[int], **first: Any) -> list[tuple[str, str]]:
    found = loop_messages.by_turn(template, [call(0, **first), call(1, prompt)], {"c.1": "long" * 9})
    return [(message["role"], message["text"]) for message in found.get(1, ())]


@pytest.mark.parametrize("ended", [True, False])
def test_message_of_the_loop_is_found(template: Template, ended: bool) -> None:
    assert of_second_turn(template, template.user("Are you sure?", ended=ended)) == [("user", "Are you sure?")]


def test_results_of_tools_and_errors_of_calls_are_left_out(template: Template) -> None:
    tools = [{"id": "c.0", "result": "42"}, {"id": "c.1", "result": "lo[…]ng"}]
    first: dict[str, Any] = {"tool_calls": tools, "parsed": [{"error": ""}, {"error": "no JSON"}]}
    assert of_second_turn(template, template.tool_results(["42", "long" * 9, "no JSON"]), **first) == []
    both = [*template.tool_results(["42"])[:-1], *template.user("Are you sure?")]
    assert ("user", "Are you sure?") in of_second_turn(template, both, **first)
    ((_, text),) = of_second_turn(template, template.tool_results(["42", "two calls are left"]), **first)
    assert "two calls are left" in text
    assert "42" not in text


def test_text_without_markup_has_no_role(template: Template) -> None:
    assert of_second_turn(template, template.tokenizer.encode("Are you sure?")) == [("", "Are you sure?")]


def test_first_prompt_and_continued_calls_are_not_messages(template: Template) -> None:
    first = call(0, template.first("", (), "What is it?"))
    continued = call(1, template.user("Are you sure?"), index=2)
    calls = [continued, first, call(1, index=1)]
    assert loop_messages.by_turn(template, calls, {}) == {}, "the first prompt of a turn adds no message"
