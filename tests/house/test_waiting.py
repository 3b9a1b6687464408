"""The tests' waits repeat on "not yet", and report other errors at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import AgentrlError
from agentrl.protocol.words import seconds
from tests.waiting import aeventually, eventually

EARLY: list[Callable[[], Any]] = [
    lambda: {"other": 1}["row"],
    lambda: [][0],
    lambda: next(iter(())),
    lambda: {"pulse": None}["pulse"]["units"],  # type: ignore[index]
    lambda: None.state,  # type: ignore[attr-defined]
    lambda: _one_of([]),
    lambda: Path("/no/such/file").read_text(),
    lambda: int(""),
]


def _one_of(found: list[int]) -> int:
    (one,) = found
    return one


def later(early: Callable[[], Any]) -> Callable[[], bool]:
    """Fails at the first call, and succeeds at the second."""
    looks = iter((early, lambda: True))
    return lambda: next(looks)()


@pytest.mark.parametrize("early", EARLY)
async def test_eventually_waits_for_missing_things(early: Callable[[], Any]) -> None:
    assert eventually(later(early))
    assert await aeventually(later(early))


@pytest.mark.parametrize("early", EARLY)
async def test_a_timeout_of_eventually_shows_the_last_value(early: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError, match=r"the row: not within 0 s; last seen: (\w+Error|StopIteration)\(") as seen:
        eventually(early, within_s=0.0, what="the row")
    assert seen.value.__cause__ is not None
    with pytest.raises(AssertionError, match="the row: not within 0 s"):
        await aeventually(early, within_s=0.0, what="the row")


async def test_aeventually_waits_for_missing_things() -> None:
    answers = iter(([], [7]))

    async def first() -> bool:
        return next(iter(next(answers))) == 7

    await aeventually(first)


async def test_eventually_raises_errors_of_the_product_at_once() -> None:
    numbers = {1}
    with pytest.raises(AgentrlError):
        eventually(lambda: seconds("soon"))
    with pytest.raises(TypeError):
        eventually(lambda: seconds(None))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="changed size"):
        eventually(lambda: [numbers.update({number + 1}) for number in numbers])  # type: ignore[func-returns-value]
    with pytest.raises(TypeError):
        await aeventually(lambda: seconds(None))  # type: ignore[arg-type]
