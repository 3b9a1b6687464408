"""Finds the tools of a Python file by its source: every function under `@tool`, or every public function with a
docstring if there is none.

`agentrl config check` and the server that offers the functions use this module, so what one accepts the other serves.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from agentrl.toolservers import docstrings
from agentrl.toolservers.argument_types import Field, schema_of
from agentrl.toolservers.type_hints import HintError, Hints
from agentrl.toolservers.user_names import Effect

_ADVICE = "Write a type after its name, such as `{name}: str`."


class FunctionFileError(Exception):
    """The file has no usable tools; `hint` says what to do."""

    def __init__(self, path: Path, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{path}{place}: {message}")
        self.hint = hint


@dataclass(frozen=True)
class FunctionTool:
    """One function as a tool."""

    name: str
    description: str
    fields: tuple[Field, ...]
    session_parameter: str = ""
    """The parameter that gets the state of the session; empty if the function has none."""
    session_class: str = ""
    positional: tuple[str, ...] = ()
    """Parameters that cannot be passed by name."""
    effect: Effect | None = None
    """What its decorator declares."""
    example: dict[str, Any] | None = None
    """Arguments with which it can be tried."""

    @property
    def schema(self) -> dict[str, Any]:
        return schema_of(self.fields)


def tools_of(path: Path) -> tuple[FunctionTool, ...]:
    """The tools of a file, without running it. Raises FunctionFileError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes(), str(path))
    except OSError as refused:
        raise FunctionFileError(path, "", f"cannot be read: {refused.strerror}") from None
    except SyntaxError as wrong:
        place = f", line {wrong.lineno}, column {wrong.offset}" if wrong.lineno else ""
        raise FunctionFileError(path, place, f"SyntaxError: {wrong.msg}") from None
    except (ValueError, RecursionError) as wrong:
        raise FunctionFileError(path, "", str(wrong)) from None
    try:
        found = tuple(_tools(tree))
    except HintError as refused:
        place = f", line {refused.line}, column {refused.column}"
        raise FunctionFileError(path, place, str(refused), refused.hint) from None
    if not found:
        hint = "Each public function with a docstring is a tool; names with a leading underscore are private."
        raise FunctionFileError(path, "", "there is no public function with a docstring", hint)
    return found


def _tools(tree: ast.Module) -> Iterator[FunctionTool]:
    hints = Hints(tree)
    # The last definition of a name is the one that the module has.
    last = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    marked = [node for node in last.values() if _mark(node) is not None]
    for node in marked or last.values():
        docstring = ast.get_docstring(node) or ""
        if marked or (docstring and not node.name.startswith("_")):
            yield _tool(node, docstring, hints)


def _tool(node: ast.FunctionDef | ast.AsyncFunctionDef, docstring: str, hints: Hints) -> FunctionTool:
    description, described = docstrings.split(docstring)
    for many in (node.args.vararg, node.args.kwarg):
        if many is not None:
            message = f"{node.name} takes any number of arguments (*{many.arg}), which cannot be described to a model"
            raise HintError(many, message, "Name each parameter, or take one list or dict.")
    fields: list[Field] = []
    session = ("", "")
    for parameter, default in _parameters(node.args):
        name = parameter.arg
        if kind := hints.session_class(parameter.annotation):
            session = (name, kind)
        elif parameter.annotation is None:
            raise HintError(parameter, f"the parameter {name} of {node.name} has no type", _ADVICE.format(name=name))
        else:
            fields.append(_field(node.name, parameter, default, described.get(name, ""), hints))
    positional = tuple(each.arg for each in node.args.posonlyargs)
    declared = (_effect(node), _example(node, fields))
    return FunctionTool(node.name, description or node.name, tuple(fields), *session, positional, *declared)


def _field(function: str, parameter: ast.arg, default: ast.expr | None, described: str, hints: Hints) -> Field:
    assert parameter.annotation is not None
    try:
        kind = hints.type_of(parameter.annotation)
    except HintError as refused:
        refused.args = (f"the parameter {parameter.arg} of {function}: {refused}",)
        raise
    text = hints.description_of(parameter.annotation) or described
    shown = None if default is None else hints.default_of(default)
    return Field(parameter.arg, kind, text, default is None, shown)


def _parameters(args: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    plain = [*args.posonlyargs, *args.args]
    without = len(plain) - len(args.defaults)
    yield from zip(plain, [*[None] * without, *args.defaults], strict=True)
    yield from zip(args.kwonlyargs, args.kw_defaults, strict=True)


def _mark(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """The decorator that makes it a tool: `@tool`, `@rl.tool` or `@rl.tool(effect=..., example=...)`."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name(id="tool") | ast.Attribute(attr="tool"):
                return decorator
            case ast.Call(func=ast.Name(id="tool") | ast.Attribute(attr="tool")):
                return decorator
    return None


def _effect(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Effect | None:
    if (value := _given(node, "effect")) is not None:
        return _effect_named(value)
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="effect") | ast.Attribute(attr="effect"), args=[value]):
                return _effect_named(value)
    return None


def _given(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The keyword argument of this name of the decorator."""
    match _mark(node):
        case ast.Call(keywords=keywords):
            return next((each.value for each in keywords if each.arg == name), None)
    return None


def _example(node: ast.FunctionDef | ast.AsyncFunctionDef, fields: Sequence[Field]) -> dict[str, Any] | None:
    """The example in the decorator, read without running the file, so that an invalid one is refused before the run."""
    value = _given(node, "example")
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return None
    advice = 'Write values as they are, such as example={"item": "tea"}.'
    try:
        found = ast.literal_eval(value)
        json.dumps(found)
    except (ValueError, TypeError, SyntaxError):
        raise HintError(value, f"the example of {node.name} is not made of plain values", advice) from None
    if not isinstance(found, dict):
        raise HintError(value, f"the example of {node.name} is no dict", advice)
    if missing := [each.name for each in fields if each.required and each.name not in found]:
        raise HintError(value, f"the example of {node.name} has no {missing[0]}", "Name every required parameter.")
    if unknown := [name for name in found if name not in {each.name for each in fields}]:
        raise HintError(value, f"{node.name} has no parameter {unknown[0]}, which its example names", advice)
    return found


def _effect_named(value: ast.expr) -> Effect:
    for each in get_args(Effect):
        if isinstance(value, ast.Constant) and value.value == each:
            return each  # type: ignore[no-any-return]
    raise HintError(value, f"there is no effect {ast.unparse(value)}", f"Effects are {', '.join(get_args(Effect))}.")
