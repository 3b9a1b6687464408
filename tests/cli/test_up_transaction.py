"""An `up` that was not accepted undoes its own changes and keeps what belongs to another `up`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.cli import up_transaction
from agentrl.cli.options import Cli
from agentrl.cli.progress import Progress
from agentrl.cli.start_coordinator import Place
from agentrl.cli.up_transaction import NOTHING_CHANGED, BeginLock, NewRun
from agentrl.client.run_processes import RunProcess
from agentrl.config import paths
from agentrl.errors import ConflictError
from agentrl.protocol.control_commands import Down
from agentrl.protocol.rows import HostRow, OperationState, RunRow
from tests.cli.scripted import Scripted


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    return Place("demo", paths.state_dir("demo"), tmp_path / "dir")


def created(place: Place, elsewhere: Path | None = None) -> NewRun:
    run = NewRun.create(place, place.run_dir / "run.yaml", (), elsewhere=elsewhere)
    return dataclasses.replace(run, started=True)


def test_undone_run_is_removed(place: Place) -> None:
    run = created(place)
    assert [run.name for run in paths.list_runs()] == ["demo"]
    assert asyncio.run(run.undo()) == NOTHING_CHANGED
    assert paths.list_runs() == []
    assert not place.run_dir.exists()


def test_accepted_run_is_not_removed(place: Place) -> None:
    created(place).remember()
    asyncio.run(created(place).undo())
    assert [run.name for run in paths.list_runs()] == ["demo"]


def test_run_that_another_command_had_accepted_is_not_removed(place: Place) -> None:
    first, second = created(place), created(place)
    second.remember()
    asyncio.run(first.undo())
    assert [run.name for run in paths.list_runs()] == ["demo"]


def test_older_state_directory_and_full_run_directory_are_not_removed(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "data"
    elsewhere.mkdir()
    run = created(place, elsewhere)
    (place.run_dir / "notes").touch()
    asyncio.run(run.undo())
    assert elsewhere.exists()
    assert (place.run_dir / "notes").exists()


def test_link_to_an_unmounted_state_directory_is_not_removed(place: Place, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    place.state_dir.parent.mkdir()
    place.state_dir.symlink_to(disk / "demo")
    asyncio.run(created(place, disk / "demo").undo())
    assert place.state_dir.is_symlink()


def test_undo_leaves_agent_and_coordinator_to_an_up_that_superseded_its_down(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[RunProcess]()

    async def end(keepers: list[RunProcess]) -> list[RunProcess]:
        ended.extend(keepers)
        return []

    monkeypatch.setattr(up_transaction, "end", end)
    with Scripted(tmp_path / "home") as coordinator:
        coordinator.rows["host"] = HostRow("here", "up")
        coordinator.rows["run"] = RunRow("demo", coordinator.uuid, "stopped", desired="down")
        coordinator.ends_as = OperationState.SUPERSEDED
        left = asyncio.run(NewRun(place, new_state_dir=True, started=True).undo())
    assert "Another `up` was accepted meanwhile" in left
    assert not ended, "agent and coordinator stay, because the run is wanted"
    assert place.state_dir.exists()


def test_undo_leaves_agent_and_coordinator_to_an_up_that_was_accepted_first(tmp_path: Path, place: Place) -> None:
    with Scripted(tmp_path / "home") as coordinator:
        coordinator.rows["host"] = HostRow("here", "up")
        coordinator.rows["run"] = RunRow("demo", coordinator.uuid, "stopped", desired="down")

        def down(args: Down) -> None:
            assert args.unless_up, (
                "the undo must send `unless_up`, because only the coordinator knows whether the run is wanted"
            )
            raise ConflictError("The run is up.")

        coordinator.answers["down"] = down  # type: ignore[assignment]
        left = asyncio.run(NewRun(place, new_state_dir=True, started=True).undo())
    assert "Another `up` was accepted meanwhile" in left
    assert json.loads((place.state_dir / "coordinator.json").read_text())["pid"] == os.getpid()


class Waiting(Progress):
    """The progress of an `up` that waits for the lock; it calls `done` at its first message."""

    def __init__(self, done: Callable[[], object]) -> None:
        super().__init__(Cli(json=True))
        self.steps: list[str] = []
        self._done = done

    def step(self, sentence: str) -> None:
        if not self.steps:
            self._done()
        self.steps.append(sentence)


def create_alone(place: Place, progress: Progress, within_s: float = 60.0) -> NewRun:
    return asyncio.run(NewRun.create_alone(place, lambda: created(place), progress, within_s))


def test_second_up_continues_when_the_first_was_accepted(place: Place) -> None:
    first = create_alone(place, Waiting(lambda: pytest.fail("nobody else is there")))

    def accepted() -> None:
        first.remember()
        first.release()

    second = create_alone(place, seen := Waiting(accepted))
    assert seen.steps
    assert not second.new_state_dir
    assert (place.state_dir / paths.LAST_UP).exists()


def test_second_up_creates_the_run_again_when_the_first_undid_it(place: Place) -> None:
    first = create_alone(place, Waiting(lambda: pytest.fail("nobody else is there")))
    (before,) = paths.list_runs()

    def taken_back() -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, first.undo()).result()
        assert paths.list_runs() == []
        first.release()

    second = create_alone(place, Waiting(taken_back))
    (after,) = paths.list_runs()
    assert after.uuid != before.uuid
    assert second.new_state_dir, "the second `up` must undo the state directory that it created"
    assert BeginLock.take(place.state_dir) is None, "the second `up` holds the lock"


def test_second_up_is_refused_when_the_first_takes_too_long(place: Place) -> None:
    create_alone(place, Waiting(lambda: pytest.fail("nobody else is there")))
    with pytest.raises(ConflictError, match="Another `agentrl up` begins the run demo"):
        create_alone(place, Waiting(lambda: None), within_s=0.0)
