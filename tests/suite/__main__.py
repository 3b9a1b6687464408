"""Runs the suite: `python -m tests.suite [PATH ...]`.

Test files wait in one queue, the most expensive first, and a few lanes take them. One database server and the imports
of this process are shared by all of them.

Invariants:
- Every selected file runs exactly once, whatever happens to the others, and each failure is counted.
- The last line is `N passed, N failed, N skipped`. The exit code is 0 only if nothing failed and something passed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Lanes share the cores, so the threads of one computation would mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.suite import lanes, schedule, summary  # noqa: E402
from tests.suite.process_costs import ProcessCosts  # noqa: E402
from tests.suite.progress import Progress  # noqa: E402
from tests.suite.results import Failure, Results  # noqa: E402
from tests.suite.schedule import Batch  # noqa: E402
from tests.suite.second_look import second_look  # noqa: E402

PYTEST = (
    *("--hypothesis-profile=ci", "-m", "not long", "-q", "--tb=short", "--continue-on-collection-errors"),
    # The plugins are imported before pytest starts; they need no rewritten assertions.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
"""This profile uses the same examples in each run; run pytest without it to search for new ones."""
ELSEWHERE = ("tests/gpu",)
"""`make test-gpu` runs them."""
LOOK_EVERY_S = 5.0


class Suite:
    """The lanes, and what waits for them."""

    def __init__(
        self, count: int, directory: Path, arguments: Sequence[str], progress: Progress, results: Results
    ) -> None:
        self._count = count
        self._directory = directory
        self._arguments = arguments
        self._progress = progress
        self._results = results
        self._started = 0
        self.interrupted = False
        self.ended_early = False
        self.processes = ProcessCosts()

    def run(self, batches: Sequence[Batch]) -> None:
        """Run all batches. After an interrupt no further one starts, and those that run end early."""
        waiting = list(batches)
        running: dict[int, lanes.Lane] = {}
        looked_at = 0.0
        # Lanes inherit the pipes of those before them, and epoll would report a pipe that is closed only here.
        with selectors.PollSelector() as selector:
            while waiting or running:
                while waiting and len(running) < self._count:
                    lane = self._start(waiting.pop(0))
                    running[lane.channel] = lane
                    selector.register(lane.channel, selectors.EVENT_READ)
                for key, _ in selector.select(timeout=0.5):
                    if not self._read(running[key.fd]):
                        selector.unregister(key.fd)
                        ended = running.pop(key.fd)
                        if not self.ended_early:
                            waiting[:0] = schedule.parts_of(ended.batch, self._results.to_run_again(ended))
                if self.interrupted:
                    self.interrupted = False
                    waiting.clear()
                    for lane in running.values():
                        os.kill(lane.pid, signal.SIGINT)
                now = time.monotonic()
                if now - looked_at > LOOK_EVERY_S:
                    self.processes.look()
                    looked_at = now
                self._progress.show(list(running.values()), waiting, now=now)

    def interrupt(self) -> None:
        self.interrupted = self.ended_early = True

    def _start(self, batch: Batch) -> lanes.Lane:
        self._started += 1
        return lanes.start(batch, self._directory / str(self._started), self._arguments, time.monotonic())

    def _read(self, lane: lanes.Lane) -> bool:
        """Whether the lane goes on."""
        messages = lane.messages()
        if messages is None:
            self._tell(self._results.end(lane, time.monotonic()))
            return False
        for message in messages:
            self._tell(self._results.receive(lane, message))
        return True

    def _tell(self, failure: Failure | None) -> None:
        if failure is not None:
            self._progress.say(f"FAILED {failure.test} ({failure.when})")


def main() -> int:
    options = _options()
    files = schedule.files_at(options.root, options.paths, without=ELSEWHERE)
    costs = schedule.recorded()
    batches = schedule.batches(files, costs, options.root)
    begun_at = time.monotonic()
    results = Results()
    progress = Progress(options.lanes, results)
    progress.say(f"{len(files)} files in {len(batches)} batches for {options.lanes} lanes. Importing what they share.")
    if not options.bare:
        lanes.preload()
    os.chdir(options.root)
    directory = Path(tempfile.mkdtemp(prefix="s-"))
    try:
        with contextlib.nullcontext() if options.bare else _database(directory):
            suite = Suite(options.lanes, directory, [*PYTEST, *options.pytest.split()], progress, results)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: suite.interrupt())
            suite.run(batches)
            unsteady = [] if suite.ended_early else second_look(suite, results, costs, options.root)
    finally:
        progress.end()
        shutil.rmtree(directory, ignore_errors=True)
    if options.record:
        schedule.add_to_record(results.costs)
    parts = (
        summary.skipped(results.skip_reasons),
        summary.left_behind(results.left_behind),
        summary.where_the_time_went(results, suite.processes, time.monotonic() - begun_at),
        summary.failures("unsteady: failed at first, and passed by themselves", unsteady),
        summary.failures("what failed", results.failures),
    )
    for line in itertools.chain(*parts):
        print(line)
    print(summary.counts(results))
    return 0 if results.passed and not results.failures and not suite.ended_early else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description="Run the tests in lanes.")
    parser.add_argument("paths", nargs="*", default=["tests"], metavar="PATH", help="files and folders of tests")
    parser.add_argument("--lanes", type=int, default=(os.cpu_count() or 1) + 1, help="tests often wait: cores + 1")
    parser.add_argument("--record", action="store_true", help="write what each file took into costs.json")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that the paths are relative to")
    parser.add_argument("--bare", action="store_true", help="import nothing and start no database server beforehand")
    parser.add_argument("--pytest", default="", metavar="ARGUMENTS", help="more arguments of pytest")
    options = parser.parse_args()
    if missing := [path for path in options.paths if not (options.root / path).exists()]:
        parser.error(f"there is no {', '.join(missing)}")
    return options


@contextlib.contextmanager
def _database(directory: Path) -> Iterator[None]:
    """One server for the tests of all lanes. Its files have no finalizer, which each fork would run at its end."""
    from tests.conftest import MONGO_URL
    from tests.store.mongod import server_in

    with server_in(directory / "mongo") as (_, url):
        os.environ[MONGO_URL] = url
        yield


if __name__ == "__main__":
    sys.exit(main())
