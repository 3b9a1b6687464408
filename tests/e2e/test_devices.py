"""Units of a real run get devices of their own, commands show who holds them, and what is free again is given again."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from tests.e2e.running import Run, running
from tests.waiting import eventually


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Two units that share a device, and two that need the same pair, on a host with a pair and a single one."""
    for run in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}"):
        run.environ["AGENTRL_DEVICES"] = "2x80GiB,1x24GiB"
        says = f'echo "sees $CUDA_VISIBLE_DEVICES" > {tmp_path}/$AGENTRL_UNIT; exec sleep 1000'
        run.sidecar("half", ["sh", "-c", says], count=2, resources={"gpus": 0.5})
        run.sidecar("pair", ["sh", "-c", says], count=2, resources={"gpus": 2})
        run.up("--no-wait")
        yield run


def test_units_get_devices_of_their_own_also_after_the_coordinator_was_killed(run: Run, tmp_path: Path) -> None:
    def ready(group: str) -> list[str]:
        return sorted(row.unit for row in run.units().values() if row.group == group and row.state == "ready")

    def seen(unit: str) -> str:
        file = tmp_path / unit
        return str(eventually(lambda: file.exists() and file.read_text().strip(), what=f"what {unit} sees"))

    eventually(lambda: len(ready("half")) == 2 and len(ready("pair")) == 1, what="the units that have room")
    (holder,) = ready("pair")
    other = "pair-1" if holder == "pair-0" else "pair-0"
    assert [seen(unit) for unit in ("half-0", "half-1", holder)] == ["sees 2", "sees 2", "sees 0,1"]
    assert f"needs 2 GPU, 0 of 3 free (0: {holder}.1; 1: {holder}.1; and 1 more)" in run.unit_row(other).reason

    (listed,) = run.cli("hosts", "list")
    held = run.cli("hosts", "show", listed["host"])["holders"]
    assert {id: sorted(names) for id, names in held.items()} == {
        "0": [f"{holder}.1"],
        "1": [f"{holder}.1"],
        "2": ["half-0.1", "half-1.1"],
    }
    assert f"80 GiB  {holder}.1" in run.raw("hosts", "show", listed["host"]).stdout
    assert "0 of 3 free" in run.raw("hosts", "list").stdout
    code, _ = run.cli("hosts", "show", "elsewhere", check=False)
    assert code == ExitCode.UNKNOWN

    before = run.coordinator_pid()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: run.run_row().coordinator_pid not in (0, before), what="the next coordinator")
    assert run.unit_row(holder).devices == ("0", "1")
    run.cli("stop", holder)
    eventually(lambda: ready("pair") == [other], what="the other unit on these devices")
    assert seen(other) == "sees 0,1"
