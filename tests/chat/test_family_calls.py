"""Tool calls in the formats of model families, and the calls that their templates write."""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentrl.chat.own_template import OwnTemplate
from agentrl.chat.tool_call_parsers import KINDS, Call, parse, reading, written
from agentrl.chat.tool_specs import ToolSpec
from tests.chat.families import FAMILIES
from tests.chat.test_tool_call_parsers import TOOLS

PEAR, NOW = ("lookup", {"item": "pear"}), ("now", {})
SEP = "<｜tool▁sep｜>"
FENCED = f'function{SEP}lookup\n```json\n{{"item": "pear"}}\n```'


def deepseek(*bodies: str) -> str:
    return "".join(f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>" for body in bodies)


@pytest.mark.parametrize(
    ("kind", "text", "expected", "content"),
    [
        ("llama", '{"name": "lookup", "parameters": {"item": "pear"}}', [PEAR], ""),
        ("llama", '{"type": "function", "name": "now", "parameters": {}}', [NOW], ""),
        ("llama", '<|python_tag|>{"name": "now", "parameters": {}}', [NOW], ""),
        (
            "llama",
            'I look.<|python_tag|>{"name": "lookup", "parameters": {"item": "pear"}}; {"name": "now", "arguments": {}}',
            [PEAR, NOW],
            "I look.",
        ),
        (
            "llama",
            '[{"name": "lookup", "parameters": {"item": "pear"}}]\n{"name": "now", "parameters": null}',
            [PEAR, NOW],
            "",
        ),
        ("llama", '<|python_tag|>brave.call(query="x")', [("brave.call", {"query": "x"})], ""),
        ("llama", 'So: <function=lookup>{"item": "pear"}</function><function=now></function>', [PEAR, NOW], "So:"),
        ("pythonic", '[lookup(item="pear"), now()]', [PEAR, NOW], ""),
        ("pythonic", "<|python_start|>[lookup(pear)]<|python_end|>", [PEAR], ""),
        ("mistral", '[TOOL_CALLS] [{"name": "lookup", "arguments": {"item": "pear"}, "id": "123456789"}]', [PEAR], ""),
        ("mistral", 'I see.[TOOL_CALLS]lookup{"item": "pear"}[TOOL_CALLS]now{}', [PEAR, NOW], "I see."),
        ("mistral", '[TOOL_CALLS]lookup[CALL_ID]1a2b[ARGS]{"item": "pear"}[TOOL_CALLS]now[ARGS]{}', [PEAR, NOW], ""),
        ("gemma", 'I look.\n```tool_code\nlookup(item="pear")\nnow()\n```', [PEAR, NOW], "I look."),
        ("gemma", "```tool_code\nprint(lookup(item='pear'))\n```", [PEAR], ""),
        ("gemma", '[lookup(item="pear")]', [PEAR], ""),
        ("gemma", '```json\n{"name": "lookup", "parameters": {"item": "pear"}}\n```', [PEAR], ""),
        (
            "gpt_oss",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.lookup "
            '<|constrain|>json<|message|>{"item": "pear"}',
            [PEAR],
            "",
        ),
        ("gpt_oss", ' to=functions.lookup<|channel|>commentary json<|message|>{"item": "pear"}<|call|>', [PEAR], ""),
        (
            "gpt_oss",
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.now<|channel|>commentary"
            "<|message|>{}<|call|>",
            [NOW],
            "I look.",
        ),
        ("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>3", [], "3"),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜>" + deepseek(FENCED) + "\n<｜tool▁calls▁end｜>",
            [PEAR],
            "",
        ),
        ("deepseek", "I see." + deepseek(f'lookup{SEP}{{"item": "pear"}}', f"now{SEP}{{}}"), [PEAR, NOW], "I see."),
        (
            "qwen_coder",
            "I look.\n<tool_call>\n<function=lookup>\n<parameter=item>\npear\n</parameter>\n</function>\n</tool_call>",
            [PEAR],
            "I look.",
        ),
        (
            "qwen_coder",
            "<function=search>\n<parameter=query>\n12\n</parameter>\n<parameter=limit>3</parameter>\n</function>",
            [("search", {"query": "12", "limit": 3})],
            "",
        ),
    ],
)
def test_calls_of_each_family(kind: str, text: str, expected: list[tuple[str, dict[str, Any]]], content: str) -> None:
    parsed = parse(kind, text, TOOLS)
    assert parsed.errors == []
    assert [(call.name, call.arguments) for call in parsed.calls] == expected
    assert parsed.content == content


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("llama", '{"name": "lookup", "parameters": {"item": "pe', "not valid JSON"),
        ("llama", '{"name": "lookup", "parameters": 3}', "is not a JSON object"),
        ("llama", '<|python_tag|>{"nam', "not valid JSON"),
        ("llama", "<function=lookup>{}", "has no closing </function>"),
        ("pythonic", "[lookup(item=", "not a valid call"),
        ("mistral", "[TOOL_CALLS]", "nothing follows"),
        ("mistral", '[TOOL_CALLS] [{"name": "lookup", "arguments": {"item"', "not valid JSON"),
        ("mistral", "[TOOL_CALLS]lookup", "not a name and a JSON object"),
        ("gemma", "```tool_code\nlookup(item=", "has no closing ```"),
        ("gemma", "```tool_code\nx = 3\n```", "not a call"),
        ("gpt_oss", "<|channel|>commentary to=functions.lookup", "has no <|message|>"),
        (
            "gpt_oss",
            '<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{"item": "pe',
            "not valid JSON",
        ),
        ("deepseek", f"<｜tool▁call▁begin｜>function{SEP}lookup", "has no closing"),
        ("deepseek", deepseek("lookup"), "has no <｜tool▁sep｜>"),
        ("qwen_coder", "<tool_call>\n<function=lookup>\n<parameter=item>\npear", "has no closing </function>"),
        ("qwen_coder", "<function=lookup>\n<parameter=item>\npear\n</function>", "item has no closing </parameter>"),
        ("qwen_coder", "<function=>\n</function>", "has no name"),
    ],
)
def test_malformed_calls_are_reported_and_not_guessed(kind: str, text: str, sentence: str) -> None:
    parsed = parse(kind, text, TOOLS)
    assert parsed.calls == []
    assert len(parsed.errors) == 1
    assert sentence in parsed.errors[0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "openai"])
@pytest.mark.parametrize(
    "text", ["It is 3.", '{"name": "Ann", "age": 3}', "[1, 2]", '["a"]', "See `f(x)`.", "```\nx = 3\n```", "a; b", ""]
)
def test_answers_are_no_calls(kind: str, text: str) -> None:
    parsed = parse(kind, text, TOOLS)
    assert (parsed.calls, parsed.errors, parsed.content) == ([], [], text)


def test_what_precedes_a_malformed_call_is_kept() -> None:
    parsed = parse("mistral", '[TOOL_CALLS]lookup{"item": "pear"}[TOOL_CALLS]now{', TOOLS)
    assert ([call.name for call in parsed.calls], len(parsed.errors)) == (["lookup"], 1)


NAMES = st.from_regex(r"[a-z]{1,5}[0-9]{0,2}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name not in ("true", "false", "null", "print")
)
TEXT = st.text(max_size=12).filter(lambda text: text == text.encode(errors="ignore").decode()) | st.sampled_from(
    [
        *("</tool_call>", "<tool_call>", "```", "<|end|>", "<|call|>", "[TOOL_CALLS]", "<|message|>", "to=x "),
        *("<function=a>", "</function>", "<｜tool▁call▁end｜>", SEP, "12", "true", '"', "\\", "'", "\n", "; {"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.builds(Call, NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3)


def specs(calls: list[Call]) -> list[ToolSpec]:
    """Tools whose texts are declared as such."""
    return [
        ToolSpec(
            name=call.name,
            schema={
                "properties": {
                    key: {"type": "string"} for key, value in call.arguments.items() if isinstance(value, str)
                }
            },
        )
        for call in calls
    ]


@settings(deadline=None, max_examples=100)
@given(kind=st.sampled_from(KINDS), calls=CALLS)
def test_written_calls_are_read_back_and_cut_off_calls_are_not_misread(kind: str, calls: list[Call]) -> None:
    if kind == "qwen_coder":
        # This format does not escape values, and it reads values as JSON unless they are declared as text.
        values = [value for call in calls for value in call.arguments.values()]
        assume(not any("<" in json.dumps(value) for value in values))
        assume(not any(isinstance(value, str) and value != value.strip("\n") for value in values))
        assume(len({call.name for call in calls}) == len(calls))
    text = written(kind, calls)
    tools = specs(calls) if kind == "qwen_coder" else []
    parsed = parse(kind, text, tools)
    assert parsed.errors == []
    assert parsed.calls == calls
    for cut in range(len(text)):
        begun = parse(kind, text[:cut], tools)
        assert begun.calls == calls[: len(begun.calls)], "the beginning of a text contains no other call"


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma"])
def test_the_parser_of_a_family_reads_what_its_template_writes(name: str, tmp_path: Path) -> None:
    template = FAMILIES[name].read(tmp_path)
    assert isinstance(template.writer, OwnTemplate)
    call = Call("lookup", {"item": "pear", "count": 3, "more": [None, True, "é"]})
    ids = template._encode(template.writer.sampled("", [call]))
    text = template.tokenizer.decode(ids[:-1])
    assert FAMILIES[name].parser in reading(text, call)
    assert template.parsers() == reading(text, call)
    parsed = parse(FAMILIES[name].parser, text)
    assert (parsed.calls, parsed.errors) == ([call], [])
    assert parsed.content.replace("<think>\n\n</think>", "") == ""
    assert parse(FAMILIES[name].parser, text[: len(text) // 2]).calls == [], "cut off"
