"""A session with the demo's run in a real terminal: every act is visible on the screen and in `--json`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from assets import shop_dataset
from tests.e2e.running import Run, running
from tests.e2e.terminal import Terminal, console, sane
from tests.e2e.test_data_plane import UP_WITHIN_S
from tests.waiting import eventually

BOUND = 30
"""No ready record is this old, so a slightly tighter bound drops nothing."""
SMALL = {
    "training.warmup.steps": 40,
    "training.warmup.batch": 16,
    "training.steps": 0,
    "training.groups": 1,
    "training.bound": BOUND,
    "training.checkpoint_every": 1000,
    "evaluation.every": 0,
    "engines.slots": 16,
    # This is enough for the screens, and the console shares two processors with the run.
    "rollout.concurrency": 8,
    "rollout.max_in_flight": 16,
}
"""The smallest demo: it writes calls, most of them for the wrong item, and runs until it is ended."""
PRICED = "status=scored and turns>1"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("evening")
    for made in running(folder, "shop", factor=1.0):
        made.file, made.dir = folder / "assets" / "train.yaml", folder / "runs" / "shop"
        made.file.parent.mkdir()
        with resources.as_file(resources.files("assets").joinpath("train.yaml")) as file:
            shutil.copyfile(file, made.file)
        shop_dataset.write(folder / "runs" / "shop-data", train=400, held_out=8, shown=1_000)
        changed = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
        made.cli("up", str(made.file), "--yes", *changed, within_s=UP_WITHIN_S)
        yield made


@pytest.fixture
def terminal(run: Run) -> Iterator[Terminal]:
    made = Terminal(run)
    try:
        yield made
    finally:
        made.close()


def test_session_with_the_demo_shows_every_act(run: Run, terminal: Terminal) -> None:
    terminal.run(*console(run))
    terminal.shows("● running", "Learning", "engine 1/1", "sampler 1/1", "trainer 1/1")
    a_sampler_more_and_one_less(run, terminal)
    the_bound_is_tightened_after_a_look_and_taken_back(run, terminal)
    a_log_is_followed(terminal)
    a_trajectory_is_read(run, terminal)
    a_unit_is_killed_and_its_incident_found(run, terminal)
    terminal.keys("q")
    sane(terminal, 0)
    assert run.cli("status")["run"]["state"] == "running"


def a_sampler_more_and_one_less(run: Run, terminal: Terminal) -> None:
    terminal.keys("2", "/")
    terminal.type("sampler")
    terminal.keys("Enter")
    terminal.shows("/sampler", "▸ sampler-0", "● ready")
    terminal.keys("+")
    terminal.shows("scale sampler to 2: done", "sampler 2/2", within_s=UP_WITHIN_S)
    assert strength(run) == (2, 2)
    eventually(lambda: rows_of(run, "records", "list", "--filter", "owner=sampler-1.1"), what="work of the second unit")
    terminal.keys("-")
    terminal.shows("scale sampler to 1?", "sampler-1")
    assert strength(run) == (2, 2), "the open question has changed nothing"
    terminal.keys("Enter")
    terminal.shows("scale sampler to 1: done", "sampler 1/1", within_s=UP_WITHIN_S)
    assert strength(run) == (1, 1)
    assert not incidents(run), "the unit was drained and not killed"
    terminal.keys("/", "Escape")
    terminal.shows("▸ sampler-0", "trainer-0")


def the_bound_is_tightened_after_a_look_and_taken_back(run: Run, terminal: Terminal) -> None:
    terminal.keys("5", "b")
    terminal.shows("▸ bound", "under way", "try another bound")
    terminal.keys("Left", "Left")
    terminal.shows(f"at {BOUND - 2}: bound: {BOUND} -> {BOUND - 2}", " ready ")
    assert bound(run)["value"] == BOUND, "the preview has changed nothing"
    terminal.keys("Enter")
    terminal.shows(f"{BOUND} -> {BOUND - 2}", "reversible: ")
    terminal.keys("Enter")
    terminal.shows("takes it back")
    assert bound(run)["value"] == BOUND - 2
    terminal.keys("u")
    eventually(lambda: bound(run)["value"] == BOUND, what="the bound as it was")
    terminal.keys("h")
    terminal.shows(f"bound: {BOUND} -> {BOUND - 2}", f"bound: {BOUND - 2} -> {BOUND}")
    assert bound(run)["revision"] == 2
    terminal.keys("Escape")


def a_log_is_followed(terminal: Terminal) -> None:
    """Three percent of the tool calls fail, and the sampler logs which ones."""
    terminal.keys("2")
    terminal.shows("▸ sampler-0")
    terminal.keys("l")
    before = terminal.shows("sampler-0.1", "following", "tool_server_failed").splitlines()
    eventually(lambda: written(terminal) - set(before), what="lines that were written meanwhile")


def a_trajectory_is_read(run: Run, terminal: Terminal) -> None:
    """From the list to the record, its turns, their tokens, the token tree, and the other attempts."""
    priced = ("records", "list", "--filter", PRICED, "--limit", "1")
    (chosen,) = eventually(lambda: rows_of(run, *priced), what="a trajectory")
    terminal.keys("7", "/")
    terminal.type(f"turns>1 and id={chosen['id']}")
    terminal.keys("Enter")
    terminal.shows("/turns>1", "▸ 1 record", f"▸ {chosen['id']}")
    terminal.keys("Enter")
    terminal.shows("asked: ", "turn 0  v", " at engine-0", "on sampler-")
    terminal.keys("]")
    terminal.shows("turn 1  v")
    terminal.keys("c")
    terminal.shows("⟨v")
    terminal.keys("b")
    terminal.shows("tokens, ", " trained", "WEIGHTS")
    terminal.keys("Escape")
    terminal.shows("tokens by weights")
    terminal.keys("Escape")
    terminal.shows("▸ 1 record", "RECORD")
    terminal.keys("a")
    terminal.shows("attempts ", " at shop/train/", "turn 0")
    terminal.keys("Escape")


def a_unit_is_killed_and_its_incident_found(run: Run, terminal: Terminal) -> None:
    terminal.keys("2")
    terminal.shows("▸ sampler-0")
    terminal.keys("l")
    terminal.shows("sampler-0.1", "following")
    os.kill(run.unit_row("sampler-0").pid, signal.SIGKILL)
    terminal.shows("sampler-0.1 ended; this is sampler-0.2", within_s=UP_WITHIN_S)
    terminal.keys("2", "i")
    terminal.shows("incident sampler-0.1", "signal 9", "tool_server_failed")
    (found,) = [one for one in incidents(run) if (one["unit"], one["incarnation"]) == ("sampler-0", 1)]
    assert found["exit"]["signal"] == signal.SIGKILL
    terminal.keys("Escape")
    terminal.shows("sampler 1/1", within_s=UP_WITHIN_S)
    run.wait_incarnation("sampler-0", 1, within_s=UP_WITHIN_S)


# ---- state in `--json` ----


def strength(run: Run) -> tuple[int, int]:
    """Count of desired and of ready samplers."""
    (group,) = (group for group in run.cli("status")["groups"] if group["name"] == "sampler")
    return group["desired"], group["ready"]


def bound(run: Run) -> dict[str, Any]:
    shown: dict[str, Any] = run.cli("tune", "bound")["knob"]
    return shown


def incidents(run: Run) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = run.cli("events", "--kind", "incident")
    return shown


def rows_of(run: Run, *words: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = run.cli(*words)["rows"]
    return shown


def written(terminal: Terminal) -> set[str]:
    """The visible lines of a log."""
    return {line for line in terminal.seen().splitlines() if "tool_server_failed" in line}
