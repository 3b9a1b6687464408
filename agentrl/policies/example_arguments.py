"""Makes arguments that fit the schema of a tool, to call it before a model does. Pure.

Invariants: the same schema gives the same arguments; only required ones are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEEPEST = 6


def value_for(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A plain value that fits a JSON schema."""
    defs = defs if defs is not None else schema.get("$defs", {})
    if (name := str(schema.get("$ref", "")).rpartition("/")[2]) in defs and depth < _DEEPEST:
        return value_for(defs[name], defs, depth + 1)
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return value_for(schema[key][0], defs, depth + 1)
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
            return [value_for(items, defs, depth + 1)] if isinstance(items, dict) and depth < _DEEPEST else []
        case "object":
            return arguments_for(schema, defs, depth + 1)
        case _:
            return "a".ljust(int(schema.get("minLength", 1)), "a")


def arguments_for(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None, depth: int = 0) -> dict[str, Any]:
    """Values for the required properties of an object."""
    defs = defs if defs is not None else schema.get("$defs", {})
    properties = schema.get("properties", {})
    return {name: value_for(properties.get(name, {}), defs, depth) for name in schema.get("required", ())}
