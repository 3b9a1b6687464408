"""Measures the latency of the command line, compared with the bare interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.report import Outcome, median
from tests.benchmarks.supervisors import BIN
from tests.e2e.running import Run

UNITS = 200
REPEATS = 20
HELP_MS = 100.0
STATUS_MS = 400.0


def measure() -> Outcome:
    outcome = Outcome(f"the command line (medians of {REPEATS}; status on a run of {UNITS} units)")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Run(Path(folder), f"bench-{os.getpid()}", factor=1.0)
        run.sidecar("web", ["sleep", "100000"], count=UNITS)
        try:
            run.up()
            agentrl = str(BIN / "agentrl")
            times = _in_turn(
                {
                    "agentrl --help": [agentrl, "--help"],
                    "agentrl status --json": [agentrl, "status", "--json", "--run", run.name],
                    "python -c pass": [sys.executable, "-c", "pass"],
                    'python -c "import zmq, msgspec"': [sys.executable, "-c", "import zmq, msgspec"],
                },
                run.environ,
            )
        finally:
            run.close()
    outcome.at_most("agentrl --help", times["agentrl --help"], "ms", HELP_MS)
    outcome.at_most("agentrl status --json", times["agentrl status --json"], "ms", STATUS_MS)
    for floor in ("python -c pass", 'python -c "import zmq, msgspec"'):
        outcome.plain(f"floor: {floor}", times[floor], "ms")
    return outcome


def _in_turn(commands: dict[str, list[str]], environ: Mapping[str, str]) -> dict[str, float]:
    """Returns milliseconds. The commands take turns, so that a busy moment of the machine affects all of them
    equally."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(REPEATS):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, env=dict(environ), check=True, capture_output=True, timeout=60)
            taken[name].append((time.perf_counter() - began) * 1e3)
    return {name: median(values) for name, values in taken.items()}
