"""Reads and writes tool calls in the formats of model families: Llama, Mistral, Gemma, gpt-oss, DeepSeek, Qwen3-Coder.

Invariants:
- A truncated call is an error. It is never read as a shorter call.
- The reader of a format reads the text of its writer as the same calls.
- Text that does not begin like a call is content, even if it is JSON or names tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.chat.call_reading import (
    MAX_CALLS,
    Call,
    Malformed,
    Parsed,
    call_of,
    calls_in_python,
    json_at,
    json_of,
    read_into,
    tagged,
)
from agentrl.chat.tool_specs import ToolSpec

Tools = dict[str, ToolSpec]

# ---- Llama 3: JSON, with or without a token before it ----

_PYTHON_TAG = "<|python_tag|>"
_NAMED = re.compile(r"<function=(.*?)(</function>|(?=<function=)|\Z)", re.DOTALL)
_LLAMA_BEGIN = re.compile(r'\[?\s*+\{\s*+"(?:type|name|function|parameters|arguments)"\s*:')
_LLAMA_ARGUMENTS = re.compile(r'"(?:function|parameters|arguments)"\s*:')


def read_llama(text: str, tools: Tools) -> Parsed:
    """`{"name": .., "parameters": {..}}`, or several with `;` between them, or `<function=NAME>{..}</function>`."""
    if _NAMED.search(text):
        return tagged(text, _NAMED, "</function>", _llama_named)
    before, tag, body = text.partition(_PYTHON_TAG)
    if not tag:
        before, body = "", text
        if not _is_json_call(body):
            return Parsed(content=text.strip())
    parsed = Parsed(content=before.strip())
    in_json = not tag or body.lstrip().startswith(("{", "["))
    read_into(parsed, body, _json_calls(body, ";") if in_json else calls_in_python(body, tools))
    return parsed


def _is_json_call(text: str) -> bool:
    return bool(_LLAMA_BEGIN.match(text.lstrip()) and _LLAMA_ARGUMENTS.search(text))


def _llama_named(inside: str) -> Iterator[Call]:
    name, _, body = inside.partition(">")
    yield call_of({"name": name, "arguments": json_of(body) if body.strip() else {}})


def write_llama(calls: Sequence[Call]) -> str:
    return "; ".join(_json({"name": call.name, "parameters": call.arguments}) for call in calls)


def _json_calls(text: str, between: str) -> Iterator[Call]:
    """Reads JSON objects, or lists of them, separated by this character or by nothing."""
    at, count = 0, 0
    while text[at:].strip() and count <= MAX_CALLS:
        value, at = json_at(text, at)
        for one in value if isinstance(value, list) else [value]:
            yield call_of(one)
            count += 1
        rest = text[at:].lstrip()
        at = len(text) - len(rest.removeprefix(between))


# ---- a list of calls as Python: Llama 3.2 and 4, Gemma ----

_PYTHON_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")


def read_pythonic(text: str, tools: Tools) -> Parsed:
    """`[lookup(item="pear"), now()]` as the whole text."""
    body = text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>").strip()
    parsed = Parsed()
    if _PYTHON_LIST.match(body):
        read_into(parsed, body, calls_in_python(body, tools))
    else:
        parsed.content = text.strip()
    return parsed


def write_pythonic(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(in_python, calls))}]"


_PYTHON_TAGS = re.compile(r"<(?=/?tool_call>|\|)|`(?=``)")


def in_python(call: Call) -> str:
    """Writes calls as Python. Nothing in them can end the call early: only strings can contain a tag or a fence, and
    they are escaped."""
    values = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({_PYTHON_TAGS.sub(lambda found: f'{chr(92)}x{ord(found[0]):x}', values)})"


_TOOL_CODE = re.compile(r"```(?:tool_code|python)\n(.*?)(\n?```|\Z)", re.DOTALL)
_PRINTED = re.compile(r"\Aprint\((.*)\)\Z", re.DOTALL)


def read_gemma(text: str, tools: Tools) -> Parsed:
    """Python in a fence, or as the whole text; or a JSON object as the whole text."""
    if _TOOL_CODE.search(text):
        return tagged(text, _TOOL_CODE, "```", lambda inside: _gemma_calls(inside, tools))
    body = _unfenced(text)
    return read_llama(body, tools) if _is_json_call(body) else read_pythonic(text, tools)


def _gemma_calls(inside: str, tools: Tools) -> Iterator[Call]:
    printed = _PRINTED.match(inside)
    yield from calls_in_python(printed[1] if printed else inside, tools)


def write_gemma(calls: Sequence[Call]) -> str:
    lines = "\n".join(map(in_python, calls))
    return f"```tool_code\n{lines}\n```"


# ---- Mistral ----

_TOOL_CALLS = "[TOOL_CALLS]"
_MISTRAL_NAME = re.compile(r"\s*+([\w.:-]++)\s*+(?:\[CALL_ID\]\s*+[\w-]*+\s*+)?(?:\[ARGS\])?\s*+(?=\{)")


def read_mistral(text: str, tools: Tools) -> Parsed:
    """`[TOOL_CALLS] [{"name": .., "arguments": {..}}]`, or `[TOOL_CALLS]NAME{..}` for each call."""
    before, tag, body = text.partition(_TOOL_CALLS)
    parsed = Parsed(content=before.strip())
    if tag:
        read_into(parsed, body, _mistral_calls(body))
    return parsed


def _mistral_calls(body: str) -> Iterator[Call]:
    if not body.strip():
        raise Malformed(f"nothing follows {_TOOL_CALLS}")
    if body.lstrip().startswith(("[{", "[ ", "[\n", "[]", "{")):
        yield from _json_calls(body, _TOOL_CALLS)
        return
    at = count = 0
    while body[at:].strip() and count <= MAX_CALLS:
        named = _MISTRAL_NAME.match(body, at)
        if named is None:
            raise Malformed("it is not a name and a JSON object")
        arguments, at = json_at(body, named.end())
        yield call_of({"name": named[1], "arguments": arguments})
        count += 1
        rest = body[at:].lstrip()
        at = len(body) - len(rest.removeprefix(_TOOL_CALLS))


def write_mistral(calls: Sequence[Call]) -> str:
    return f"{_TOOL_CALLS} [{', '.join(_json({'name': call.name, 'arguments': call.arguments}) for call in calls)}]"


# ---- gpt-oss: messages on channels ----

_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>(?:<\|start\|>assistant)?|<\|start\|>assistant")
_RECIPIENT = re.compile(r"\bto=(\S+?)(?=[\s<]|\Z)")


def read_gpt_oss(text: str, tools: Tools) -> Parsed:
    """Messages to functions are calls; messages on the channel `analysis` are thoughts and not content."""
    parsed = Parsed()
    content = []
    for message in _HARMONY_END.split(text):
        header, begun, body = message.partition("<|message|>")
        recipient = _RECIPIENT.search(header)
        if recipient is None:
            if "analysis" not in header:
                content.append(body if begun else header)
            continue
        name = recipient[1].removeprefix("functions.")
        read_into(parsed, body, _harmony_call(name, body if begun else None))
    parsed.content = "\n".join(part.strip() for part in content if part.strip())
    return parsed


def _harmony_call(name: str, body: str | None) -> Iterator[Call]:
    if body is None:
        raise Malformed(f"the call of {name} has no <|message|>")
    yield call_of({"name": name, "arguments": json_of(body)})


def write_gpt_oss(calls: Sequence[Call]) -> str:
    """Only the last message of a turn ends with the token at which generation stops."""
    begin, body = "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
    return "<|call|><|start|>assistant".join(f"{begin}{call.name}{body}{_json(call.arguments)}" for call in calls)


# ---- DeepSeek ----

_DEEPSEEK = re.compile(r"<｜tool▁call▁begin｜>(.*?)(<｜tool▁call▁end｜>|(?=<｜tool▁call▁begin｜>)|\Z)", re.DOTALL)
_DEEPSEEK_AROUND = re.compile(r"<｜tool▁calls▁(?:begin|end)｜>")


def read_deepseek(text: str, tools: Tools) -> Parsed:
    """`function<sep>NAME` with JSON in a fence, or `NAME<sep>{..}`."""
    parsed = tagged(text, _DEEPSEEK, "<｜tool▁call▁end｜>", lambda inside: [_deepseek_call(inside)])
    parsed.content = _DEEPSEEK_AROUND.sub("", parsed.content).strip()
    return parsed


def _deepseek_call(inside: str) -> Call:
    name, separated, body = inside.partition("<｜tool▁sep｜>")
    if not separated:
        raise Malformed("it has no <｜tool▁sep｜> between its name and its arguments")
    if name.strip() == "function" and not body.lstrip().startswith("{"):
        name, _, body = body.strip().partition("\n")
    return call_of({"name": name.strip(), "arguments": json_of(_unfenced(body))})


def write_deepseek(calls: Sequence[Call]) -> str:
    inside = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n{_json(call.arguments)}\n```<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


# ---- Qwen3-Coder: arguments as tags ----

_FUNCTION = re.compile(
    r"(?:<tool_call>\s*)?<function=(.*?)(</function>(?:\s*</tool_call>)?|(?=<function=)|\Z)", re.DOTALL
)
_PARAMETER = re.compile(r"<parameter=([^>]*)>\n?(.*?)(\n?</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


def read_qwen_coder(text: str, tools: Tools) -> Parsed:
    """`<function=NAME><parameter=ARGUMENT>value</parameter></function>` within `<tool_call>`."""
    return tagged(text, _FUNCTION, "</function>", lambda inside: [_qwen_coder_call(inside, tools)])


def _qwen_coder_call(inside: str, tools: Tools) -> Call:
    name, closed, body = inside.partition(">")
    if not closed or not name.strip():
        raise Malformed("it has no name")
    call, tool = Call(name.strip()), tools.get(name.strip())
    for argument, value, end in _PARAMETER.findall(body):
        if not end:
            raise Malformed(f"{argument} has no closing </parameter>")
        if argument in call.arguments:
            raise Malformed(f"{call.name} is given {argument} twice")
        call.arguments[argument] = value if tool is not None and tool.wants_text(argument) else _value_of(value)
    return call


def _value_of(text: str) -> Any:
    try:
        return json_of(text)
    except Malformed:
        return text


def write_qwen_coder(calls: Sequence[Call]) -> str:
    return "\n".join(_qwen_coder_text(call) for call in calls)


def _qwen_coder_text(call: Call) -> str:
    values = []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        values.append(f"<parameter={name}>\n{text}\n</parameter>")
    return "\n".join(["<tool_call>", f"<function={call.name}>", *values, "</function>", "</tool_call>"])


# ---- shared ----


def _unfenced(text: str) -> str:
    """Removes a fence around the whole text."""
    body = text.strip()
    if len(body) < 7 or not (body.startswith("```") and body.endswith("```")):
        return text
    return body.removesuffix("```").partition("\n")[2]


_JSON_TAGS = re.compile(r"<(?=[|｜]|/?function)")


def _json(value: Any) -> str:
    """Writes JSON. Nothing in it can end the call early: only strings can contain a tag or a control token, and they
    are escaped."""
    return _JSON_TAGS.sub("\\\\u003c", json.dumps(value, ensure_ascii=False))
