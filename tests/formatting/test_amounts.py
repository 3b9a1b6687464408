"""Amounts as people read them."""

from __future__ import annotations

import pytest

from agentrl.formatting.amounts import duration
from agentrl.formatting.row_text import allowed
from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.protocol.rows import KnobRow


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0.0 s"), (0.0001, "1 ms"), (0.042, "42 ms"), (0.4, "0.4 s"), (9.94, "9.9 s"), (75, "75 s"), (-1, "0.0 s")],
)
def test_what_took_a_moment_took_some_time(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(1e6, "1000000"), (1234567.0, "1234567"), (0.3, "0.3"), (1e-6, "1e-06"), (True, "true"), (4, "4"), ("a", "a")],
)
def test_a_setting_is_told_with_all_its_digits(value: KnobValue, told: str) -> None:
    assert plain_value(value) == told


def test_a_large_bound_is_told_as_it_would_be_typed() -> None:
    row = KnobRow("bound", 1, 1, 1, "int", minimum=1.0, maximum=1e6)
    assert allowed(row) == "1 to 1000000"
