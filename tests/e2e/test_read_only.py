"""A run that was taken down can be read: `up --read-only` starts its store and its steward and no other unit."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from tests.e2e.running import Run, running
from tests.waiting import eventually

ROWS = 6


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[Run]:
    """A run with records that is down, without its run file and dataset."""
    for made in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}"):
        dataset = tmp_path / "train.jsonl"
        lines = [json.dumps({"query": f"what costs item {number}?", "answer": number}) for number in range(ROWS)]
        dataset.write_text("\n".join(lines))
        made.config |= {
            "environments": {"shop": {"dataset": dataset.name}},
            "model": {"build": "tiny"},
            "sampling": {"n": 2},
            "rollout": {"samplers": 0, "max_in_flight": 8},
            "training": {"frozen": True},
        }
        made.up("--no-wait")
        made.cli("stop", "engine-0", "--now")
        made.wait_state("steward-0", "ready")
        eventually(lambda run=made: run.cli("records", "list")["rows"], what="admitted groups")
        made.client.close()
        made._client = None
        made.cli("down", "--now")
        dataset.unlink()
        made.file.unlink()
        yield made


def test_run_that_is_down_can_be_read_after_the_suggested_command(ended: Run) -> None:
    code, refused = ended.cli("records", "list", check=False)
    assert code == ExitCode.NO_COORDINATOR
    command, _, promise = refused["error"]["hint"].partition(" brings up ")
    assert promise.startswith("its store and nothing else")

    up = ended.cli(*shlex.split(command)[1:])
    assert sorted(up["started"]) == ["mongo-0", "steward-0"]
    before = ended.cli("records", "list", "--filter", "status=open")["rows"]
    assert before
    assert len(ended.cli("tasks", "list")["rows"]) == ROWS
    ended.cli("accounting")
    row = ended.run_row()
    assert (row.state, row.reason) == ("running", "only to be read from: nothing is sampled or trained")
    alive = {unit for unit, shown in ended.units().items() if shown.state == "ready"}
    assert alive == {"mongo-0", "steward-0"}
    assert ended.cli("alerts", "list") == [], "units that are not wanted raise no alert"

    for words in (
        ("tasks", "requeue", before[0]["task"]),
        ("restart", "trainer"),
        ("scale", "sampler", "2"),
        ("tune", "supervision.agent_restart_s", "7"),
        ("pause",),
        ("pause", "steward"),
        ("stop", "steward-0"),
        ("drain", "steward-0"),
    ):
        code, refused = ended.cli(*words, "--yes", check=False)
        assert code in (ExitCode.REFUSED, ExitCode.CONFLICT)
        assert "only to be read from" in refused["error"]["message"]
    assert ended.cli("records", "list", "--filter", "status=open")["rows"] == before, "nothing was changed"

    ended.write()
    whole = ended.cli("up", str(ended.file), "--dry-run")
    assert {"steward-0", "engine-0"} <= {*whole["effect"]["starts"]}
    assert (whole["effect"]["drains"], whole["tier"]) == ([], "reversible"), "a full `up` afterwards needs no consent"

    ended.client.close()
    ended._client = None
    assert ended.cli("down")["proven"] is True
    assert not ended.processes()
