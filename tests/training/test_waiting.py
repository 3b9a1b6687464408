"""When the trainer's wait for a batch is late: by the run's own pace."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from agentrl.training.waiting import LATE_AFTER_S, LATE_FACTOR, BatchWait, late_after_s


class Unit:
    """Remembers the limits of its waits."""

    def __init__(self) -> None:
        self.limits: list[float] = []

    def wait(self, what: str, *, on: str, at_most_s: float) -> AbstractContextManager[Any]:
        self.limits.append(at_most_s)
        return nullcontext()


@pytest.mark.parametrize("slower", [1, 3])
@pytest.mark.parametrize("usual_s", [2.0, 240.0, 1200.0])
def test_a_slow_run_is_not_late(usual_s: float, slower: int) -> None:
    assert slower * usual_s < late_after_s([usual_s] * 5, group_s=60.0)


def test_the_first_batch_may_take_what_a_group_may_take() -> None:
    assert late_after_s([], group_s=1800.0) == 1800.0
    assert late_after_s([], group_s=60.0) == LATE_AFTER_S


def test_a_wait_spans_all_looks_and_its_duration_is_remembered() -> None:
    unit, now = Unit(), [0.0]
    waiting = BatchWait(unit, 60.0, clock=lambda: now[0])  # type: ignore[arg-type]
    waiting.end()
    assert [waiting.begin(), waiting.begin()] == [True, False]
    now[0] = 100.0
    waiting.end()
    waiting.end()
    assert waiting.begin()
    assert unit.limits == [LATE_AFTER_S, LATE_FACTOR * 100.0]
