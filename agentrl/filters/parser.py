"""Parses a text into the tree of a query.

    query      = [ either ]
    either     = both { "or" both }
    both       = one { "and" one }
    one        = "not" one | "(" either ")" | FIELD operator VALUE | FIELD [ "not" ] "in" "(" VALUE { "," VALUE } ")"
    operator   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" (contains) | "!~"
    VALUE      = word | "quoted" | null;  times: 2026-03-01, 2026-03-01T10:30[:15[.250]][Z], or an age like -1h

Invariants: a text is parsed completely or refused with the position and the reason. Times without a zone are UTC.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NoReturn, get_args

from agentrl.errors import UsageError
from agentrl.filters.expressions import (
    EVERYTHING,
    KEYWORDS,
    NUMBER,
    PLAIN_WORD,
    TICK,
    Age,
    And,
    Compare,
    Expression,
    In,
    Moment,
    Not,
    Operator,
    Or,
    Value,
)
from agentrl.filters.fields import Field, Fields, Kind

DEEPEST = 20
"""The most levels of brackets. MongoDB refuses queries that are nested much deeper."""
LONGEST_TEXT = 1000
"""The most characters of a search text. MongoDB limits its patterns."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<operator>==|!=|<=|>=|!~|[=<>~])|(?P<mark>[(),])|(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    rf"|(?P<word>{PLAIN_WORD.pattern})",
    re.DOTALL,
)
_AGE = re.compile(r"-(\d+(?:\.\d+)?)([smhdw])")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d)(:\d\d)?(\.\d{1,3})?(Z|[+-]\d\d:\d\d)?)?",
)


class FilterError(UsageError):
    """A query that cannot be understood. `position` counts from 0."""

    def __init__(self, text: str, position: int, problem: str, *, hint: str = "") -> None:
        stop = "" if problem.endswith("?") else "."
        super().__init__(f"The query {text!r} cannot be understood at {position + 1}: {problem}{stop}", hint=hint)
        self.text = text
        self.position = position
        self.problem = problem


@dataclass(frozen=True, slots=True)
class _Token:
    kind: Literal["operator", "mark", "quoted", "word", "end"]
    text: str
    at: int

    @property
    def keyword(self) -> str:
        return self.text.lower() if self.kind == "word" and self.text.lower() in KEYWORDS else ""


def parse(text: str, fields: Fields) -> Expression:
    """The tree of a query. An empty text matches everything. Raises FilterError."""
    parser = _Parser(text, fields)
    if parser.at_end():
        return EVERYTHING
    tree = parser.either(0)
    if not parser.at_end():
        parser.fail(parser.next, f"{parser.next.text!r} was not expected; `and`, `or` or the end was")
    return tree


class _Parser:
    def __init__(self, text: str, fields: Fields) -> None:
        self._text = text
        self._fields = fields
        self._tokens = self._cut(text)
        self._at = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def at_end(self) -> bool:
        return self.next.kind == "end"

    def fail(self, token: _Token, problem: str, *, hint: str = "") -> NoReturn:
        raise FilterError(self._text, token.at, problem, hint=hint)

    def _take(self) -> _Token:
        token = self.next
        if token.kind != "end":
            self._at += 1
        return token

    def _cut(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                problem = "the quotation is not closed" if text[at] in "\"'" else f"{text[at]!r} means nothing here"
                raise FilterError(text, at, problem)
            match match.lastgroup:
                case "operator" | "mark" | "quoted" | "word" as kind:
                    tokens.append(_Token(kind, match.group(), at))
            at = match.end()
        return [*tokens, _Token("end", "the end", len(text))]

    # ---- the grammar ----

    def either(self, depth: int) -> Expression:
        parts = [self._both(depth)]
        while self.next.keyword == "or":
            self._take()
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self, depth: int) -> Expression:
        parts = [self._one(depth)]
        while self.next.keyword == "and":
            self._take()
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self, depth: int) -> Expression:
        token = self._take()
        if depth >= DEEPEST:
            self.fail(token, f"it is nested deeper than {DEEPEST} levels")
        if token.keyword == "not":
            return Not(self._one(depth + 1))
        if token.text == "(" and token.kind == "mark":
            inside = self.either(depth + 1)
            self._expect(")", "the bracket is not closed")
            return inside
        return self._condition(token)

    def _condition(self, token: _Token) -> Expression:
        field = self._field(token)
        sign = self._take()
        if sign.kind == "operator":
            return self._comparison(field, sign)
        if sign.keyword == "in":
            return self._choice(field)
        if sign.keyword == "not" and self.next.keyword == "in":
            self._take()
            return Not(self._choice(field))
        signs = " ".join(get_args(Operator))
        self.fail(sign, f"after {field.name} comes one of {signs} in, not {sign.text!r}")
        raise AssertionError("unreachable")

    def _field(self, token: _Token) -> Field:
        if token.kind != "word" or token.keyword:
            self.fail(token, f"the name of a field was expected, not {token.text!r}")
        if token.text in ("&&", "||", "&", "|"):
            self.fail(token, "write `and` and `or` as words")
        field = self._fields.find(token.text)
        if field is None:
            nearest = self._fields.nearest(token.text)
            meant = f"; did you mean {nearest!r}?" if nearest else ""
            hint = "" if nearest else f"Fields are: {', '.join(self._fields.names)}."
            self.fail(token, f"there is no field {token.text!r}{meant}", hint=hint)
        assert field is not None
        return field

    def _comparison(self, field: Field, sign: _Token) -> Expression:
        name = "=" if sign.text == "==" else sign.text
        operator: Operator = next(known for known in get_args(Operator) if known == name)
        if operator in ("~", "!~") and field.kind not in ("text", "texts", "any"):
            self.fail(sign, f"{field.name} is a {field.kind}; {operator} looks into texts")
        if operator in ("<", "<=", ">", ">=") and field.kind in ("flag", "texts"):
            self.fail(sign, f"{field.name} has no order; use = or !=")
        token = self.next
        as_text = operator in ("~", "!~")
        value = self._whole_value(field) if operator in ("=", "!=") else self._value(field, as_text=as_text)
        if value is None and operator not in ("=", "!="):
            self.fail(token, "null can only be compared with = and !=")
        if isinstance(value, bool) and operator not in ("=", "!="):
            self.fail(token, "true and false have no order; use = or !=")
        if as_text and isinstance(value, str) and not 0 < len(value) <= LONGEST_TEXT:
            self.fail(token, f"a text to look for has 1 to {LONGEST_TEXT} characters, not {len(value)}")
        return Compare(field, operator, value)

    def _choice(self, field: Field) -> Expression:
        self._expect("(", "after in comes a list in brackets, as in (a, b)")
        values = [self._whole_value(field)]
        while self.next.text == "," and self.next.kind == "mark":
            self._take()
            values.append(self._whole_value(field))
        self._expect(")", "the list is not closed, or a comma is missing")
        return In(field, tuple(values))

    def _expect(self, mark: str, problem: str) -> None:
        token = self._take()
        if token.kind != "mark" or token.text != mark:
            self.fail(token, problem)

    # ---- values ----

    def _whole_value(self, field: Field) -> Value:
        """Parses a value that the field can have, an empty text, or null."""
        token = self.next
        value = self._value(field)
        if field.choices and value and value not in field.choices:
            self.fail(token, f"{field.name} is one of {', '.join(field.choices)}, not {value!r}")
        return value

    def _value(self, field: Field, *, as_text: bool = False) -> Value:
        token = self._take()
        if token.kind not in ("word", "quoted") or token.keyword:
            quoted = "; quote it if it is meant as a text" if token.keyword else ""
            self.fail(token, f"a value for {field.name} was expected, not {token.text!r}{quoted}")
        if token.kind == "word" and token.text.lower() == "null":
            return None
        text = re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if token.kind == "quoted" else token.text
        match "text" if as_text else _kind(field, token):
            case "number":
                return self._number(field, token, text)
            case "flag":
                if text.lower() not in ("true", "false"):
                    self.fail(token, f"{field.name} is true or false, not {text!r}")
                return text.lower() == "true"
            case "time":
                return self._time(field, token, text)
        if "\0" in text:
            self.fail(token, "a text cannot contain the character with the number 0")
        return text

    def _number(self, field: Field, token: _Token, text: str) -> float:
        if not NUMBER.fullmatch(text):
            self.fail(token, f"{field.name} is a number, not {text!r}")
        number = float(text)
        if math.isinf(number):
            self.fail(token, f"{text} is too great")
        whole = int(text) if re.fullmatch(r"[+-]?\d+", text) else None
        # MongoDB's integers have 64 bits.
        return whole if whole is not None and -(2**63) <= whole < 2**63 else number

    def _time(self, field: Field, token: _Token, text: str) -> Value:
        if age := _AGE.fullmatch(text):
            seconds = float(age[1]) * UNITS[age[2]]
            if seconds > 100 * 366 * UNITS["d"]:
                self.fail(token, f"{text} is longer ago than a hundred years")
            return Age(seconds, text)
        parts = _TIME.fullmatch(text)
        if parts is None:
            example = "2026-03-01, 2026-03-01T10:30 or an age like -1h"
            self.fail(token, f"{field.name} is a time ({example}), not {text!r}")
        assert parts is not None
        try:
            return _moment(text, parts)
        except (ValueError, OverflowError) as error:
            self.fail(token, f"{text} is no time: {error}")
            raise AssertionError("unreachable") from error


def _kind(field: Field, token: _Token) -> Kind:
    """The kind of a value. For columns it follows from the form of the value, for other fields from the field."""
    if field.kind != "any":
        return field.kind
    if token.kind == "word" and NUMBER.fullmatch(token.text):
        return "number"
    return "flag" if token.kind == "word" and token.text.lower() in ("true", "false") else "text"


def _moment(text: str, parts: re.Match[str]) -> Moment:
    _, minutes, seconds, fraction, _ = parts.groups()
    start = datetime.fromisoformat(text)
    start = (start.replace(tzinfo=UTC) if start.tzinfo is None else start).astimezone(UTC)
    if fraction:
        length = TICK * 10 ** (4 - len(fraction))
    elif seconds:
        length = timedelta(seconds=1)
    else:
        length = timedelta(minutes=1) if minutes else timedelta(days=1)
    return Moment(start, start + length, text)
