"""Common expressions of MongoDB's update language."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

NOW = "$$NOW"
"""The server's time, inside of pipelines and expressions."""


def literally(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a `$set` inside a pipeline, in which a text that begins with a dollar would be read as a field."""
    plain = {name: msgspec.to_builtins(value, builtin_types=(bytes, datetime)) for name, value in fields.items()}
    return {name: {"$literal": value} for name, value in plain.items()}


def setting(fields: Mapping[str, Any] | None = None, **computed: Any) -> list[dict[str, Any]]:
    """A pipeline that sets these values and these expressions."""
    return [{"$set": literally(fields or {}) | computed}]


def from_now(seconds: float) -> dict[str, Any]:
    """The server's time plus this duration."""
    return {"$add": [NOW, round(seconds * 1000)]}


def seconds_since(field: str) -> dict[str, Any]:
    """Seconds from a stored time to the server's time; 0 if the field has no value."""
    return {"$ifNull": [{"$divide": [{"$subtract": [NOW, f"${field}"]}, 1000.0]}, 0.0]}


def is_past(field: str) -> dict[str, Any]:
    """A condition: the stored time is before the server's time. A field without a value is not past."""
    return {field: {"$type": "date"}, "$expr": {"$lt": [f"${field}", NOW]}}


def is_older(field: str, seconds: float) -> dict[str, Any]:
    """A condition: the stored time is more than this many seconds ago."""
    return {field: {"$type": "date"}, "$expr": {"$lt": [f"${field}", from_now(-seconds)]}}
