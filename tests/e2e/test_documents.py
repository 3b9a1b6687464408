"""The examples of docs/units.md and docs/run-file.md work: programs run, the knob takes effect, the database is
reached.
"""

from __future__ import annotations

import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agentrl.protocol.rows import KnobRow
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", (DOCS / "units.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The programs of docs/units.md, its example with a knob, and the database of docs/run-file.md with its reader."""
    page = (DOCS / "run-file.md").read_text()
    (database,) = re.findall(r"^(name: with-a-database\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    place = tmp_path_factory.mktemp("documents")
    for made in running(place, f"t-{uuid.uuid4().hex[:8]}"):
        plain = yaml.safe_load(database)
        made.config |= {"mongo": plain["mongo"], "sidecars": plain["sidecars"]}
        for number, text in enumerate(PROGRAMS):
            program = place / f"program{number}.py"
            program.write_text(text)
            made.sidecar(f"own-{'abc'[number]}", ["{python}", str(program)], speaks=True)
        made.unit("pool", "worker_pool", "--tasks", "2")
        made.up()
        yield made


def test_programs_are_ready_and_make_progress(run: Run) -> None:
    assert len(PROGRAMS) == 3

    def all_moved() -> bool:
        rows = run.units()
        return all(rows[name].progress > 1 for name in ("own-a-0", "own-b-0", "own-c-0", "pool-0"))

    eventually(all_moved, what="progress of all programs")


@pytest.mark.parametrize("knob", ["own.pace_s", "pool.work_s"])
def test_knob_of_the_example_takes_effect_at_the_next_claim(run: Run, knob: str) -> None:
    run.cli("tune", knob, "0.05")

    def in_force() -> bool:
        (row,) = run.client.knobs(knob)
        assert isinstance(row, KnobRow)
        return row.in_force == 0.05

    eventually(in_force, what="the knob in force")
    if knob == "pool.work_s":
        eventually(lambda: run.unit_row("pool-0").status == "pieces of 0.05 s", what="the new speed")


def test_unit_gets_the_url_of_the_database_by_reference(run: Run) -> None:
    url = (run.state_dir / "mongo" / "url").read_text()
    output = [f"the URL has {len(url)} characters"]
    eventually(lambda: run.cli("logs", "reader-0")["lines"] == output, what="the URL at the unit")
    assert (run.state_dir / "mongo" / "mongod.log").exists()


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program_runs_without_a_coordinator(number: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])
    with subprocess.Popen([PYTHON, str(program)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "running on its own" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
