"""Makes arguments that fit the schema of a tool, to call it before a model does. Pure.

Invariants:
- The same schema gives the same arguments; only required ones are made.
- A schema is a stranger's: one that is none, or that asks for very much, gives few arguments or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 6
_MOST_VALUES = 1_000
_LONGEST = 1_000
"""Of a text."""


def arguments_for(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the required properties of an object; empty if that cannot be made."""
    try:
        return _object(schema, schema.get("$defs", {}), 0, iter(range(_MOST_VALUES)))
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, RecursionError, StopIteration):
        return {}


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int, left: Iterator[int]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _value(properties.get(name, {}), defs, depth, left) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int, left: Iterator[int]) -> Any:
    """A plain value that fits a JSON schema. `left` ends when there are too many of them."""
    next(left)
    if (name := str(schema.get("$ref", "")).rpartition("/")[2]) in defs and depth < _DEEPEST:
        return _value(defs[name], defs, depth + 1, left)
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(schema[key][0], defs, depth + 1, left)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            items = schema.get("items")
            return [_value(items, defs, depth + 1, left)] if isinstance(items, dict) and depth < _DEEPEST else []
        case "object":
            return _object(schema, defs, depth + 1, left)
        case _:
            return "a" * max(1, min(int(schema.get("minLength", 1)), _LONGEST))
