"""The command wait: it ends when the run is finished or a condition holds, and its exit code says which."""

from __future__ import annotations

import json

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol import rows
from tests.cli.conftest import Shell
from tests.cli.scripted import Scripted


def run(state: str, **fields: object) -> rows.RunRow:
    return rows.RunRow("demo", "u", state, **fields)  # type: ignore[arg-type]


def trainer(state: rows.UnitState = rows.UnitState.READY, **metrics: float) -> rows.UnitRow:
    return rows.UnitRow("trainer-0", "trainer", "trainer", state, metrics=metrics)


def test_wait_ends_when_the_run_is_finished(shell: Shell, coordinator: Scripted) -> None:
    coordinator.rows |= {"run": run("running"), "unit/trainer-0": trainer(step=3.0)}
    waiting = shell.start("wait", "--json")
    coordinator.publish("run", run("finished", reason="training is complete"))
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (ExitCode.OK, "")
    assert json.loads(out)["state"] == "finished"


@pytest.mark.parametrize(
    ("state", "until", "code"),
    [
        ("running", "evaluation >= 0.9", ExitCode.OK),
        ("running", "state = running and step > 2", ExitCode.OK),
        ("finished", "evaluation > 0.99", ExitCode.FAILED),
        ("running", "evaluaton > 0.9", ExitCode.USAGE),
        ("stopped", "state = finished", ExitCode.TAKEN_DOWN),
    ],
)
def test_exit_code_says_how_the_wait_ended(
    shell: Shell, coordinator: Scripted, state: str, until: str, code: ExitCode
) -> None:
    coordinator.rows |= {"run": run(state), "unit/trainer-0": trainer(step=3.0, evaluation=0.95)}
    shell("wait", "--until", until, expect=code)


def test_wait_for_a_fatal_trainer_and_a_late_condition_end(shell: Shell, coordinator: Scripted) -> None:
    coordinator.rows |= {"run": run("degraded", reason="trainer-0 is fatal"), "unit/trainer-0": trainer(step=3.0)}
    said = shell("wait", "--timeout", "0.5", expect=ExitCode.TIMEOUT)
    assert "the run goes on" in said.err
    coordinator.rows["unit/trainer-0"] = trainer(rows.UnitState.FATAL)
    assert "trainer-0 is fatal" in shell("wait", expect=ExitCode.UNHEALTHY).out
