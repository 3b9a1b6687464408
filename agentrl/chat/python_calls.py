"""Reads calls that are written as Python: `lookup(pear)`, `search(query="red", limit=3)`.

Invariants:
- The text is parsed, never evaluated.
- A value that is not a literal is kept as text, so `calculator(3*(4+5))` has the argument `3*(4+5)`.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
