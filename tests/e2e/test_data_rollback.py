"""A run that was trained with a bad knob goes back to the weights before it, and forward again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import PYTHON, Run, running
from tests.e2e.terminal import Terminal
from tests.e2e.test_data_plane import UP_WITHIN_S, is_served, look, opened, up
from tests.e2e.test_data_plane_operated import parked
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

CHANGED_AFTER = 4
RATE, WORSE = 1e-4, 3e-4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    # The default times, because libraries of this size start slowly on a busy machine.
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


@pytest.fixture
def terminal(run: Run) -> Iterator[Terminal]:
    made = Terminal(run, width=200, height=50)
    yield made
    made.close()


def test_rollback_undoes_steps_and_knobs_and_another_rollback_brings_them_back(run: Run, terminal: Terminal) -> None:
    write_data(run.file.parent)
    run.config |= data_plane(steps=0)
    run.config["training"] |= {"learning_rate": RATE, "checkpoint_every": 2, "keep_checkpoints": 1}
    up(run)
    eventually(lambda: len(committed(run)) >= CHANGED_AFTER and saved(run), within_s=UP_WITHIN_S, what="a checkpoint")
    parked(run, "trainer")
    run.cli("tune", "learning_rate", str(WORSE), "--note", "faster")
    run.cli("tune", "max_turns", "5", "--note", "longer")
    trains(run)
    before = asyncio.run(look(run))
    (good,) = [one for one in saved(run) if one["kept_for"].startswith("before learning_rate")]
    steps = {step["_id"]: step for step in before["Step"] if step["status"] == "committed"}
    undone = {name: step for name, step in steps.items() if step["step"] > good["step"]}
    freed = sum(len(step["records"]) for step in undone.values())
    assert freed

    # The preview names all of these, and without consent nothing changes.
    command = (PYTHON, "-m", "agentrl", "rollback", "--run", run.name, "--to", good["id"], "--reason", "it is worse")
    terminal.run(*command)
    number = f"{len(undone)} steps" if len(undone) > 1 else "1 step"
    shown = " ".join(terminal.shows("Go on? [").split())
    for text in (number, f"{freed} records become free", f"learning_rate: {WORSE:g} -> {RATE:g}", "max_turns: 5 -> 0"):
        assert text in shown
    terminal.type("n\n")
    terminal.shows("Nothing was done.")
    assert states(asyncio.run(look(run)), steps.keys()) == {"committed"}

    terminal.run("clear")
    terminal.run(*command)
    terminal.shows("Go on? [")
    terminal.type("y\n")
    terminal.shows("done in", within_s=UP_WITHIN_S)
    # The next trainer is paused too, so it has published the weights and trained nothing.
    back = asyncio.run(look(run))
    assert not back["problems"]
    assert states(back, undone.keys()) == {"rolled_back"}
    assert states(back, steps.keys() - undone.keys()) == {"committed"}
    trained_before = {task for step in undone.values() for task in step["tasks"]}
    assert not [task["_id"] for task in back["Task"] if task["_id"] in trained_before and task["status"] == "trained"]
    *_, newer = sorted(back["Lineage"], key=lambda lineage: lineage["opened_at"])
    assert newer["parent_checkpoint"] == good["id"]
    assert newer["first_version"] > max(one["_id"] for one in before["Publication"])
    (first,) = [one for one in back["Publication"] if one["_id"] == newer["first_version"]]
    assert (first["lineage"], first["parent"]) == (newer["_id"], good["version"])
    eventually(lambda: is_served(run, asyncio.run(look(run))), within_s=UP_WITHIN_S)
    assert (knob(run, "learning_rate"), knob(run, "max_turns")) == (RATE, 0)
    assert run.cli("accounting")["balanced"]
    trains(run)
    again = {step["_id"] for step in asyncio.run(look(run))["Step"] if step["lineage"] == newer["_id"]}
    assert again

    # The newest checkpoint before the rollback was kept, so all undone steps come back.
    (late,) = [one for one in saved(run) if one["kept_for"].startswith("before the rollback to")]
    trained = max(step["step"] for step in steps.values() if step["records"])
    assert trained <= late["step"] <= max(step["step"] for step in steps.values()), "steps without records may follow"
    there = {name for name, step in steps.items() if step["step"] <= late["step"]}
    why = ("--reason", "the rate was not the cause")
    effect = str(run.cli("rollback", "--to", late["id"], *why, "--dry-run"))
    assert "that were undone before count again" in effect
    assert f"learning_rate: {RATE:g} -> {WORSE:g}" in effect
    run.cli("rollback", "--to", late["id"], *why, within_s=UP_WITHIN_S)
    forward = asyncio.run(look(run))
    assert not forward["problems"]
    assert states(forward, there) == {"committed"}
    assert states(forward, again) == {"rolled_back"}
    assert (knob(run, "learning_rate"), knob(run, "max_turns")) == (WORSE, 5)
    assert run.cli("accounting")["balanced"]


def trains(run: Run) -> None:
    """Train some steps until one has records and the last one has a checkpoint, then pause the trainer."""
    before = committed(run)[-1]["step"]
    run.cli("resume", "trainer")

    def enough() -> bool:
        newer = [step for step in committed(run) if step["step"] > before]
        return any(step["records"] for step in newer)

    eventually(enough, within_s=UP_WITHIN_S, what="a step with records")
    parked(run, "trainer")


def committed(run: Run) -> list[Any]:
    async def read() -> list[Any]:
        database = await opened(run)
        try:
            return await database.find("Step", {"status": "committed"}, sort=[("step", 1)])
        finally:
            await database.close()

    return asyncio.run(read())


def saved(run: Run) -> list[Any]:
    """Complete checkpoints, by step."""
    found: list[Any] = run.cli("checkpoints", "list", "--filter", "status = complete", "--sort", "step")["rows"]
    return found


def states(found: dict[str, Any], names: Any) -> set[str]:
    return {step["status"] for step in found["Step"] if step["_id"] in names}


def knob(run: Run, name: str) -> Any:
    return run.cli("tune", name)["knob"]["value"]
