"""The syntax tree of a query.

Invariants: values and operators fit the kinds of their fields; the text of a tree, parsed again, gives the same tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from agentrl.filters.fields import Field

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~"]

KEYWORDS = frozenset({"and", "or", "not", "in"})
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
PLAIN_WORD = re.compile(r"""[^\s()=<>!~,"']+""")
"""A value that needs no quotes."""

TICK = timedelta(milliseconds=1)
"""MongoDB stores times in milliseconds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A date or time with the precision of its text: `2026-03-01` is the whole day."""

    start: datetime
    end: datetime
    """Exclusive."""
    written: str


@dataclass(frozen=True, slots=True)
class Age:
    """A time before the query is evaluated, such as `-1h`."""

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
    """All parts must be true. Without parts it is always true."""

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
    """Start and exclusive end of a time in a query."""
    if isinstance(value, Moment):
        return value.start, value.end
    utc = now.replace(tzinfo=UTC) if now.tzinfo is None else now
    at = utc - timedelta(seconds=value.seconds)
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    return at, at + TICK


def containing(text: str) -> str:
    """A regular expression that finds a text in upper or lower case, alike in MongoDB and Python.

    Each letter is written in both cases, because the two disagree about case beyond ASCII.
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


def _is_other(text: str, field: Field) -> bool:
    """Whether a text without quotes would be a number or a flag."""
    return field.kind == "any" and (NUMBER.fullmatch(text) is not None or text.lower() in ("true", "false"))


def _written(value: Value, field: Field) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Moment | Age):
        return value.written
    if isinstance(value, int | float):
        return repr(value)
    if PLAIN_WORD.fullmatch(value) and value.lower() not in KEYWORDS | {"null"} and not _is_other(value, field):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
