"""What a notebook sees of new steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentrl.client import notebook
from agentrl.errors import AgentrlError, UnavailableError
from agentrl.protocol.data_commands import ListRows, Page
from agentrl.protocol.rows import AnyRow, RunRow, UnitRow, UnitState
from tests.formatting.test_record_page import story


def step(number: int, at_s: int) -> dict[str, Any]:
    at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=at_s)
    return {"id": f"{at_s:06}", "step": number, "status": "committed", "committed_at": at, "metrics": {"loss": 0.5}}


class Run(notebook.NotebookMethods):
    """`answers` are the committed steps at each look, the newest first."""

    run_name = "shop"  # type: ignore[assignment]

    def __init__(self, *answers: Sequence[dict[str, Any]] | AgentrlError) -> None:
        self.answers = list(answers)

    async def call(self, name: str, args: Any = None, **how: Any) -> Any:
        assert name == "list_steps"
        assert isinstance(args, ListRows)
        answer = self.answers.pop(0)
        if isinstance(answer, AgentrlError):
            raise answer
        return Page(tuple(answer[: args.limit]), after="")

    async def follow(self, kinds: Iterable[str] = ()) -> AsyncGenerator[tuple[str, AnyRow | None], None]:
        for number in (2.0, 3.0):
            metrics = {"step": number}
            yield "unit/trainer-0", UnitRow("trainer-0", "trainer", "trainer", UnitState.READY, metrics=metrics)
        yield "run", RunRow("shop", "u", "stopped")


async def test_a_rollback_shows_no_step_again_that_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "ROWS_AT_ONCE", 2)
    before = [step(number, number) for number in (4, 3, 2, 1)]
    # Steps 3 and 4 are undone, so older ones are among the newest; then a third step is trained again.
    run = Run(before, before[2:], [step(3, 30), *before[2:]], [step(3, 30), *before[2:]])
    assert [row["step"] async for row in run.watch()] == [3]


async def test_a_steward_that_is_away_costs_time_and_the_end_of_a_run_is_no_error() -> None:
    away = UnavailableError("the steward drains")
    run = Run([], away, [step(2, 2), step(1, 1)], away)
    assert [row["step"] async for row in run.watch()] == [1, 2]


def test_a_record_in_a_terminal_has_no_control_characters() -> None:
    shown = repr(notebook.RecordView(story(), {}, (), "shop"))
    assert shown.startswith("<record r")
    assert "\x1b" not in shown
