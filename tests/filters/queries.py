"""Strategies of hypothesis for documents with every kind of value, and for queries."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from agentrl.filters.expressions import (
    TICK,
    Age,
    And,
    Compare,
    Expression,
    In,
    Moment,
    Not,
    Or,
)
from agentrl.filters.fields import Field, fields

FIELDS = fields(
    text="status error nested.word",
    number="score turns nested.depth",
    time="created_at",
    flag="signal",
    texts="servers",
    prefixes={"metrics": "number"},
    columns="extra",
)
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

TEXT, NUMBER, TIME = FIELDS.find("status"), FIELDS.find("score"), FIELDS.find("created_at")
NAMES = ("id", "status", "error", "nested.word", "score", "turns", "nested.depth", "created_at", "signal", "servers")
COLUMNS = ("row.word", "row.depth")

words = st.sampled_from(
    (
        "",
        "failed",
        "Failed",
        "fail",
        "a.b",
        "[x]",
        "K",
        "é",
        "É",
        "straße",
        "and",
        "null",
        "5",
        '"',
        "\\",
        "x\ny",
        "$ne",
    )
) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)
numbers = st.sampled_from((0, 1, -1, 5, 0.5, 1e300, 2**62, -(2**63), 2**53 + 1)) | st.floats(
    allow_nan=False, allow_infinity=False
)
document_numbers = numbers | st.sampled_from((math.nan, math.inf, -math.inf))
instants = st.sampled_from(
    [
        datetime(2026, 3, 1, tzinfo=UTC) + timedelta(milliseconds=offset)
        for offset in (-1, 0, 1, 250, 999, 1000, 60_000, 3_600_000, 86_399_999, 86_400_000)
    ]
)
moments = st.sampled_from(
    [
        Moment(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC), "2026-03-01"),
        Moment(datetime(2026, 3, 1, 0, 0, tzinfo=UTC), datetime(2026, 3, 1, 0, 1, tzinfo=UTC), "2026-03-01T00:00"),
        Moment(
            datetime(2026, 3, 1, 0, 0, 1, tzinfo=UTC), datetime(2026, 3, 1, 0, 0, 2, tzinfo=UTC), "2026-03-01T00:00:01"
        ),
        Moment(
            datetime(2026, 3, 1, 0, 0, 0, 250000, tzinfo=UTC),
            datetime(2026, 3, 1, 0, 0, 0, 250000, tzinfo=UTC) + TICK,
            "2026-03-01T00:00:00.250Z",
        ),
    ]
)
ages = st.sampled_from([Age(3600, "-1h"), Age(43200, "-12h"), Age(43200.0, "-720m"), Age(86400, "-1d"), Age(0, "-0s")])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": words,
    "texts": words,
    "number": numbers,
    "flag": st.booleans(),
    "time": moments | ages,
    "any": words | numbers | st.booleans(),
}
ORDERED = ("<", "<=", ">", ">=")


@st.composite
def conditions(draw: st.DrawFn) -> Expression:
    field = FIELDS.find(draw(st.sampled_from(NAMES + COLUMNS)))
    assert isinstance(field, Field)
    signs = ["=", "!=", "in"]
    if field.kind in ("text", "texts", "any"):
        signs += ["~", "!~"]
    if field.kind in ("text", "number", "time", "any"):
        signs += ORDERED
    sign = draw(st.sampled_from(signs))
    value = VALUES[field.kind]
    if field.kind == "any" and sign not in ("=", "!=", "in"):
        value = words if "~" in sign else words | numbers
    if sign == "in":
        return In(field, tuple(draw(st.lists(value | st.none(), min_size=1, max_size=3))))
    if sign in ("=", "!="):
        value |= st.none()
    return Compare(field, sign, draw(value.filter(bool) if "~" in sign else value))  # type: ignore[arg-type]


expressions = st.recursive(
    conditions(),
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple))
    ),
    max_leaves=5,
)

anything = words | document_numbers | st.booleans() | st.none()
_kept = {
    "status": words,
    "error": words,
    "score": document_numbers,
    "turns": document_numbers,
    "created_at": instants,
    "signal": st.booleans(),
    "servers": st.lists(words, max_size=3),
    "extra": st.fixed_dictionaries(
        {}, optional={name: anything | st.lists(anything, max_size=3) for name in ("word", "depth")}
    ),
    "nested": st.fixed_dictionaries({}, optional={"word": words, "depth": document_numbers}),
}
documents = st.fixed_dictionaries(
    {"id": st.text("abc", max_size=3)}, optional={name: value | st.none() for name, value in _kept.items()}
)
