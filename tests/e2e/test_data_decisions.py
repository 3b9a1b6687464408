"""Decisions of operators about records of a live run: cancel, requeue, rescore, exclude, review.

Invariants: the steward is killed in the middle of bulk commands, and each record is in one state after them; the run
trains on, and its account balances.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import datasets, demonstrations
from tests.e2e.running import Run, running
from tests.e2e.test_data_plane import up
from tests.e2e.test_data_plane_operated import WITHIN_S, goes_on, parked
from tests.small_run import data_plane, write_data
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose trainer makes steps. The tests below run in their order."""
    folder = tmp_path_factory.mktemp("decisions")
    for made in running(folder, f"t-{uuid.uuid4().hex[:8]}", factor=1.0):
        write_data(folder)
        made.config |= data_plane()
        made.config["training"] |= {"steps": 0, "bound": 4}
        made.config["evaluation"] = {"every": 0}
        up(made)
        goes_on(made, 1)
        yield made


def tasks(run: Run, filter: str) -> list[Any]:
    return list(run.cli("tasks", "list", "--filter", filter, "--limit", "1000")["rows"])


def records(run: Run, filter: str) -> list[Any]:
    return list(run.cli("records", "list", "--filter", filter, "--limit", "1000")["rows"])


def of_ready(run: Run) -> str:
    names = ",".join(f'"{task["id"]}"' for task in tasks(run, "status=ready"))
    return f"task in ({names})"


def carried_out_despite_a_death(run: Run, *command: str) -> dict[str, Any]:
    """Kill the steward while it carries out a command. The operation must end as if the steward had lived."""
    before, life = run.incarnations()["steward-0"], run.unit_row("steward-0")
    operation = run.cli(*command, "--yes", "--no-wait")["operation"]
    os.kill(life.pid, signal.SIGKILL)
    run.wait_incarnation("steward-0", before, "ready", within_s=WITHIN_S)

    def ended() -> Any:
        row = next(iter(one for one in run.cli("events", "--limit", "200") if one.get("id") == operation), None)
        return row if row and row.get("state") in ("succeeded", "failed") else None

    row = eventually(ended, within_s=WITHIN_S, what="the end of the operation")
    assert row["state"] == "succeeded", row
    return dict(row["result"])


def test_waiting_and_running_records_are_cancelled_and_requeued(run: Run) -> None:
    parked(run, "sampler")
    rows = eventually(lambda: records(run, "status=open and seat<2"), within_s=WITHIN_S, what="records that wait")
    waiting = [row["id"] for row in rows]
    shown = run.cli("records", "cancel", *waiting, "--dry-run")["effect"]
    assert "will not be sampled" in shown["changes"][0]
    result = carried_out_despite_a_death(run, "records", "cancel", *waiting, "--note", "a test")
    assert result["cancelled"] == len(waiting)
    assert {row["status"] for row in records(run, 'reason="cancelled: a test"')} == {"cancelled"}
    result = carried_out_despite_a_death(run, "records", "requeue", "--filter", "status=cancelled")
    assert result["requeued"] == len(waiting)
    run.cli("resume", "sampler")
    goes_on(run, 1)
    assert run.cli("accounting")["balanced"]


def test_closed_groups_are_scored_again_and_excluded_from(run: Run) -> None:
    parked(run, "trainer")
    eventually(lambda: len(tasks(run, "status=ready")) >= 2, within_s=WITHIN_S, what="closed groups")
    chosen = f"status=scored and {of_ready(run)}"
    many = len(records(run, chosen))
    result = carried_out_despite_a_death(run, "records", "rescore", "--filter", chosen, "--scorer", "math")
    assert (result["rescored"], result["refused"]) == (many, 0)
    assert run.cli("accounting")["balanced"]
    first = tasks(run, "status=ready")[0]["id"]
    one = f'status=scored and task="{first}" and seat=0'
    result = carried_out_despite_a_death(run, "records", "exclude", "--filter", one)
    assert result["excluded"] == 1
    run.cli("resume", "trainer")
    goes_on(run)
    account = run.cli("accounting")
    assert account["balanced"], account["problems"]


def test_golden_records_become_a_dataset(run: Run, tmp_path: Path) -> None:
    queue = run.cli("review", "--limit", "8")["rows"]
    assert queue
    assert all(row["why"] for row in queue)
    golden = [row["id"] for row in queue if row["outcome"] == "answered"][:2]
    done = run.cli("review", "mark", "golden", *golden, "--note", "as it should be")
    assert done["operation"]["result"]["reviewed"] == len(golden)
    assert sorted(row["id"] for row in records(run, "review=golden")) == sorted(golden)
    file = tmp_path / "golden.jsonl"
    run.raw("records", "export", "--as", "dataset", "--output", str(file))
    assert sorted(row.id for row in datasets.read(file)) == sorted(golden)
    shown = demonstrations.read_demonstrations(file, parser="minicpm")
    assert all(one.messages[-1].role == "assistant" and one.instructions for one in shown)
