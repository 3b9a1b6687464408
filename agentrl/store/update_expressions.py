"""Words of MongoDB's update language that are used everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

NOW = "$$NOW"
"""The server's time, inside of pipelines and expressions."""


def literally(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a `$set` inside a pipeline, where a text that begins with a dollar would be read as a field."""
    plain = {name: msgspec.to_builtins(value, builtin_types=(bytes, datetime)) for name, value in fields.items()}
    return {name: {"$literal": value} for name, value in plain.items()}


def setting(fields: Mapping[str, Any] | None = None, **computed: Any) -> list[dict[str, Any]]:
    """A pipeline that sets these values and these expressions."""
    return [{"$set": literally(fields or {}) | computed}]


def from_now(seconds: float) -> dict[str, Any]:
    """That much after the server's now."""
    return {"$add": [NOW, round(seconds * 1000)]}


def seconds_since(field: str) -> dict[str, Any]:
    """From a stored time to the server's now; 0 if there is no such time."""
    return {"$ifNull": [{"$divide": [{"$subtract": [NOW, f"${field}"]}, 1000.0]}, 0.0]}


def is_past(field: str) -> dict[str, Any]:
    """A condition: that time lies before the server's now. A field without a value is not past."""
    return {field: {"$type": "date"}, "$expr": {"$lt": [f"${field}", NOW]}}


def is_older(field: str, seconds: float) -> dict[str, Any]:
    """A condition: that time is more than so many seconds ago."""
    return {field: {"$type": "date"}, "$expr": {"$lt": [f"${field}", from_now(-seconds)]}}
