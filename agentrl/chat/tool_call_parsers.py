"""Reads tool calls from the text of an assistant, with the errors of malformed calls and the rest of the text.

Invariants:
- Parsing accepts any text and never executes it.
- A call that cannot be read becomes an error with a sentence for the model, it is never dropped or guessed.
- Calls keep their order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agentrl.chat import python_calls
from agentrl.chat.tool_specs import ToolSpec, by_name
from agentrl.errors import ConfigError

MAX_CALL_LENGTH = 1 << 18
"""Characters of one call; longer ones are refused."""
MAX_CALLS = 64
_MAX_DEPTH = 100


class Call(msgspec.Struct):
    """One tool call."""

    name: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Parsed(msgspec.Struct):
    """The content of a text."""

    calls: list[Call] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)
    """One sentence for each malformed call."""
    content: str = ""
    """The text around the calls."""


class Malformed(ValueError):
    """A call that cannot be read. The message is for the model."""


_TAGS = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_CODE = re.compile(r"<code>\n?(.*?)\n?</code>", re.DOTALL)
_OPEN, _SHUT = r"<(?:\|tool_call_start\||tool_call)>", r"<(?:\|tool_call_end\||/tool_call)>"
_MINICPM = re.compile(rf"{_OPEN}(.*?)({_SHUT}|(?={_OPEN})|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"<\|thought_start\|>(.*?)<\|thought_end\|>", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n(.*?)\n?```\s*\Z", re.DOTALL)


def parse(kind: str, text: str, tools: Iterable[ToolSpec] = ()) -> Parsed:
    """Reads a text in the format of this kind. `tools` gives names to positional arguments."""
    read = _KINDS.get(kind)
    if read is None:
        raise ConfigError(f"There is no parser {kind!r} of tool calls; known are {', '.join(KINDS)}.")
    parsed = read(text, by_name(tools))
    if len(parsed.calls) > MAX_CALLS:
        parsed.errors.append(f"At most {MAX_CALLS} tool calls are allowed in one turn, not {len(parsed.calls)}.")
        parsed.calls = parsed.calls[:MAX_CALLS]
    return parsed


def written(kind: str, calls: Sequence[Call]) -> str:
    """The text of these calls in the format of this kind, as demonstrations show it."""
    if kind == "openai":
        listed = [{"type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in calls]
        return json.dumps({"tool_calls": listed}, ensure_ascii=False)
    if kind == "qwen":
        bodies = [json.dumps({"name": one.name, "arguments": one.arguments}, ensure_ascii=False) for one in calls]
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    named = (", ".join(f"{name}={value!r}" for name, value in one.arguments.items()) for one in calls)
    return "\n".join(f"<tool_call>{one.name}({inside})</tool_call>" for one, inside in zip(calls, named, strict=True))


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
            if len(match[1]) > MAX_CALL_LENGTH:
                raise Malformed(f"it is longer than {MAX_CALL_LENGTH} characters")
            parsed.calls.extend(read(match[1].strip()))
        except Malformed as wrong:
            parsed.errors.append(f"Malformed tool call: {wrong}.")
    parsed.content = "".join([*rest, text[at:]]).strip()
    return parsed


def _qwen(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    return _tagged(text, _TAGS, "</tool_call>", lambda inside: [_hermes_call(inside)])


def _hermes_call(inside: str) -> Call:
    """`{"name": .., "arguments": {..}}`, optionally with a block of code that needs no escaping."""
    code = _CODE.search(inside)
    if code is None:
        return call_of(_loads(inside))
    call = call_of(_loads((inside[: code.start()] + inside[code.end() :]).strip()))
    if "code" in call.arguments:
        raise Malformed('it has a <code> block and an argument "code"')
    call.arguments["code"] = code[1]
    return call


def _minicpm(text: str, tools: dict[str, ToolSpec]) -> Parsed:
    """Calls written as Python, between the tags of MiniCPM or plain ones."""
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
    """Names positional arguments by the tool's signature; those of an unknown tool keep their numbers."""
    names = tool.arguments if tool else tuple(map(str, range(len(call.positional))))
    if len(call.positional) > len(names):
        raise Malformed(f"{call.name} takes {len(names)} arguments, not {len(call.positional)}")
    given = [*zip(names, call.positional, strict=False), *call.named]
    arguments: dict[str, Any] = {}
    for name, value in given:
        if name in arguments:
            raise Malformed(f"{call.name} is given {name} twice")
        # An argument that the tool declares as text stays text, also if it looks like a number: `lookup(12)`.
        as_text = tool is not None and tool.wants_text(name) and not isinstance(value.value, str)
        arguments[name] = value.source if as_text else value.value
    return arguments


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
        value, end = _loads_from(body, start)
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


_CALL_START = re.compile(r'[\[{]\s*(?:[\[{]\s*)?"(?:tool_calls|function|name|id|type|role|content|arguments)"\s*:')


def _start_of_call(text: str) -> int | None:
    """Where an object with the keys of a call begins. Other JSON belongs to the answer."""
    match = _CALL_START.search(text)
    if match is None or not re.search(r'"(?:tool_calls|function|arguments)"\s*:', text):
        return None
    return match.start()


def _listed_calls(value: Any) -> list[Any]:
    if isinstance(value, dict) and "tool_calls" in value:
        value = value["tool_calls"]
    return value if isinstance(value, list) else [value]


def call_of(value: Any) -> Call:
    """A call in any of the shapes that models and chat APIs write. Raises Malformed."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise Malformed('it is not a JSON object with "name" and "arguments"')
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Malformed('"name" is missing or not a text')
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        # OpenAI's format has the arguments as JSON text.
        arguments = _loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed(f'"arguments" of {name} is not a JSON object')
    return Call(name.strip(), arguments)


def _loads(text: str) -> Any:
    value, end = _loads_from(text, 0)
    if text[end:].strip():
        raise Malformed(f"there is text after its JSON: {_quoted(text[end:].strip())}")
    return value


_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda name: _no_number(name))
"""Accepts line breaks inside strings, as models write them, but not NaN and Infinity."""


def _loads_from(text: str, start: int) -> tuple[Any, int]:
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as wrong:
        raise Malformed(f"it is not valid JSON ({wrong.msg} at character {wrong.pos - start})") from None
    except (RecursionError, ValueError) as wrong:
        raise Malformed(f"it is not valid JSON ({wrong})") from None
    if _depth(value) > _MAX_DEPTH:
        raise Malformed(f"it is nested more than {_MAX_DEPTH} deep")
    return value, end


def _depth(value: Any) -> int:
    depth, layer = 0, [value]
    while layer and depth <= _MAX_DEPTH:
        depth += 1
        layer = [
            item
            for one in layer
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _quoted(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else text[:most] + "...")


_KINDS: dict[str, Callable[[str, dict[str, ToolSpec]], Parsed]] = {
    "openai": _openai,
    "qwen": _qwen,
    "minicpm": _minicpm,
    "pythonic": _minicpm,
}
KINDS = tuple(_KINDS)
