"""The tree of a query: what the parser makes, and evaluation and translation read.

Invariants: a tree holds only what makes sense for its fields' kinds; its text, parsed again, gives the same tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from agentrl.filters.fields import Field

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~"]

KEYWORDS = frozenset({"and", "or", "not", "in"})
PLAIN_WORD = re.compile(r"""[^\s()=<>!~,"']+""")
"""What needs no quotes."""

TICK = timedelta(milliseconds=1)
"""MongoDB keeps times in milliseconds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A date or time as precisely as it was written: `2026-03-01` is the whole day."""

    start: datetime
    end: datetime
    """The first instant that is not part of it."""
    written: str


@dataclass(frozen=True, slots=True)
class Age:
    """So long before the query is asked, like `-1h`."""

    seconds: float
    written: str


Value = str | float | bool | None | Moment | Age


@dataclass(frozen=True, slots=True)
class Compare:
    field: Field
    operator: Operator
    value: Value

    def __str__(self) -> str:
        return f"{self.field.name}{self.operator}{_written(self.value, self.field)}"


@dataclass(frozen=True, slots=True)
class In:
    field: Field
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.field.name} in ({', '.join(_written(value, self.field) for value in self.values)})"


@dataclass(frozen=True, slots=True)
class Not:
    part: Expression

    def __str__(self) -> str:
        return f"not {_bracketed(self.part)}"


@dataclass(frozen=True, slots=True)
class And:
    """All of its parts; without parts it is always true."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " and ".join(_bracketed(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " or ".join(_bracketed(part) for part in self.parts)


Expression = Compare | In | Not | And | Or

EVERYTHING = And(())


def span_of(value: Moment | Age, now: datetime) -> tuple[datetime, datetime]:
    """The instants that a time in a query means: from the first to the first that is no longer meant."""
    if isinstance(value, Moment):
        return value.start, value.end
    utc = now.replace(tzinfo=UTC) if now.tzinfo is None else now
    at = utc - timedelta(seconds=value.seconds)
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    return at, at + TICK


def containing(text: str) -> str:
    """A regular expression that finds a text, upper and lower case alike, and means the same to MongoDB and to Python.

    Case is spelled out letter by letter because the two do not agree on what ignoring case means beyond ASCII.
    """
    return "".join(_either_case(character) for character in text)


def _either_case(character: str) -> str:
    cases = sorted({character, character.lower(), character.upper()})
    single = [case for case in cases if len(case) == 1]
    if len(single) > 1:
        return f"[{''.join(single)}]"
    if character.isascii() and not character.isalnum():
        return f"\\x{ord(character):02x}"
    return character


def _bracketed(part: Expression) -> str:
    return f"({part})" if isinstance(part, And | Or) else str(part)


def _written(value: Value, field: Field) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Moment | Age):
        return value.written
    if isinstance(value, int | float):
        return repr(value)
    if PLAIN_WORD.fullmatch(value) and value.lower() not in KEYWORDS | {"null"}:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
