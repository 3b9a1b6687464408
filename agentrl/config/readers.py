"""Finds out which roles read a setting, from the marks `ReadBy` on the fields of the run file.

Invariants:
- A mark on a field holds for all fields below it that have no mark of their own.
- The role that applies a knob reads its field.
- Fields without any mark belong to the coordinator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentrl.config.field_types import NO_UNIT, ReadBy, Tunable
from agentrl.config.introspection import Shape, key_of
from agentrl.config.run import RunConfig
from agentrl.protocol.specs import Role


def read_at_start(plain: Mapping[str, Any], role: Role) -> object:
    """The part of a plain configuration that processes of the role read at their start. A change replaces them."""
    return _part(Shape(RunConfig), plain, NO_UNIT, lambda mark: not mark.live and role in mark.roles | mark.shown_to)


def resolved(plain: Mapping[str, Any], role: Role) -> object:
    """The part whose references to secrets the role resolves, at its start or later."""
    return _part(Shape(RunConfig), plain, NO_UNIT, lambda mark: role in mark.roles)


def readers() -> dict[str, ReadBy]:
    """Who reads each setting, by its path with `*` for names and numbers that the user chooses."""
    return dict(_readers(Shape(RunConfig), "", NO_UNIT))


@functools.cache
def live_sections() -> tuple[str, ...]:
    """The sections that take effect without a restart."""
    return tuple(name for name, field in RunConfig.model_fields.items() if _mark_of(Shape(None, field), NO_UNIT).live)


def has_sections(shape: Shape) -> bool:
    """Whether the value is a section, or a table or list of sections."""
    return shape.section is not None or ((item := shape.child("*")) is not None and has_sections(item))


def _readers(shape: Shape, path: str, above: ReadBy, name: str = "") -> Iterator[tuple[str, ReadBy]]:
    mark = _mark_of(shape, above, name)
    if (section := shape.section) is not None:
        for name, field in section.model_fields.items():
            yield from _readers(Shape(field.annotation, field), f"{path}.{name}" if path else name, mark, name)
    elif has_sections(shape) and (item := shape.child("*")) is not None:
        yield from _readers(item, f"{path}.*", mark)
    else:
        yield path, mark


def _part(shape: Shape, plain: object, above: ReadBy, wanted: Callable[[ReadBy], bool], name: str = "") -> object:
    """The wanted values of a plain value; None if it has none. A plain configuration itself contains no None."""
    mark = _mark_of(shape, above, name)
    items: Iterator[tuple[str, object, Shape]]
    if (section := shape.section) is not None and isinstance(plain, Mapping):
        fields = {key_of(name, field): field for name, field in section.model_fields.items()}
        items = ((key, plain[key], Shape(fields[key].annotation, fields[key])) for key in fields if key in plain)
    elif has_sections(shape) and (item := shape.child("*")) is not None:
        pairs = plain.items() if isinstance(plain, Mapping) else enumerate(plain) if isinstance(plain, list) else ()
        items = ((str(key), value, item) for key, value in pairs)
    else:
        return plain if wanted(mark) else None
    parts = {key: part for key, value, shape in items if (part := _part(shape, value, mark, wanted, key)) is not None}
    return parts or None


def _mark_of(shape: Shape, above: ReadBy, name: str = "") -> ReadBy:
    """The mark that holds for a field and for all below it."""
    metadata = shape.field.metadata if shape.field is not None else ()
    mark = above.within.get(name) or next((mark for mark in metadata if isinstance(mark, ReadBy)), above)
    owner = next((knob.owner for knob in metadata if isinstance(knob, Tunable)), None)
    return mark if owner is None else replace(mark, roles=mark.roles | {owner})
