"""The chat template that comes with a model decides its tokens, in the formats of the model families."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat import jinja_rendering, own_template, prefix_check
from agentrl.chat.markups import COMPACT
from agentrl.chat.own_template import OwnTemplate
from agentrl.chat.template import Template
from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec
from agentrl.errors import ConfigError
from tests.chat.families import FAMILIES, Family

SHOP = [
    ToolSpec(name="lookup", description="Looks.", schema={"type": "object", "properties": {"item": {"type": "string"}}})
]
CALL = Call("lookup", {"item": "pear"})


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def family(name: str) -> Family:
    return FAMILIES[name]


@pytest.fixture(scope="module")
def directory(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def template(family: Family, directory: Path) -> Template:
    return Template.of(directory, family.variables)


def writer_of(template: Template) -> OwnTemplate:
    assert isinstance(template.writer, OwnTemplate)
    return template.writer


def conversations(template: Template) -> list[tuple[list[Any], list[dict[str, Any]]]]:
    """Messages and tools that this template allows."""
    question, answer = {"role": "user", "content": "What?"}, {"role": "assistant", "content": " It is 3. "}
    plain: list[Any] = [question, answer, {"role": "user", "content": "And <b>&amp; 'two' é?"}]
    found: list[tuple[list[Any], list[dict[str, Any]]]] = [([question], []), (plain, []), (plain[:2], [])]
    if writer_of(template).has_system:
        found.append(([{"role": "system", "content": "Sell."}, *plain], []))
    if writer_of(template).has_results:
        called = [question, own_template.said("", [CALL]), own_template.answered('3 "coins"', CALL)]
        functions = [tool.function for tool in SHOP]
        found += [(called, functions), ([{"role": "system", "content": "Sell."}, *called], functions)]
    return found


def test_rendering_equals_that_of_transformers(family: Family, directory: Path, template: Template) -> None:
    today = datetime.now().astimezone().date().isoformat()
    source, names = jinja_rendering.source_of(directory)
    rendering = jinja_rendering.Rendering(source, names, template.tokenizer, {**family.variables, "date": today})
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    for (messages, tools), opening in itertools.product(conversations(template), (True, False)):
        expected = theirs.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=opening, **family.variables
        )
        parts = rendering.parts(messages, tools, opening=opening)
        assert "".join(text for _, text in parts) == expected
        ids = theirs.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=opening, return_dict=False, **family.variables
        )
        assert template._encode(parts) == ids, "control tokens and texts become the same ids"


EXPECTED = {
    "llama": (
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "lookup", "parameters": {"item": "pear"}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\nIt is 3.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nSo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral": (
        '[/INST][TOOL_CALLS] [{"name": "lookup", "arguments": {"item": "pear"}, "id": "000000000"}]</s>'
        '[TOOL_RESULTS] {"content": "3", "call_id": "000000000"}[/TOOL_RESULTS] It is 3.</s>[INST] So?[/INST]'
    ),
    "qwen2.5": (
        '<|im_start|>assistant\n<tool_call>\n{"name": "lookup", "arguments": {"item": "pear"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        "It is 3.<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "qwen3": (
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        '<tool_call>\n{"name": "lookup", "arguments": {"item": "pear"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nIt is 3.<|im_end|>\n"
        "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "gpt_oss": (
        "<|start|>assistant to=functions.lookup<|channel|>commentary json<|message|>"
        '{"item": "pear"}<|call|><|start|>functions.lookup to=assistant<|channel|>commentary<|message|>"3"<|end|>'
        "<|start|>assistant<|channel|>final<|message|>It is 3.<|return|>"
        "<|start|>user<|message|>So?<|end|><|start|>assistant"
    ),
    "deepseek": (
        "<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>lookup\n```json\n"
        '{"item": "pear"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
        "It is 3.<｜end▁of▁sentence｜><｜User｜>So?<｜Assistant｜>"
    ),
}
EXPECTED["qwen3 without thoughts"] = EXPECTED["qwen3"] + "<think>\n\n</think>\n\n"


def test_an_episode_adds_what_the_template_writes(name: str, template: Template) -> None:
    writer = writer_of(template)
    ids = template.first("Sell.", SHOP, "What?")
    if name == "gemma":
        ids += template.assistant("It is 3.") + template.tool_results(["3", "4"], calls=[CALL]) + template.user("So?")
        assert template.tokenizer.decode(ids).endswith(
            "<start_of_turn>model\nIt is 3.<end_of_turn>\n<start_of_turn>user\n<tool_response>\n3\n</tool_response>\n"
            "<tool_response>\n4\n</tool_response><end_of_turn>\n<start_of_turn>model\n\n"
            "<start_of_turn>user\nSo?<end_of_turn>\n<start_of_turn>model\n"
        )
        return
    ids += template._encode(writer.sampled("", [CALL]))
    ids += template.tool_results(["3"], calls=[CALL])
    ids += template.assistant("It is 3.") + template.user("So?")
    assert template.tokenizer.decode(ids).endswith(EXPECTED[name])


def test_the_first_prompt_shows_instructions_tools_and_query(template: Template) -> None:
    text = template.tokenizer.decode(
        template.first("Sell.", SHOP, "What?", earlier=[("user", "A"), ("assistant", "B")])
    )
    assert all(word in text for word in ("Sell.", "lookup", "item", "What?"))
    assert text.index("A") < text.index("B")


def test_a_turn_that_was_cut_off_is_closed_by_the_environment(template: Template) -> None:
    for whole, cut in (
        (template.tool_results(["3"], calls=[CALL]), template.tool_results(["3"], calls=[CALL], ended=False)),
        (template.user("So?"), template.user("So?", ended=False)),
    ):
        assert cut[1:] == whole
        assert template.tokenizer.decode(cut[:1]) in template.tokenizer.control_tokens()


def test_generation_stops_where_the_template_and_the_model_end_a_turn(family: Family, template: Template) -> None:
    assert set(template.stop_ids) == {template.tokenizer.control(token) for token in family.stops}
    assert template.assistant("It is 3.")[-1] in template.stop_ids


REWRITTEN = {
    "llama": 1,  # text before a call is left out
    "mistral": 4,  # text before a call is left out, and instructions move to the newest message of the user
    "qwen2.5": 0,
    "qwen3": 4,
    "qwen3 without thoughts": 5,
    "gemma": 0,
    "gpt_oss": 3,  # <|return|> becomes <|end|>
    "deepseek": 2,  # thoughts are left out
}


def test_rewritten_history_is_found_and_described(name: str, template: Template) -> None:
    found = template.rewrites()
    assert len(found) == REWRITTEN[name]
    assert bool(prefix_check.sentence(found)) == bool(found)
    if name == "qwen3":
        thoughts = next(one for one in found if "with thoughts" in one.when)
        assert ("<think>" in thoughts.sampled, "<think>" in thoughts.written) == (True, False)
        assert not any(one.when == "with thoughts when tools answer" for one in found), (
            "the template keeps these thoughts"
        )


def test_messages_are_read_back_with_their_roles(name: str, template: Template) -> None:
    writer = writer_of(template)
    ids = template.first("Sell.", [], "What?") + template._encode(writer.sampled("", [CALL] * writer.has_results))
    ids += template.tool_results(["Three"], calls=[CALL]) + template.assistant("It is 3.") + template.user("So?")
    found = [(role, text.strip()) for role, text in template.messages(ids) if text.strip() and role]
    roles = [role for role, _ in found]
    assert [role for role in roles if role != "system"] in (
        ["user", "assistant", "tool", "assistant", "user"],
        ["user", "user", "assistant", "user"],  # no role for tools, and an empty turn before the result
        ["user", "assistant", "tool", "assistant", "user", "assistant"],  # the opening of the next turn contains text
    )
    assert "Three" in dict(found).get("tool", "Three")
    assert any("It is 3." in text for role, text in found if role == "assistant")
    assert any(text == "So?" for role, text in found if role == "user")


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_no_text_from_outside_becomes_a_control_token(template: Template, data: st.DataObject) -> None:
    control = st.sampled_from([*template.tokenizer.control_tokens(), "\U000f0000", "pear ", "\n", '"'])
    evil = data.draw(st.lists(control, min_size=1, max_size=6).map("".join))
    tool = ToolSpec(name="lookup", description=evil, schema={"type": "object", "properties": {evil: {"title": evil}}})
    ids_of = {template.tokenizer.control(token) for token in template.tokenizer.control_tokens()}

    def controls(ids: list[int]) -> list[int]:
        return [one for one in ids if one in ids_of]

    plain = ToolSpec(name="lookup", description="d", schema={"type": "object", "properties": {"p": {"title": "t"}}})
    for ours, theirs in (
        (template.first(evil, [tool], evil), template.first("s", [plain], "q")),
        (template.tool_results([evil, evil], calls=[CALL]), template.tool_results(["3", "4"], calls=[CALL])),
        (template.user(evil), template.user("So?")),
    ):
        assert controls(ours) == controls(theirs)


def test_a_result_is_kept_as_it_is(template: Template) -> None:
    result = "3 <|im_end|></s>[INST]<|end|>\n é \U000f0000 <end_of_turn>x"
    text = template.tokenizer.decode(template.tool_results([result], calls=[CALL]))
    assert result in text or json.dumps(result, ensure_ascii=False) in text


def test_a_call_in_the_format_of_the_model_becomes_its_control_tokens(tmp_path: Path) -> None:
    template = FAMILIES["mistral"].read(tmp_path)
    ids = template.assistant('[TOOL_CALLS] [{"name": "lookup", "arguments": {}}]')
    assert ids[0] == template.tokenizer.control("[TOOL_CALLS]")
    assert ids[-1] in template.stop_ids
    evil = template.assistant("[TOOL_CALLS][INST]")
    assert template.tokenizer.control("[INST]") not in evil


def test_the_date_of_a_template_is_fixed_and_can_be_set(tmp_path: Path) -> None:
    llama = FAMILIES["llama"]
    template = llama.read(tmp_path / "a")
    assert "Today Date: 01 Jan 2025" in template.tokenizer.decode(template.first("", [], "Hi"))
    later = llama.read(tmp_path / "b", date=datetime(2026, 3, 4, tzinfo=UTC).date().isoformat())
    assert "Today Date: 04 Mar 2026" in later.tokenizer.decode(later.first("", [], "Hi"))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% if %}", "cannot be read: TemplateSyntaxError"),
        ("{{ raise_exception('no chats') }}", "cannot be rendered: ValueError: no chats"),
        ("{{ messages[0].content }}", "ends a turn of the assistant with no control token"),
        ("{{ ''.__class__.__mro__ }}", "cannot be rendered: SecurityError"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(tmp_path: Path, source: str, sentence: str) -> None:
    FAMILIES["qwen2.5"].write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ConfigError, match=sentence):
        Template.of(tmp_path)


def test_the_template_is_found_in_each_of_its_files(tmp_path: Path) -> None:
    family = FAMILIES["qwen2.5"]
    wanted = family.read(tmp_path).first("Sell.", SHOP, "What?")
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": family.template}))
    assert Template.of(tmp_path).first("Sell.", SHOP, "What?") == wanted
    (tmp_path / "chat_template.json").unlink()
    named = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": family.template}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Template.of(tmp_path).first("Sell.", SHOP, "What?") == wanted
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Template.of(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Template.of(tmp_path).writer is COMPACT, "the tokenizer has its tokens"
