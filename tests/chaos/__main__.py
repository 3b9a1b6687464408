"""`python -m tests.chaos --minutes 30 --seed 1`: a run that is struck again and again, and the proof of its books.

Exit 0: the job was done and everything agrees. Otherwise the run's directory is kept and the story is told.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.chaos_run import survive


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Deaths anywhere, and the proof after.")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long about (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what is struck in which order (%(default)s)")
    parser.add_argument("--only", metavar="WORD", default="", help="only blows whose name has this in it")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the run's directory is left")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="agentrl-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = survive(folder.resolve(), seed=given.seed, minutes=given.minutes, only=given.only)
    print(result.report())
    if not result.problems:
        return 0
    print(f"Everything is kept in {folder}.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
