"""What an assistant's text asks for: tool calls, what was malformed about them, and the rest of the text.

Invariants: parsing never fails and never runs anything, whatever the model wrote; a call that cannot be read is an
error with a sentence for the model, never dropped silently and never guessed; calls keep their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from agentrl.chat import python_calls
from agentrl.chat.tool_specs import ToolSpec, by_name
from agentrl.errors import ConfigError

LONGEST_CALL = 1 << 18
"""Characters of one call; what is longer is refused rather than parsed."""
MOST_CALLS = 64
_DEEPEST = 100


class Call(msgspec.Struct):
    """One tool call."""

    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Parsed(msgspec.Struct):
    """Everything that a text says."""

    calls: list[Call] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)
    """One sentence for each call that could not be read."""
    content: str = ""
    """The text around the calls."""


class Malformed(ValueError):
    """A call that cannot be read; the message is for the model."""


_TAGS = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_CODE = re.compile(r"<code>\n?(.*?)\n?</code>", re.DOTALL)
_OPEN, _SHUT = r"<(?:\|tool_call_start\||tool_call)>", r"<(?:\|tool_call_end\||/tool_call)>"
_MINICPM = re.compile(rf"{_OPEN}(.*?)({_SHUT}|(?={_OPEN})|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"<\|thought_start\|>(.*?)<\|thought_end\|>", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n(.*?)\n?```\s*\Z", re.DOTALL)


def parse(kind: str, text: str, tools: Iterable[ToolSpec] = ()) -> Parsed:
    """Read a text as models of this kind write it. `tools` names arguments that are given by position."""
    read = _KINDS.get(kind)
    if read is None:
        raise ConfigError(f"There is no parser {kind!r} of tool calls; known are {', '.join(KINDS)}.")
    parsed = read(text, by_name(tools))
    if len(parsed.calls) > MOST_CALLS:
        parsed.errors.append(f"At most {MOST_CALLS} tool calls are allowed in one turn, not {len(parsed.calls)}.")
        parsed.calls = parsed.calls[:MOST_CALLS]
    return parsed


# ---- tags around each call ----


def _tagged(text: str, tag: re.Pattern[str], end: str, read: Callable[[str], Iterable[Call]]) -> Parsed:
    parsed = Parsed()
    rest: list[str] = []
    at = 0
    for match in tag.finditer(text):
        rest.append(text[at : match.start()])
        at = match.end()
        try:
            if not match[2]:
                raise Malformed(f"it has no closing {end}")
            if len(match[1]) > LONGEST_CALL:
                raise Malformed(f"it is longer than {LONGEST_CALL} characters")
            parsed.calls.extend(read(match[1].strip()))
        except Malformed as wrong:
            parsed.errors.append(f"Malformed tool call: {wrong}.")
    parsed.content = "".join([*rest, text[at:]]).strip()
    return parsed


def _qwen(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    return _tagged(text, _TAGS, "</tool_call>", lambda inside: [_hermes_call(inside)])


def _hermes_call(inside: str) -> Call:
    """`{"name": .., "arguments": {..}}`, perhaps with a block of code that needs no escaping."""
    code = _CODE.search(inside)
    if code is None:
        return _call_of(_loads(inside))
    call = _call_of(_loads((inside[: code.start()] + inside[code.end() :]).strip()))
    if "code" in call.arguments:
        raise Malformed('it has a <code> block and an argument "code"')
    call.arguments["code"] = code[1]
    return call


def _minicpm(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    """Calls written as Python, between MiniCPM's own tags or plain ones."""
    parsed = _tagged(text, _MINICPM, "end tag", lambda inside: _python_calls(inside, tools))
    parsed.content = _THOUGHT.sub(lambda match: match[1], parsed.content).strip()
    return parsed


def _python_calls(inside: str, tools: dict[str, ToolSpec]) -> Iterator[Call]:
    fenced = _FENCE.match(inside)
    try:
        found = python_calls.read_calls(fenced[1] if fenced else inside)
    except ValueError as wrong:
        raise Malformed(str(wrong)) from None
    for call in found:
        yield Call(call.name, _named_arguments(call, tools.get(call.name)))


def _named_arguments(call: python_calls.PythonCall, tool: ToolSpec | None) -> dict[str, Any]:
    """By the names of the tool's own signature; an unknown tool's arguments keep their numbers."""
    names = tool.arguments if tool else tuple(map(str, range(len(call.positional))))
    if len(call.positional) > len(names):
        raise Malformed(f"{call.name} takes {len(names)} arguments, not {len(call.positional)}")
    given = [*zip(names, call.positional, strict=False), *call.named]
    arguments: dict[str, Any] = {}
    for name, value in given:
        if name in arguments:
            raise Malformed(f"{call.name} is given {name} twice")
        # What the tool wants as text is text, also where it reads like a number: `calculator(3*4)`, `lookup(12)`.
        as_text = tool is not None and tool.wants_text(name) and not isinstance(value.value, str)
        arguments[name] = value.source if as_text else value.value
    return arguments


# ---- JSON ----


def _openai(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    """A message object with `tool_calls`, a list of calls or one call; it may follow other text or stand in a fence."""
    fenced = re.search(r"```(?:json)?\n(.*?)\n?```", text, re.DOTALL)
    body, around = (fenced[1], text[: fenced.start()] + text[fenced.end() :]) if fenced else (text, "")
    start = _start_of_call(body)
    if start is None:
        return Parsed(content=text.strip())
    parsed = Parsed(content=(around + body[:start]).strip())
    try:
        if len(body) > LONGEST_CALL:
            raise Malformed(f"it is longer than {LONGEST_CALL} characters")
        value, end = _loads_from(body, start)
    except Malformed as wrong:
        parsed.errors.append(f"Malformed tool call: {wrong}.")
        return parsed
    parsed.content = f"{parsed.content} {body[end:].strip()}".strip()
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        parsed.content = f"{parsed.content} {value['content']}".strip()
    for one in _listed_calls(value):
        try:
            parsed.calls.append(_call_of(one))
        except Malformed as wrong:
            parsed.errors.append(f"Malformed tool call: {wrong}.")
    return parsed


_CALL_START = re.compile(r'[\[{]\s*(?:[\[{]\s*)?"(?:tool_calls|function|name|id|type|role|content|arguments)"\s*:')


def _start_of_call(text: str) -> int | None:
    """Where an object begins that has the keys of a call. Other JSON in an answer is the answer's."""
    match = _CALL_START.search(text)
    if match is None or not re.search(r'"(?:tool_calls|function|arguments)"\s*:', text):
        return None
    return match.start()


def _listed_calls(value: Any) -> list[Any]:
    if isinstance(value, dict) and "tool_calls" in value:
        value = value["tool_calls"]
    return value if isinstance(value, list) else [value]


def _call_of(value: Any) -> Call:
    """A call in any of the shapes in which models write the same thing."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise Malformed('it is no JSON object with "name" and "arguments"')
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Malformed('"name" is missing or no text')
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        # The API's own format has the arguments as a text of JSON.
        arguments = _loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed(f'"arguments" of {name} is no JSON object')
    return Call(name.strip(), arguments)


def _loads(text: str) -> Any:
    value, end = _loads_from(text, 0)
    if text[end:].strip():
        raise Malformed(f"something follows its JSON: {_quoted(text[end:].strip())}")
    return value


_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda name: _no_number(name))
"""Line breaks inside of strings are accepted, as models write them; numbers that JSON does not have are not."""


def _loads_from(text: str, start: int) -> tuple[Any, int]:
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as wrong:
        raise Malformed(f"it is no valid JSON ({wrong.msg} at character {wrong.pos - start})") from None
    except (RecursionError, ValueError) as wrong:
        raise Malformed(f"it is no valid JSON ({wrong})") from None
    if _depth(value) > _DEEPEST:
        raise Malformed(f"it is nested more than {_DEEPEST} deep")
    return value, end


def _depth(value: Any) -> int:
    depth, layer = 0, [value]
    while layer and depth <= _DEEPEST:
        depth += 1
        layer = [
            item
            for one in layer
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _quoted(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else text[:most] + "...")


_KINDS: dict[str, Callable[[str, dict[str, ToolSpec]], Parsed]] = {
    "openai": _openai,
    "qwen": _qwen,
    "minicpm": _minicpm,
    "pythonic": _minicpm,
}
KINDS = tuple(_KINDS)
