"""Shared parts of the tool-call parsers: calls, errors, JSON and calls written as Python.

Invariants:
- Text is parsed and never evaluated.
- A malformed call raises Malformed, whose message is for the model.
- A value that is not a literal is kept as text, so `calculator(3*(4+5))` has the argument `3*(4+5)`.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.chat.tool_specs import ToolSpec

LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Value:
    """An argument: its value and its source text."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class PythonCall:
    name: str
    positional: tuple[Value, ...]
    named: tuple[tuple[str, Value], ...]


def read_calls(text: str) -> list[PythonCall]:
    """Reads one or several calls, written as lines or as a list. Raises ValueError with a sentence."""
    if not text.strip():
        raise ValueError("it is empty")
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes cause warnings
            tree = ast.parse(text.strip())
            return [_call(node, text.strip()) for node in _expressions(tree)]
    except SyntaxError as wrong:
        raise ValueError(f"it is not a valid call ({wrong.msg})") from None
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None


def _expressions(tree: ast.Module) -> Iterator[ast.expr]:
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("it is not a call such as name(argument)")
        if isinstance(statement.value, ast.List | ast.Tuple):
            yield from statement.value.elts
        else:
            yield statement.value


def _call(node: ast.expr, text: str) -> PythonCall:
    if not isinstance(node, ast.Call):
        raise ValueError("it is not a call such as name(argument)")
    name = _dotted(node.func)
    if not name:
        raise ValueError("its name is not a plain name")
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        raise ValueError("arguments with a star are not supported")
    named: list[tuple[str, Value]] = []
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments with a star are not supported")
        if any(keyword.arg == other for other, _ in named):
            raise ValueError(f"{keyword.arg} is given twice")
        named.append((keyword.arg, _value(keyword.value, text)))
    return PythonCall(name, tuple(_value(arg, text) for arg in node.args), tuple(named))


def _dotted(node: ast.expr) -> str:
    """`lookup`, or `shop.lookup`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def _value(node: ast.expr, text: str) -> Value:
    source = ast.get_source_segment(text, node) or ""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return Value({"true": True, "false": False, "null": None}[node.id], source)
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return Value(source, source)
    # Sets, bytes and complex numbers are not JSON; they are kept as text.
    return Value(found if _is_json(found) else source, source)


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return value is None or isinstance(value, bool | int | str)


MAX_CALL_LENGTH = 1 << 18
"""The most characters of one call; longer calls are refused."""
MAX_CALLS = 64
_MAX_DEPTH = 100


class Call(msgspec.Struct):
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


_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n(.*?)\n?```\s*\Z", re.DOTALL)


def tagged(text: str, tag: re.Pattern[str], end: str, read: Callable[[str], Iterable[Call]]) -> Parsed:
    """Reads calls between tags. The first group of `tag` is the text inside, the second the end tag, empty if it is
    missing."""
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


def read_into(parsed: Parsed, text: str, calls: Iterable[Call]) -> None:
    """Adds the calls of this text to `parsed`. Calls before a malformed one are kept."""
    try:
        if len(text) > MAX_CALL_LENGTH:
            raise Malformed(f"it is longer than {MAX_CALL_LENGTH} characters")
        for call in calls:
            parsed.calls.append(call)
    except Malformed as wrong:
        parsed.errors.append(f"Malformed tool call: {wrong}.")


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
        arguments = json_of(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed(f'"arguments" of {name} is not a JSON object')
    return Call(name.strip(), arguments)


def calls_in_python(inside: str, tools: dict[str, ToolSpec]) -> Iterator[Call]:
    """One or several calls written as Python, perhaps in a fence."""
    fenced = _FENCE.match(inside)
    try:
        found = read_calls(fenced[1] if fenced else inside)
    except ValueError as wrong:
        raise Malformed(str(wrong)) from None
    for call in found:
        yield Call(call.name, _named_arguments(call, tools.get(call.name)))


def _named_arguments(call: PythonCall, tool: ToolSpec | None) -> dict[str, Any]:
    """Names positional arguments by the tool's signature; those of an unknown tool are named by their numbers."""
    names = tool.arguments if tool else tuple(map(str, range(len(call.positional))))
    if len(call.positional) > len(names):
        raise Malformed(f"{call.name} takes {len(names)} arguments, not {len(call.positional)}")
    given = [*zip(names, call.positional, strict=False), *call.named]
    arguments: dict[str, Any] = {}
    for name, value in given:
        if name in arguments:
            raise Malformed(f"{call.name} is given {name} twice")
        # An argument that the tool declares as text stays text, even if it looks like a number: `lookup(12)`.
        as_text = tool is not None and tool.wants_text(name) and not isinstance(value.value, str)
        arguments[name] = value.source if as_text else value.value
    return arguments


def json_of(text: str) -> Any:
    """The value of a text that is JSON as a whole."""
    value, end = json_at(text, 0)
    if text[end:].strip():
        raise Malformed(f"there is text after its JSON: {_quoted(text[end:].strip())}")
    return value


_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda name: _no_number(name))
"""Accepts line breaks inside strings, as models write them, but not NaN and Infinity."""


def json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins here, and the position of its end."""
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
