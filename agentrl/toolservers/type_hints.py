"""Reads type hints from the source of a file, without running it.

Invariants:
- A hint that no JSON schema can describe raises HintError with its line and column, and what to write instead.
- Hints may use only classes and aliases of the same file, because others are not known without running code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.toolservers import docstrings
from agentrl.toolservers.argument_types import (
    Anything,
    ArgumentType,
    Choice,
    Field,
    Fields,
    Fixed,
    Many,
    Mapped,
    OneOf,
    Scalar,
)

_SCALARS = ("str", "int", "float", "bool", "None")
_MANY: Mapping[str, type] = {
    **dict.fromkeys(("list", "List", "Sequence", "Iterable", "Collection"), list),
    **dict.fromkeys(("set", "Set"), set),
    **dict.fromkeys(("frozenset", "FrozenSet"), frozenset),
}
_MAPPED = ("dict", "Dict", "Mapping", "MutableMapping")
_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final")
_ENUMS = ("Enum", "IntEnum", "StrEnum")
_INSTEAD = {
    "bytes": "take a str",
    "complex": "take two floats",
    "object": "write Any, or the type that the function needs",
    "Path": "take a str, and make the path of it",
    "date": "take a str such as 2026-01-31, and parse it",
    "datetime": "take a str such as 2026-01-31T12:00:00, and parse it",
    "Decimal": "take a str or a float",
    "Callable": "a model cannot pass a function",
    "BaseModel": "write a dataclass or a TypedDict",
}
_MAY_BE = (
    "Use str, int, float, bool, None, Any, Literal, list, set, tuple, dict, Optional or a union of them, or an Enum, a "
    "dataclass or a TypedDict of the same file."
)


class HintError(Exception):
    """The source cannot become tools. It has the place and what to do."""

    def __init__(self, node: ast.AST, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.line: int = getattr(node, "lineno", 1)
        self.column: int = getattr(node, "col_offset", 0) + 1
        self.hint = hint


class Hints:
    """The types of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._aliases = dict(_aliases(tree))
        self._reading: list[str] = []
        """Names that are being read, to find recursive types."""

    def type_of(self, hint: ast.expr) -> ArgumentType:
        """Raises HintError."""
        match hint:
            case ast.Constant(value=None):
                return Scalar("None")
            case ast.Constant(value=str(text)):
                return self.type_of(_parsed(hint, text))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return _union([self.type_of(left), self.type_of(right)])
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._of_name(hint, name)
            case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inside):
                return self._of_parts(hint, name, list(inside.elts) if isinstance(inside, ast.Tuple) else [inside])
        raise self._refusal(hint, ast.unparse(hint))

    def description_of(self, hint: ast.expr | None) -> str:
        """The text of `Annotated[TYPE, "text"]`."""
        match hint:
            case ast.Subscript(value=ast.Name(id="Annotated") | ast.Attribute(attr="Annotated"), slice=ast.Tuple(elts)):
                texts = (part.value for part in elts[1:] if isinstance(part, ast.Constant))
                return next((text for text in texts if isinstance(text, str)), "")
        return ""

    def session_class(self, hint: ast.expr | None) -> str:
        """The name of the class, if the hint is a subclass of Session in this file; otherwise empty."""
        match hint:
            case ast.Constant(value=str(text)):
                return self.session_class(_parsed(hint, text))
            case ast.Name(id=name) if name in self._classes and self._derives(name, ("Session",)):
                return name
        return ""

    def default_of(self, node: ast.expr) -> Any:
        """A default for the schema: a constant, or the value of a member of an Enum. None if it is neither."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=member) if name in self._classes:
                values, by_name = self._members(self._classes[name])
                return member if by_name else values.get(member)
        try:
            found = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None
        return found if _is_json(found) else None

    # ---- names ----

    def _of_name(self, hint: ast.expr, name: str) -> ArgumentType:
        if isinstance(hint, ast.Name) and name in {**self._classes, **self._aliases}:
            return self._guarded(hint, name)
        if name in _SCALARS:
            return Scalar(name)
        if name == "Any":
            return Anything()
        if name in _MANY:
            return Many(Anything(), _MANY[name])
        if name in ("tuple", "Tuple"):
            return Many(Anything(), tuple)
        if name in _MAPPED:
            return Mapped(Anything())
        raise self._refusal(hint, ast.unparse(hint))

    def _of_parts(self, hint: ast.expr, name: str, parts: list[ast.expr]) -> ArgumentType:
        if name == "Literal":
            return Choice(tuple(_literal(part) for part in parts))
        if name == "Annotated" or (name in _WRAPPERS and len(parts) == 1):
            return self.type_of(parts[0])
        if name == "Optional" and len(parts) == 1:
            return _union([self.type_of(parts[0]), Scalar("None")])
        if name == "Union":
            return _union([self.type_of(part) for part in parts])
        if name in _MANY and len(parts) == 1:
            return Many(self.type_of(parts[0]), _MANY[name])
        if name in ("tuple", "Tuple"):
            match parts:
                case [item, ast.Constant(value=rest)] if rest is ...:
                    return Many(self.type_of(item), tuple)
            return Fixed(tuple(self.type_of(part) for part in parts))
        if name in _MAPPED and len(parts) == 2:
            if self.type_of(parts[0]) != Scalar("str"):
                raise HintError(parts[0], f"the keys of {ast.unparse(hint)} are not str", "JSON has texts as keys.")
            return Mapped(self.type_of(parts[1]))
        raise self._refusal(hint, ast.unparse(hint))

    def _guarded(self, hint: ast.expr, name: str) -> ArgumentType:
        if name in self._reading:
            raise HintError(hint, f"{name} contains itself", "Take Any, or a list of simpler values.")
        self._reading.append(name)
        try:
            return self.type_of(self._aliases[name]) if name in self._aliases else self._of_class(hint, name)
        finally:
            self._reading.pop()

    def _refusal(self, hint: ast.expr, shown: str) -> HintError:
        name = shown.rpartition(".")[2].partition("[")[0]
        instead = _INSTEAD.get(name, "")
        hint_text = f"{instead[0].upper()}{instead[1:]}." if instead else _MAY_BE
        return HintError(hint, f"the type {shown} cannot be described to a model", hint_text)

    # ---- classes ----

    def _of_class(self, hint: ast.expr, name: str) -> ArgumentType:
        node = self._classes[name]
        if self._derives(name, _ENUMS):
            values, by_name = self._members(node)
            if not values:
                raise HintError(node, f"the Enum {name} has no members", "Write them as NAME = VALUE.")
            return Choice(tuple(values) if by_name else tuple(values.values()), name, by_name)
        is_dict = self._derives(name, ("TypedDict",))
        if is_dict or any(_last_name(each) == "dataclass" for each in node.decorator_list):
            # A class may define a field of its base again.
            fields = {each.name: each for each in self._fields(node, is_dict=is_dict)}
            return Fields(name, tuple(fields.values()), is_dict)
        bases = {_last_name(base) for base in node.bases}
        raise self._refusal(hint, "BaseModel" if "BaseModel" in bases else name)

    def _derives(self, name: str, roots: tuple[str, ...], above: tuple[str, ...] = ()) -> bool:
        bases = [_last_name(base) for base in self._classes[name].bases]
        return any(
            base in roots
            or (base in self._classes and base not in above and self._derives(base, roots, (*above, name)))
            for base in bases
        )

    def _members(self, node: ast.ClassDef) -> tuple[dict[str, Any], bool]:
        """The members of an Enum, and whether only their names are known."""
        found: dict[str, Any] = {}
        computed = False
        for line in node.body:
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.startswith("_"):
                    match value:
                        case ast.Constant(value=str() | int() as constant):
                            found[name] = constant
                        case _:
                            found[name], computed = None, True
        return found, computed

    def _fields(self, node: ast.ClassDef, *, is_dict: bool) -> Iterator[Field]:
        for base in node.bases:
            if (name := _last_name(base)) in self._classes and name not in self._reading:
                yield from self._fields(self._classes[name], is_dict=is_dict)
        described = docstrings.split(ast.get_docstring(node) or "")[1]
        total = not any(word.arg == "total" and ast.unparse(word.value) == "False" for word in node.keywords)
        for line in node.body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=value):
                    wrapper = _last_name(hint.value) if isinstance(hint, ast.Subscript) else ""
                    if wrapper == "ClassVar" or _is_no_init(value):
                        continue
                    optional = wrapper == "NotRequired" or (not total and wrapper != "Required")
                    required = not optional if is_dict else value is None
                    text = self.description_of(hint) or described.get(name, "")
                    default = None if value is None else self.default_of(value)
                    yield Field(name, self.type_of(hint), text, required, default)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for line in tree.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() | ast.Name() as value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), annotation=hint, value=ast.expr() as value) if (
                _last_name(hint) == "TypeAlias"
            ):
                yield name, value
            case _ if type(line).__name__ == "TypeAlias" and not line.type_params:  # type: ignore[attr-defined]
                yield line.name.id, line.value  # type: ignore[attr-defined]


def _union(types: list[ArgumentType]) -> ArgumentType:
    flat: list[ArgumentType] = []
    for each in types:
        flat += each.types if isinstance(each, OneOf) else [each]
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else OneOf(unique)


def _literal(part: ast.expr) -> Any:
    match part:
        case ast.Constant(value=str() | int() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
    raise HintError(part, f"Literal[{ast.unparse(part)}] cannot be described to a model", "Use texts and integers.")


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=func):
            return _last_name(func)
        case ast.Subscript(value=value):
            return _last_name(value)
    return ""


def _is_no_init(value: ast.expr | None) -> bool:
    """Whether this is `field(init=False)`."""
    words = value.keywords if isinstance(value, ast.Call) else []
    return any(word.arg == "init" and ast.unparse(word.value) == "False" for word in words)


def _parsed(hint: ast.expr, text: str) -> ast.expr:
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise HintError(hint, f"{text!r} is no type") from None
    for node in ast.walk(found):
        ast.copy_location(node, hint)
    return found


def _is_json(value: Any) -> bool:
    match value:
        case None | str() | int() | float():
            return value == value and value not in (float("inf"), float("-inf"))
        case list():
            return all(map(_is_json, value))
        case dict():
            return all(isinstance(key, str) and _is_json(each) for key, each in value.items())
    return False
