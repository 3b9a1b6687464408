"""Looks up which keys the configuration has at a path, and which values a field allows.

Invariants:
- All answers are derived from the fields of the sections, so messages, environment variables, `config show` and knobs
  agree with validation.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentrl.protocol.knob import plain_value


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of the value at one path."""

    annotation: Any
    field: FieldInfo | None = None
    """The field at this path; None for the whole configuration, and inside tables and lists."""

    @property
    def section(self) -> type[BaseModel] | None:
        """The class of the section, if the value is a section."""
        for kind in _alternatives(self.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                return kind
        return None

    @property
    def is_table(self) -> bool:
        """Whether the value is a table, whose keys the user chooses."""
        return any(typing.get_origin(kind) is dict for kind in _alternatives(self.annotation))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a section, as they are written in a file."""
        section = self.section
        return () if section is None else tuple(key_of(name, info) for name, info in section.model_fields.items())

    def child(self, key: str) -> Shape | None:
        """The type below a key; None if there is no such key."""
        section = self.section
        if section is not None:
            for name, info in section.model_fields.items():
                if key_of(name, info) == key:
                    return Shape(info.annotation, info)
            return None
        for kind in _alternatives(self.annotation):
            if typing.get_origin(kind) is dict:
                return Shape(typing.get_args(kind)[1])
            if typing.get_origin(kind) is tuple:
                return Shape(typing.get_args(kind)[0])
        return None

    def at(self, path: tuple[str, ...]) -> Shape | None:
        shape: Shape | None = self
        for key in path:
            shape = shape.child(key) if shape is not None else None
        return shape


def key_of(name: str, info: FieldInfo) -> str:
    """The key of a field in a file: its name, or its alias for a reserved word of Python."""
    return info.alias or name


def allowed(shape: Shape) -> str:
    """The allowed values, in words that follow "must be"; empty if they cannot be described."""
    kinds = [kind for kind in _alternatives(shape.annotation) if kind is not types.NoneType]
    if shape.section is not None:
        return f"a section with the keys {', '.join(shape.keys)}"
    if len(kinds) != 1:
        return ""
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    if typing.get_origin(kind) is dict:
        return "a table of `key: value` lines"
    if typing.get_origin(kind) is tuple:
        return "a list"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(kind, "")
    return f"{words}{_range_words(shape)}" if words else ""


def limits(shape: Shape) -> tuple[float | None, float | None]:
    """The smallest and the largest value, or None; an exclusive bound is returned like an inclusive one."""
    least: float | None = None
    most: float | None = None
    for constraint in _constraints(shape):
        low = getattr(constraint, "ge", None)
        high = getattr(constraint, "le", None)
        low = getattr(constraint, "gt", None) if low is None else low
        high = getattr(constraint, "lt", None) if high is None else high
        least = low if low is not None else least
        most = high if high is not None else most
    return least, most


def _range_words(shape: Shape) -> str:
    least, most = limits(shape)
    open_below = any(isinstance(one, annotated_types.Gt) for one in _constraints(shape))
    if least is None and most is None:
        return ""
    if least is None:
        return f" of at most {plain_value(most)}"
    above = f"above {plain_value(least)}" if open_below else f"from {plain_value(least)}"
    if most is None:
        return f" {above}" if open_below else f" of at least {plain_value(least)}"
    return f" {above} {'and up' if open_below else ''} to {plain_value(most)}".replace("  ", " ")


def _constraints(shape: Shape) -> list[Any]:
    found = list(shape.field.metadata) if shape.field is not None else []
    annotation = shape.annotation
    while typing.get_origin(annotation) is Annotated:
        annotation, *more = typing.get_args(annotation)
        for one in more:
            found += one.metadata if isinstance(one, FieldInfo) else [one]
    for kind in typing.get_args(annotation) if _is_union(annotation) else ():
        found += _constraints(Shape(kind)) if typing.get_origin(kind) is Annotated else []
    return found


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if not _is_union(annotation):
        return (annotation,)
    return tuple(kind for member in typing.get_args(annotation) for kind in _alternatives(member))


def leaves(value: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """All values of a plain configuration except tables, with their paths."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, item in value.items():
        path = (*prefix, key)
        if isinstance(item, Mapping) and item:
            found += leaves(item, path)
        else:
            found.append((path, item))
    return found
