"""Tool calls as models write them, well and badly."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat.tool_call_parsers import KINDS, MAX_CALL_LENGTH, MAX_CALLS, parse
from agentrl.chat.tool_specs import ToolSpec
from agentrl.errors import ConfigError


def tool(name: str, **types: str) -> ToolSpec:
    return ToolSpec(
        name=name, schema={"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}
    )


TOOLS = [
    tool("lookup", item="string"),
    tool("calculator", expr="string"),
    tool("search", query="string", limit="integer", filters="object"),
    tool("now"),
]


def calls(kind: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    parsed = parse(kind, text, TOOLS)
    assert parsed.errors == []
    return [(call.name, call.arguments) for call in parsed.calls]


# ---- Qwen and Hermes ----


def test_qwen_calls_keep_their_order_and_the_text_around_them() -> None:
    text = (
        "Let me see.\n<tool_call>\n"
        '{"name": "lookup", "arguments": {"item": "pear"}}\n</tool_call> and <tool_call>'
        '{"name": "now", "arguments": {}}</tool_call> done'
    )
    parsed = parse("qwen", text)
    assert [(call.name, call.arguments) for call in parsed.calls] == [("lookup", {"item": "pear"}), ("now", {})]
    assert parsed.content == "Let me see.\n and  done"
    assert parsed.errors == []


def test_qwen_accepts_the_variants_that_models_write() -> None:
    for body in (
        '{"name": "now"}',
        '{"name": "now", "arguments": null}',
        '{"name": "now", "arguments": ""}',
        '{"name": "now", "parameters": {}}',
        '{"name": "now", "arguments": "{}"}',
        '{"function": {"name": "now", "arguments": {}}}',
    ):
        assert calls("qwen", f"<tool_call>{body}</tool_call>") == [("now", {})]
    assert calls("qwen", '<tool_call>{"name": "lookup", "arguments": {"item": "a\nb"}}</tool_call>') == [
        ("lookup", {"item": "a\nb"})
    ]


def test_qwen_code_needs_no_escaping() -> None:
    text = (
        '<tool_call>\n{"name": "python", "arguments": {"t": 1}}\n<code>\nprint("hi\\n")\nx = {1}\n</code>\n</tool_call>'
    )
    assert calls("qwen", text) == [("python", {"t": 1, "code": 'print("hi\\n")\nx = {1}'})]
    twice = '<tool_call>{"name": "python", "arguments": {"code": "1"}}<code>2</code></tool_call>'
    assert "and an argument" in parse("qwen", twice).errors[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('<tool_call>{"name": "lookup", "arguments": {"item": "pe', "no closing </tool_call>"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "lookup", "arguments": {"item": "pear"}</tool_call>', "not valid JSON"),
        ("<tool_call>{'name': 'lookup'}</tool_call>", "not valid JSON"),
        ('<tool_call>["lookup"]</tool_call>', "not a JSON object with"),
        ('<tool_call>"lookup"</tool_call>', "not a JSON object with"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        ('<tool_call>{"name": 5, "arguments": {}}</tool_call>', '"name" is missing or not a text'),
        ('<tool_call>{"name": " ", "arguments": {}}</tool_call>', '"name" is missing or not a text'),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "is not a JSON object"),
        ('<tool_call>{"name": "a", "arguments": "{"}</tool_call>', "not valid JSON"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is not a number"),
        ('<tool_call>{"name": "a"} {"name": "b"}</tool_call>', "there is text after its JSON"),
        ("<tool_call>" + "[" * 5000 + "</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "[" * 200 + "]" * 200 + "}}</tool_call>", "nested more than"),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "not valid JSON"),
        ("<tool_call>" + "x" * (MAX_CALL_LENGTH + 1) + "</tool_call>", "longer than"),
    ],
)
def test_malformed_qwen_calls_are_reported_and_not_guessed(text: str, sentence: str) -> None:
    parsed = parse("qwen", f"Before {text} after")
    assert parsed.calls == []
    assert len(parsed.errors) == 1
    assert sentence in parsed.errors[0]
    assert len(parsed.errors[0]) < 300


def test_a_good_call_beside_a_malformed_one_is_kept_and_the_error_reported() -> None:
    good = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parsed = parse("qwen", f"<tool_call>broken<tool_call>more{good}<tool_call>")
    assert [call.name for call in parsed.calls] == ["now"]
    assert len(parsed.errors) == 3


def test_too_many_calls_in_a_turn_are_reported() -> None:
    parsed = parse("qwen", '<tool_call>{"name": "now"}</tool_call>' * (MAX_CALLS + 5))
    assert len(parsed.calls) == MAX_CALLS
    assert "At most" in parsed.errors[0]


# ---- Python ----


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("lookup(pear)", [("lookup", {"item": "pear"})]),
        ('lookup("red pear")', [("lookup", {"item": "red pear"})]),
        ("lookup(12)", [("lookup", {"item": "12"})]),
        ("lookup(item-7)", [("lookup", {"item": "item-7"})]),
        ("calculator(3*(4+5)-2)", [("calculator", {"expr": "3*(4+5)-2"})]),
        ("calculator(expr='1/2')", [("calculator", {"expr": "1/2"})]),
        ('search("a", 3)', [("search", {"query": "a", "limit": 3})]),
        (
            'search("a", filters={"x": [1, None, True]})',
            [("search", {"query": "a", "filters": {"x": [1, None, True]}})],
        ),
        ("search(query='a', limit=true)", [("search", {"query": "a", "limit": True})]),
        ("now()", [("now", {})]),
        ("lookup(a)\nnow()", [("lookup", {"item": "a"}), ("now", {})]),
        ("[lookup(a), now()]", [("lookup", {"item": "a"}), ("now", {})]),
        ("```python\nnow()\n```", [("now", {})]),
        ("shop.other(1, b=-2.5)", [("shop.other", {"0": 1, "b": -2.5})]),
    ],
)
def test_python_calls(body: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls("minicpm", f"I think <tool_call>{body}</tool_call>") == expected
    assert calls("minicpm", f"I think <|tool_call_start|>\n{body}\n<|tool_call_end|>") == expected


def test_minicpm_thoughts_stay_in_the_content() -> None:
    text = "<|thought_start|>\nI look.\n<|thought_end|>\n<|tool_call_start|>now()<|tool_call_end|>"
    parsed = parse("minicpm", text, TOOLS)
    assert (parsed.content, len(parsed.calls)) == ("I look.", 1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "it is empty"),
        ("lookup(pear", "not a valid call"),
        ("lookup(red pear)", "not a valid call"),
        ("lookup", "not a call"),
        ("x = lookup(a)", "not a call"),
        ("import os", "not a call"),
        ("[x for x in y]", "not a call"),
        ("f()()", "not a plain name"),
        ("(lambda: 1)()", "not a plain name"),
        ("lookup(*items)", "star"),
        ("lookup(**items)", "star"),
        ("lookup(a, b)", "takes 1 arguments, not 2"),
        ("lookup(a, item=b)", "given item twice"),
        ("search(query=1, query=2)", "query is given twice"),
        ("lookup(\x00)", ""),
        ("lookup(" + "(" * 3000 + ")" * 3000 + ")", ""),
        ("lookup(" + "-" * 20_000 + "1)", ""),
        ("a" + ".b" * 20_000 + "()", ""),
        ("lookup(" + "9" * 10_000 + ")", ""),
        ("x" * 70_000, "longer than"),
    ],
)
def test_python_that_is_not_a_call_is_reported(body: str, sentence: str) -> None:
    parsed = parse("minicpm", f"<tool_call>{body}</tool_call>", TOOLS)
    assert parsed.calls == []
    assert len(parsed.errors) == 1
    assert parsed.errors[0].startswith("Malformed tool call: ")
    assert sentence in parsed.errors[0]


def test_text_is_never_evaluated() -> None:
    parsed = parse("minicpm", "<tool_call>lookup(__import__('os').system('false'))</tool_call>", TOOLS)
    assert parsed.calls[0].arguments == {"item": "__import__('os').system('false')"}


# ---- JSON of the OpenAI kind ----


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_calls": [{"id": "1", "function": {"name": "lookup", "arguments": "{\\"item\\": \\"a\\"}"}}]}',
        '{"content": null, "tool_calls": [{"function": {"name": "lookup", "arguments": {"item": "a"}}}]}',
        '[{"name": "lookup", "arguments": {"item": "a"}}]',
        '{"name": "lookup", "arguments": {"item": "a"}}',
        '```json\n{"name": "lookup", "arguments": {"item": "a"}}\n```',
    ],
)
def test_openai_shapes(text: str) -> None:
    assert calls("openai", text) == [("lookup", {"item": "a"})]
    assert calls("openai", f"Let me see. {text}") == [("lookup", {"item": "a"})]


def test_openai_parallel_calls_are_all_kept() -> None:
    listed = [{"function": {"name": name, "arguments": "{}"}} for name in ("a", "b", "c")]
    parsed = parse("openai", json.dumps({"content": "Now.", "tool_calls": listed}))
    assert [call.name for call in parsed.calls] == ["a", "b", "c"]
    assert parsed.content == "Now."


def test_openai_answers_that_are_json_are_no_calls() -> None:
    for text in ("plain words", '{"answer": 5}', "[1, 2, 3]", "The set {1, 2}.", '{"name": "Ann", "age": 5}', ""):
        parsed = parse("openai", text)
        assert (parsed.calls, parsed.errors, parsed.content) == ([], [], text)


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ('{"tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}', 1),
        ('{"tool_calls": [{"function": {"name": "a"', 1),
        ('{"tool_calls": [5, {"name": ""}, {"function": []}]}', 3),
        ('{"name": "a", "arguments": 5}', 1),
    ],
)
def test_openai_malformed_calls_are_reported(text: str, errors: int) -> None:
    parsed = parse("openai", text)
    assert parsed.calls == []
    assert len(parsed.errors) == errors


# ---- all kinds ----


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(KINDS),
    pieces=st.lists(
        st.sampled_from(
            [
                *(
                    "<tool_call>",
                    "</tool_call>",
                    "<|tool_call_start|>",
                    "<|tool_call_end|>",
                    "<code>",
                    "</code>",
                    "```",
                ),
                *(
                    '{"name": "a", "arguments": {',
                    "}}",
                    '"',
                    "{",
                    "[",
                    "]",
                    "\\",
                    "lookup(",
                    ")",
                    ",",
                    "=",
                    "\n",
                    "\x00",
                ),
                *("<|python_tag|>", "<function=a>", "</function>", "<parameter=b>", "</parameter>", ";"),
                *("[TOOL_CALLS]", "[ARGS]", "```tool_code\n", "print(", "[now(", "to=functions.a", "<|message|>"),
                *("<|call|>", "<|start|>assistant", "<|channel|>analysis", "<|channel|>final", '"parameters": {'),
                *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "function"),
                *('{"tool_calls": [', '"function":', "NaN", "é", "```", "\x00", "\ud800", "'", "pear", " "),
            ]
        )
        | st.text(max_size=5),
        max_size=30,
    ),
)
def test_parsing_accepts_any_text(kind: str, pieces: list[str]) -> None:
    parsed = parse(kind, "".join(pieces), TOOLS)
    for call in parsed.calls:
        assert call.name
        json.dumps(call.arguments, allow_nan=False)


def test_long_texts_are_read_in_time() -> None:
    for kind in KINDS:
        for piece in (
            *("<tool_call>", "<tool_call>{", "<code>", "```json\n", "[ ", '{"name" :', "<|tool_call_start|>("),
            *("<function=a>", "<parameter=a>", "[TOOL_CALLS]", "a[ARGS]", "```tool_code\n", "<|start|>assistant"),
            *("to=functions.a", "<|message|>", "<｜tool▁call▁begin｜>", "<|python_tag|>{}", "[a(", "{};", "  "),
        ):
            began = time.process_time()
            parse(kind, piece * 20_000, TOOLS)
            assert time.process_time() - began < 5, (kind, piece)


def test_an_unknown_parser_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="known are openai, qwen, qwen_coder, minicpm, llama"):
        parse("yaml", "text")
