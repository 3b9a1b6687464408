"""The console on a run that trains: a trajectory is read, and the bound is tightened and loosened again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.running import Run, running
from tests.e2e.terminal import Terminal, console, sane
from tests.e2e.test_data_plane import UP_WITHIN_S, up
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

BOUND = 9
"""Nothing that is ready is as old as that, so whatever is a little tighter voids nothing."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("console-data")
    for made in running(folder, f"t-{uuid.uuid4().hex[:8]}", factor=1.0):
        write_data(folder)
        made.config |= data_plane(bound=BOUND)
        made.config["training"] |= {"steps": 0, "checkpoint_every": 1000}
        made.config["evaluation"] = {"every": 0}
        up(made)
        wait_for_trajectories(made)
        yield made


@pytest.fixture
def terminal(run: Run) -> Iterator[Terminal]:
    made = Terminal(run)
    try:
        yield made
    finally:
        made.close()


def wait_for_trajectories(run: Run) -> None:
    asked = ("records", "list", "--filter", SCORED, "--limit", "1")
    eventually(lambda: run.cli(*asked)["rows"] or None, within_s=UP_WITHIN_S, what="a trajectory that was scored")


SCORED = "status=scored and turns>1"


def test_a_trajectory_of_a_live_run_is_read_turn_by_turn(run: Run, terminal: Terminal) -> None:
    """From the list to the record, its turns, their tokens and the tree of them, and to the attempts beside it."""
    terminal.run(*console(run))
    terminal.shows("● running", "Learning", "sampler 1/1")
    terminal.keys("7", "/")
    terminal.type(SCORED)
    terminal.keys("Enter")
    terminal.shows(f"/{SCORED}", "scored", "answered")
    # The rows of before the filter stand until its answer; then only the run itself is running.
    eventually(lambda: terminal.seen().count("running") == 1, what="the answer to the filter")
    terminal.keys("Home", "Enter")
    terminal.shows("asked: bake", "turn 0  v", " at engine-0", "→ shop.lookup(item='bake')", "on sampler-0.1")
    terminal.keys("]")
    terminal.shows("turn 1  v", "<answer>")
    terminal.keys("c")
    terminal.shows("⟨v")
    terminal.keys("b")
    terminal.shows("tokens, ", " trained", "WEIGHTS")
    terminal.keys("Escape", "Escape")
    terminal.shows(f"/{SCORED}", "RECORD")
    # Meanwhile the row may have left the page, and then nothing is aimed at before one moves.
    terminal.keys("Home", "a")
    terminal.shows("attempts ", " at shop/train/", "turn 0")
    terminal.keys("q")
    sane(terminal, 0)


def test_the_bound_is_tightened_after_a_look_and_taken_back(run: Run, terminal: Terminal) -> None:
    terminal.run(*console(run))
    terminal.shows("● running")
    terminal.keys("5", "b")
    terminal.shows("▸ bound", "under way", "try another bound")
    terminal.keys("Left", "Left")
    terminal.shows(f"at {BOUND - 2}: voids and admits no ready record", f"the bound goes from {BOUND} to {BOUND - 2}")
    assert bound(run) == BOUND, "a look changes nothing"
    terminal.keys("Enter")
    terminal.shows(f"from {BOUND} to {BOUND - 2}", "reversible: ")
    terminal.keys("Enter")
    terminal.shows("takes it back")
    assert bound(run) == BOUND - 2
    terminal.keys("u")
    eventually(lambda: bound(run) == BOUND or None, what="the bound as it was")
    terminal.keys("h")
    terminal.shows(f"bound: {BOUND} -> {BOUND - 2}", f"bound: {BOUND - 2} -> {BOUND}")
    terminal.keys("q")
    sane(terminal, 0)
    assert run.run_row().state == "running"


def bound(run: Run) -> object:
    return run.client.knobs("bound")[0].value
