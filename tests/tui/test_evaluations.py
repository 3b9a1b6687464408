"""Evaluations in the console: those of the run's versions, and files of `agentrl eval run`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import NoCoordinatorError
from agentrl.evaluation import progress
from agentrl.evaluation.progress import Progress
from agentrl.evaluation.results_file import ResultsFile
from agentrl.protocol import data_changes, data_commands
from agentrl.protocol.evaluation_commands import Attempt
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.tui.steward_answers import evaluation_rows
from tests.waiting import aeventually
from tui.console_interface import Settings
from tui.model import evaluation_tables


def attempt(task: int, model: str, score: float | None) -> Attempt:
    key = f"{model}/{task}"
    return Attempt(
        key=key, model=model, environment="shop", task=f"row-{task}", attempt=0, score=score, outcome="answered"
    )


def results(file: Path, model: str, score: float, tasks: int = 12) -> None:
    with ResultsFile(file) as those:
        for task in range(tasks):
            those.add(attempt(task, model, score))


@pytest.fixture
def run(coordinator: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    populate(coordinator)
    evaluation_rows(coordinator)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return coordinator


async def test_versions_and_files_are_listed_opened_and_compared(run: Scripted, tmp_path: Path) -> None:
    results(Path("results.jsonl"), "base", 0.0)
    results(tmp_path / "other.jsonl", "tuned", 1.0, tasks=3)
    progress.file_of(tmp_path / "other.jsonl").write_bytes(b'{"model": "tuned", "wanted": 9, "ended": 3, "at": 1}')
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("1", "V")
        await screen.shows("◐ 40 of 64", "◆ best", "other held-out tasks", "base", "results.jsonl")
        await screen.press("f")
        await screen.type(str(tmp_path / "other.jsonl"))
        await screen.press("enter")
        await screen.shows("■ 3 of 9", "stopped")
        # A mark on a version and one on a model of a file.
        table = screen.app.view.table  # type: ignore[attr-defined]
        for key in ("v19/shop", "results.jsonlbase/shop"):
            await aeventually(lambda key=key: table.model.select(key))
            await screen.press("space")
        await screen.press("c")
        await screen.shows("base and v19", "shop: v19 is better", "on 11 tasks", "tasks that moved most")
        await screen.press("escape")
        await aeventually(lambda: table.model.select("v19/shop"))
        await screen.press("enter")
        await screen.shows("by difficulty", "1 engine_died", "shop/row-11")
        run.answers["show_record"] = lambda args: data_commands.RecordStory(
            {"id": args.id}, {}, {"sentence": "it ended"}
        )
        await screen.press("enter")
        await screen.shows("which record")
        await screen.press("enter")
        await screen.shows("it ended")


async def test_files_are_shown_without_an_answer_and_a_browser_reads_none(run: Scripted) -> None:
    results(Path("results.jsonl"), "base", 0.0)

    def away(args: Any) -> Any:
        raise NoCoordinatorError("The steward is away.")

    run.answers["list_evaluations"] = away
    async with opened(run.state_dir, (80, 24)) as screen:
        await screen.press("8", "V")
        await screen.shows("base", "The steward is away.")
        await screen.press("enter")
        await screen.shows("evaluation of base", "12 answered")
    evaluation_rows(run)
    async with opened(run.state_dir, (80, 24), Settings(in_browser=True)) as screen:
        await screen.press("8", "V")
        await screen.shows("v19")
        assert "base" not in screen.text
        await screen.press("f")
        assert len(screen.app.screen_stack) == 1


@pytest.mark.parametrize("text", ["~no-such-user/results.jsonl", "x" * 300], ids=["unknown user", "too long"])
async def test_path_that_cannot_exist_is_no_file(run: Scripted, text: str) -> None:
    async with opened(run.state_dir, (120, 30)) as screen:
        for keys in (("8", "V", "f"), ("9", "f")):
            await screen.press(*keys)
            await aeventually(lambda: len(screen.app.screen_stack) == 2)
            await screen.type(text)
            await screen.press("enter")
            await screen.shows("There is no such file.")
            await screen.press("escape")


async def test_figures_are_summed_up_once_for_an_answer(run: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    results(Path("results.jsonl"), "base", 0.5)
    made = list[int]()
    of_attempts = evaluation_tables.of_attempts
    monkeypatch.setattr(
        evaluation_tables, "of_attempts", lambda those, width: made.append(width) or of_attempts(those, width)
    )
    async with opened(run.state_dir, (120, 40)) as screen:
        await screen.press("8", "V")
        await aeventually(lambda: screen.app.view.table.model.select("results.jsonlbase/shop"))  # type: ignore[attr-defined]
        await screen.press("enter")
        await screen.shows("evaluation of base", "12 answered")
        for _ in range(3):
            screen.app._paint_new_data()
        assert len(made) == len(set(made))


async def test_training_goes_back_to_the_checkpoint_of_a_version(run: Scripted) -> None:
    async with opened(run.state_dir, (100, 30)) as screen:
        await screen.command("eval list")
        await screen.shows("v19")
        await screen.press("F")
        await screen.shows("No complete checkpoint has the weights of v21")
        await aeventually(lambda: screen.app.view.table.model.select("v19/shop"))  # type: ignore[attr-defined]
        await screen.press("F")
        await screen.shows("Go back to step-190")
        await screen.type("it was better")
        await screen.press("enter")
        await aeventually(lambda: run.sent("rollback") == [data_changes.RollBack("step-190", "it was better")])


def test_a_model_without_an_attempt_shows_its_progress() -> None:
    far = Progress(model="new", wanted=400, ended=0, at=time.time())
    (row,) = evaluation_tables.of_file("r.jsonl", [], far, time.time(), 0)
    assert (row.state, row.so_far, row.mean) == ("under way", "0 of 400", None)
