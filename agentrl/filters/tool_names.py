"""Queries with the tool names that lists show: `tool=shop.lookup` means `server=shop and tool=lookup`. Pure."""

from __future__ import annotations

from agentrl.filters.expressions import And, Compare, Expression, In, Not, Or, Value
from agentrl.filters.fields import Field


def with_servers(expression: Expression) -> Expression:
    """The query for tool calls in which a name with a dot also matches a server and its tool."""
    match expression:
        case And(parts):
            return And(tuple(with_servers(part) for part in parts))
        case Or(parts):
            return Or(tuple(with_servers(part) for part in parts))
        case Not(part):
            return Not(with_servers(part))
        case Compare(field, "=" | "!=" as operator, value) if field.name == "tool" and _is_whole(value):
            named = Or((Compare(field, "=", value), *_split(field, value)))
            return named if operator == "=" else Not(named)
        case In(field, values) if field.name == "tool" and any(map(_is_whole, values)):
            return Or((expression, *_split(field, *values)))
    return expression


def _is_whole(value: Value) -> bool:
    return isinstance(value, str) and "." in value


def _split(tool: Field, *values: Value) -> list[Expression]:
    """A server has no dot in its name; a tool may have some."""
    server = Field("server", "text")
    whole = [value.partition(".") for value in values if isinstance(value, str) and _is_whole(value)]
    return [And((Compare(server, "=", before), Compare(tool, "=", after))) for before, _, after in whole]
