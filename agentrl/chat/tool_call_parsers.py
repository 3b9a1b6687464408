"""Reads tool calls from the text of an assistant, with the errors of malformed calls and the rest of the text.

Invariants:
- Parsing accepts any text and never executes it.
- A call that cannot be read becomes an error with a sentence for the model, it is never dropped or guessed.
- Calls keep their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from agentrl.chat import family_calls
from agentrl.chat.call_reading import (
    MAX_CALL_LENGTH,
    MAX_CALLS,
    Call,
    Malformed,
    Parsed,
    call_of,
    calls_in_python,
    json_at,
    json_of,
    tagged,
)
from agentrl.chat.tool_specs import ToolSpec, by_name
from agentrl.errors import ConfigError

__all__ = ["KINDS", "MAX_CALLS", "MAX_CALL_LENGTH", "Call", "Malformed", "Parsed", "call_of", "parse", "written"]

_EMPTY_THOUGHT = re.compile(r"\A<think>\s*</think>\s*")
_TAGS = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_CODE = re.compile(r"<code>\n?(.*?)\n?</code>", re.DOTALL)
_OPEN, _SHUT = r"<(?:\|tool_call_start\||tool_call)>", r"<(?:\|tool_call_end\||/tool_call)>"
_MINICPM = re.compile(rf"{_OPEN}(.*?)({_SHUT}|(?={_OPEN})|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"<\|thought_start\|>(.*?)<\|thought_end\|>", re.DOTALL)


def parse(kind: str, text: str, tools: Iterable[ToolSpec] = ()) -> Parsed:
    """Reads a text in the format of this kind. `tools` gives names to positional arguments."""
    parsed = _of(kind).read(text, by_name(tools))
    if len(parsed.calls) > MAX_CALLS:
        parsed.errors.append(f"At most {MAX_CALLS} tool calls are allowed in one turn, not {len(parsed.calls)}.")
        parsed.calls = parsed.calls[:MAX_CALLS]
    return parsed


def written(kind: str, calls: Sequence[Call]) -> str:
    """The text of these calls in the format of this kind, for demonstrations."""
    return _of(kind).write(calls)


def reading(text: str, call: Call) -> tuple[str, ...]:
    """The kinds that read this text as this call, without any content except an empty thought."""
    parsed = Parsed(calls=[call])
    return tuple(kind for kind in KINDS if parse(kind, _EMPTY_THOUGHT.sub("", text)) == parsed)


class _Kind(NamedTuple):
    read: Callable[[str, dict[str, ToolSpec]], Parsed]
    write: Callable[[Sequence[Call]], str]


def _of(kind: str) -> _Kind:
    found = _KINDS.get(kind)
    if found is None:
        raise ConfigError(f"There is no parser {kind!r} of tool calls; known are {', '.join(KINDS)}.")
    return found


# ---- tags around each call ----


def _qwen(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    return tagged(text, _TAGS, "</tool_call>", lambda inside: [_hermes_call(inside)])


def _hermes_call(inside: str) -> Call:
    """`{"name": .., "arguments": {..}}`, optionally with a block of code that needs no escaping."""
    code = _CODE.search(inside)
    if code is None:
        return call_of(json_of(inside))
    call = call_of(json_of((inside[: code.start()] + inside[code.end() :]).strip()))
    if "code" in call.arguments:
        raise Malformed('it has a <code> block and an argument "code"')
    call.arguments["code"] = code[1]
    return call


def _write_qwen(calls: Sequence[Call]) -> str:
    bodies = [_json({"name": call.name, "arguments": call.arguments}) for call in calls]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def _minicpm(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    """Calls written as Python, between the tags of MiniCPM or plain ones."""
    parsed = tagged(text, _MINICPM, "end tag", lambda inside: calls_in_python(inside, tools))
    parsed.content = _THOUGHT.sub(lambda match: match[1], parsed.content).strip()
    return parsed


def _write_minicpm(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>{family_calls.in_python(call)}</tool_call>" for call in calls)


# ---- JSON ----


def _openai(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    """A message object with `tool_calls`, a list of calls or one call; other text or a fence may surround it."""
    fenced = re.search(r"```(?:json)?\n(.*?)\n?```", text, re.DOTALL)
    body, around = (fenced[1], text[: fenced.start()] + text[fenced.end() :]) if fenced else (text, "")
    start = _start_of_call(body)
    if start is None:
        return Parsed(content=text.strip())
    parsed = Parsed(content=(around + body[:start]).strip())
    try:
        if len(body) > MAX_CALL_LENGTH:
            raise Malformed(f"it is longer than {MAX_CALL_LENGTH} characters")
        value, end = json_at(body, start)
    except Malformed as wrong:
        parsed.errors.append(f"Malformed tool call: {wrong}.")
        return parsed
    parsed.content = f"{parsed.content} {body[end:].strip()}".strip()
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        parsed.content = f"{parsed.content} {value['content']}".strip()
    for one in _listed_calls(value):
        try:
            parsed.calls.append(call_of(one))
        except Malformed as wrong:
            parsed.errors.append(f"Malformed tool call: {wrong}.")
    return parsed


def _write_openai(calls: Sequence[Call]) -> str:
    listed = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return json.dumps({"tool_calls": listed}, ensure_ascii=False)


_CALL_START = re.compile(r'[\[{]\s*(?:[\[{]\s*)?"(?:tool_calls|function|name|id|type|role|content|arguments)"\s*:')


def _start_of_call(text: str) -> int | None:
    """The position of an object with the keys of a call. Other JSON belongs to the answer."""
    match = _CALL_START.search(text)
    if match is None or not re.search(r'"(?:tool_calls|function|arguments)"\s*:', text):
        return None
    return match.start()


def _listed_calls(value: Any) -> list[Any]:
    if isinstance(value, dict) and "tool_calls" in value:
        value = value["tool_calls"]
    return value if isinstance(value, list) else [value]


_OWN_TAGS = re.compile(r"<(?=/?(?:tool_call|code)>)")


def _json(value: Any) -> str:
    """Writes JSON in which tags of a call are escaped."""
    return _OWN_TAGS.sub(r"\\u003c", json.dumps(value, ensure_ascii=False))


_KINDS: dict[str, _Kind] = {
    "openai": _Kind(_openai, _write_openai),
    "qwen": _Kind(_qwen, _write_qwen),
    "qwen_coder": _Kind(family_calls.read_qwen_coder, family_calls.write_qwen_coder),
    "minicpm": _Kind(_minicpm, _write_minicpm),
    "llama": _Kind(family_calls.read_llama, family_calls.write_llama),
    "pythonic": _Kind(family_calls.read_pythonic, family_calls.write_pythonic),
    "mistral": _Kind(family_calls.read_mistral, family_calls.write_mistral),
    "gemma": _Kind(family_calls.read_gemma, family_calls.write_gemma),
    "gpt_oss": _Kind(family_calls.read_gpt_oss, family_calls.write_gpt_oss),
    "deepseek": _Kind(family_calls.read_deepseek, family_calls.write_deepseek),
}
KINDS = tuple(_KINDS)
