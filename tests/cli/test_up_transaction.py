"""What an up that comes to nothing takes back, and what it leaves to others."""

from __future__ import annotations

import asyncio
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
from agentrl.cli.up_transaction import NOTHING_CHANGED, Beginning, Turn
from agentrl.client.run_processes import Living
from agentrl.config import paths
from agentrl.errors import ConflictError
from agentrl.protocol.commands import Down
from agentrl.protocol.rows import HostRow, OperationState, RunRow
from tests.cli.scripted import Scripted


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    return Place("demo", paths.state_dir("demo"), tmp_path / "dir")


def make(place: Place, elsewhere: Path | None = None) -> Beginning:
    begun = Beginning.make(place, place.run_dir / "run.yaml", (), elsewhere=elsewhere)
    return Beginning(begun.place, begun.file, begun.sets, begun.new_run, begun.new_dir, started=True)


def test_a_run_that_was_made_for_nothing_is_not_there_afterwards(place: Place) -> None:
    begun = make(place)
    assert [run.name for run in paths.list_runs()] == ["demo"]
    assert asyncio.run(begun.taken_back()) == NOTHING_CHANGED
    assert paths.list_runs() == []
    assert not place.run_dir.exists()


def test_what_was_there_before_or_was_accepted_stays(place: Place) -> None:
    make(place).accepted()
    asyncio.run(make(place).taken_back())
    assert [run.name for run in paths.list_runs()] == ["demo"]


def test_what_another_command_had_accepted_meanwhile_stays(place: Place) -> None:
    first, second = make(place), make(place)
    second.accepted()
    asyncio.run(first.taken_back())
    assert [run.name for run in paths.list_runs()] == ["demo"]


def test_a_state_directory_of_before_and_a_full_run_directory_are_not_removed(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "data"
    elsewhere.mkdir()
    begun = make(place, elsewhere)
    (place.run_dir / "notes").touch()
    asyncio.run(begun.taken_back())
    assert elsewhere.exists()
    assert (place.run_dir / "notes").exists()


def test_a_link_to_a_state_directory_that_is_away_is_not_removed(place: Place, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    place.state_dir.parent.mkdir()
    place.state_dir.symlink_to(disk / "demo")
    asyncio.run(make(place, disk / "demo").taken_back())
    assert place.state_dir.is_symlink()


def test_a_run_that_is_brought_up_while_it_is_taken_back_keeps_agent_and_coordinator(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[Living]()

    async def end(keepers: list[Living]) -> list[Living]:
        ended.extend(keepers)
        return []

    monkeypatch.setattr(up_transaction, "end", end)
    monkeypatch.setattr(up_transaction, "_TAKEN_BACK_WITHIN_S", 1.0)
    with Scripted(tmp_path / "home") as coordinator:
        coordinator.rows["host"] = HostRow("here", "up")
        coordinator.rows["run"] = RunRow("demo", coordinator.uuid, "stopped", desired="down")
        coordinator.ends_as = OperationState.SUPERSEDED
        told = asyncio.run(Beginning(place, new_run=True, started=True).taken_back())
    assert "Another `up` was accepted meanwhile" in told
    assert not ended, "they keep a run that is wanted"
    assert place.state_dir.exists()


def test_a_run_that_another_up_brought_up_in_the_last_moment_is_left_to_it(tmp_path: Path, place: Place) -> None:
    with Scripted(tmp_path / "home") as coordinator:
        coordinator.rows["host"] = HostRow("here", "up")
        coordinator.rows["run"] = RunRow("demo", coordinator.uuid, "stopped", desired="down")

        def down(args: Down) -> None:
            assert args.unless_up, "only the coordinator knows whether the run is wanted by now"
            raise ConflictError("The run is up.")

        coordinator.answers["down"] = down  # type: ignore[assignment]
        told = asyncio.run(Beginning(place, new_run=True, started=True).taken_back())
    assert "Another `up` was accepted meanwhile" in told
    assert json.loads((place.state_dir / "coordinator.json").read_text())["pid"] == os.getpid()


class Seen(Progress):
    """What a second `up` says while it waits for its turn; `done` happens when it first says so."""

    def __init__(self, done: Callable[[], object]) -> None:
        super().__init__(Cli(json=True))
        self.said: list[str] = []
        self._done = done

    def step(self, sentence: str) -> None:
        if not self.said:
            self._done()
        self.said.append(sentence)


def in_turn(place: Place, progress: Progress, within_s: float = 60.0) -> Beginning:
    return asyncio.run(Beginning.in_turn(place, lambda: make(place), progress, within_s))


def test_a_second_up_goes_on_when_the_first_was_accepted(place: Place) -> None:
    first = in_turn(place, Seen(lambda: pytest.fail("nobody else is there")))

    def accepted() -> None:
        first.accepted()
        first.let_go()

    second = in_turn(place, seen := Seen(accepted))
    assert seen.said
    assert not second.new_run
    assert (place.state_dir / paths.LAST_UP).exists()


def test_a_second_up_makes_the_run_anew_when_the_first_took_it_back(place: Place) -> None:
    first = in_turn(place, Seen(lambda: pytest.fail("nobody else is there")))
    (before,) = paths.list_runs()

    def taken_back() -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, first.taken_back()).result()
        assert paths.list_runs() == []
        first.let_go()

    second = in_turn(place, Seen(taken_back))
    (after,) = paths.list_runs()
    assert after.uuid != before.uuid
    assert second.new_run, "it is this one's to take back now"
    assert Turn.take(place.state_dir) is None, "and its turn"


def test_a_second_up_says_who_begins_the_run_when_that_takes_too_long(place: Place) -> None:
    in_turn(place, Seen(lambda: pytest.fail("nobody else is there")))
    with pytest.raises(ConflictError, match="Another `agentrl up` begins the run demo"):
        in_turn(place, Seen(lambda: None), within_s=0.0)
