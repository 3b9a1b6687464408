"""`python -m tests.chaos --minutes 30 --seed 1`: injects faults into a run and verifies its data afterwards.

Exits with 0 if the job was done and all checks passed. Otherwise it prints the problems and keeps the run's directory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.chaos_run import run_chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Injects faults into a run.")
    parser.add_argument("--minutes", type=float, default=3.0, help="approximate duration (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults and their order (%(default)s)")
    parser.add_argument("--only", metavar="WORD", default="", help="only faults whose name contains this")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="directory for the run, which is kept")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="agentrl-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = run_chaos(folder.resolve(), seed=given.seed, minutes=given.minutes, only=given.only)
    print(result.report())
    if not result.problems:
        return 0
    print(f"The run is kept in {folder}.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
