"""Formatted durations and values."""

from __future__ import annotations

import pytest

from agentrl.formatting.amounts import duration
from agentrl.formatting.row_text import knob_range
from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.protocol.rows import KnobRow


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0.0 s"), (0.0001, "1 ms"), (0.042, "42 ms"), (0.4, "0.4 s"), (9.94, "9.9 s"), (75, "75 s"), (-1, "0.0 s")],
)
def test_short_durations_are_not_shown_as_zero(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e6, "1000000"), (1234567.0, "1234567"), (0.3, "0.3"), (1e-6, "1e-06"), (True, "true"), (4, "4"), ("a", "a")],
)
def test_settings_are_shown_with_all_digits(value: KnobValue, shown: str) -> None:
    assert plain_value(value) == shown


def test_large_bound_is_shown_as_it_is_typed() -> None:
    row = KnobRow("bound", "int", 1, value=1, revision=1, minimum=1.0, maximum=1e6)
    assert knob_range(row) == "1 to 1000000"
