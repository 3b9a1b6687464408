"""Describes tools for prompts and parsers: name, arguments in order, and their types.

Invariants:
- Arguments have the order of the tool's schema, so positional arguments have one meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool as the model sees it."""

    name: str
    description: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema of its arguments, as MCP servers declare it."""

    @property
    def arguments(self) -> tuple[str, ...]:
        properties = self.schema.get("properties")
        return tuple(str(name) for name in properties) if isinstance(properties, Mapping) else ()

    @property
    def signature(self) -> str:
        """`lookup(item)`: the short form in prompts of small models."""
        return f"{self.name}({', '.join(self.arguments)})"

    @property
    def function(self) -> dict[str, Any]:
        """The tool in the form of chat APIs and chat templates."""
        inside = {"name": self.name, "description": self.description, "parameters": self.schema or {"type": "object"}}
        return {"type": "function", "function": inside}

    def wants_text(self, argument: str) -> bool:
        """Whether the schema declares this argument as a string."""
        properties = self.schema.get("properties")
        declared = properties.get(argument) if isinstance(properties, Mapping) else None
        return isinstance(declared, Mapping) and declared.get("type") == "string"


def by_name(tools: Iterable[ToolSpec]) -> dict[str, ToolSpec]:
    return {tool.name: tool for tool in tools}
