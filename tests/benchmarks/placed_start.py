"""Times `agentrl up` with hosts that a placement starts, until a unit on each of them is ready."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.running import Run, running
from tests.ports import free_triplet


def seconds_of_up(placement: dict[str, Any], count: int) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for run in running(Path(folder), "placed-start", factor=1.0):
            return _timed(run, placement, count, Path(folder))
    raise AssertionError("there is one run")


def _timed(run: Run, placement: dict[str, Any], count: int, folder: Path) -> float:
    run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_triplet()}"}
    run.config["hosts"] = {"node": {"count": count, "disk": str(folder / "disks")}}
    run.config["placement"] = placement
    for number in range(count):
        run.sidecar(f"web{number}", "sleep 1000", hosts=[f"node-{number}"])
    run.write()
    began = time.perf_counter()
    _command(run, "up", str(run.file))
    took = time.perf_counter() - began
    _command(run, "down", "--yes")
    return took


def _command(run: Run, *words: str) -> None:
    process = run.start(*words)
    output, complaint = process.communicate(timeout=120)
    assert process.returncode in (0, 10), output + complaint
