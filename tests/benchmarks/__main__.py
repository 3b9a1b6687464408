"""`python -m tests.benchmarks [NAME...] [--json]`: without names all of them, in the order of their length."""

from __future__ import annotations

import argparse
import importlib
import sys

from rich.console import Console

from tests.benchmarks.figures import Outcome, as_json, machine, show

BENCHMARKS = {
    "cli": "tests.benchmarks.commandline",
    "kill": "tests.benchmarks.killing",
    "start": "tests.benchmarks.starting",
    "adopt": "tests.benchmarks.adopting",
    "feed": "tests.benchmarks.feeding",
    "router": "tests.benchmarks.routing",
    "peers": "tests.benchmarks.crowd",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="one document on stdout; tables go to stderr")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
    console = Console(stderr=args.json, width=None if sys.stdout.isatty() else 130)
    console.print(" · ".join(f"{key} {value}" for key, value in machine().items()), style="dim", highlight=False)
    outcomes: dict[str, Outcome] = {}
    for name in args.names or BENCHMARKS:
        outcomes[name] = importlib.import_module(BENCHMARKS[name]).measure()
        show(outcomes[name], console)
    if args.json:
        print(as_json(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
