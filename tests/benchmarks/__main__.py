"""`python -m tests.benchmarks [NAME...] [--json]`: without names all of them, in the order of their length."""

from __future__ import annotations

import argparse
import compileall
import importlib
import logging
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.benchmarks.cleanup import nothing_behind
from tests.benchmarks.demo_learning import SEEDS
from tests.benchmarks.report import Outcome, as_json, as_markdown, machine, show

BENCHMARKS = {
    "cli": "tests.benchmarks.command_line",
    "kill": "tests.benchmarks.kill_recovery",
    "start": "tests.benchmarks.startup",
    "adopt": "tests.benchmarks.adoption",
    "feed": "tests.benchmarks.feed_volume",
    "router": "tests.benchmarks.router_throughput",
    "console": "tests.benchmarks.console_keys",
    "peers": "tests.benchmarks.many_peers",
    "scale": "tests.benchmarks.many_units",
    "sandbox": "tests.benchmarks.sandboxes",
    "storage": "tests.benchmarks.storage",
    "step": "tests.benchmarks.packed_step",
    "tokens": "tests.benchmarks.trained_tokens",
    "publication": "tests.benchmarks.publication",
    "ranks": "tests.benchmarks.several_ranks",
    "memory": "tests.benchmarks.step_memory",
    "records": "tests.benchmarks.claims",
    "large": "tests.benchmarks.large_run",
    "calls": "tests.benchmarks.call_lists",
    "replay": "tests.benchmarks.replays",
    "tools": "tests.benchmarks.tool_calls",
    "environments": "tests.benchmarks.environments",
    "lines": "tests.benchmarks.user_lines",
    "tunnels": "tests.benchmarks.tunnels",
    "files": "tests.benchmarks.file_copies",
    "hosts": "tests.benchmarks.several_hosts",
    "ray": "tests.benchmarks.ray_start",
    "slurm": "tests.benchmarks.slurm_start",
    "overhead": "tests.benchmarks.overhead",
    "trl": "tests.benchmarks.against_trl",
    "demo": "tests.benchmarks.demo_learning",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="one document on stdout; tables go to stderr")
    parser.add_argument("--markdown", action="store_true", help="the figures of docs/benchmarks.md on stdout")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how often the demo is measured")
    args = parser.parse_args()
    os.environ[SEEDS] = str(args.seeds)
    if unknown := [name for name in args.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
    console = Console(stderr=args.json or args.markdown, width=None if sys.stdout.isatty() else 130)
    console.print(" · ".join(f"{key} {value}" for key, value in machine().items()), style="dim", highlight=False)
    _compile()
    outcomes: dict[str, Outcome] = {}
    failed: dict[str, str] = {}
    try:
        with nothing_behind() as left:
            for name in args.names or BENCHMARKS:
                _measure(name, outcomes, failed, console)
    except KeyboardInterrupt:
        console.print("interrupted", style="bold")
        return 130
    for process in left:
        console.print(f"left behind and ended: {process}", style="bold")
    if args.json:
        print(as_json(outcomes, failed))
    if args.markdown:
        print(as_markdown(outcomes))
    return 1 if failed or left else 0


def _compile() -> None:
    """Write the byte code of this tree, as pip did for the peers. Otherwise each process may compile its modules."""
    root = Path(__file__).parents[2]
    for package in ("agentrl", "assets", "daemons", "tests", "tui"):
        compileall.compile_dir(root / package, quiet=1, workers=0)


def _measure(name: str, outcomes: dict[str, Outcome], failed: dict[str, str], console: Console) -> None:
    """Run one benchmark. If it fails, the figures of the others are kept."""
    began = time.monotonic()
    try:
        outcomes[name] = importlib.import_module(BENCHMARKS[name]).measure()
    except Exception as broken:
        failed[name] = f"{type(broken).__name__}: {broken}"
        logging.exception("the benchmark %s failed", name)
        return
    outcomes[name].took_s = round(time.monotonic() - began, 1)
    show(outcomes[name], console)


if __name__ == "__main__":
    sys.exit(main())
