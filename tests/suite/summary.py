"""The end of the output of the suite: what was skipped, where the time went, and on one screen what failed and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.suite.process_costs import ProcessCosts
from tests.suite.progress import clock
from tests.suite.results import Failure, Results

FILES, ROOMS, KINDS, TESTS = 20, 12, 20, 15
SCREEN_LINES = 60
REASON_LINES = 12
WIDTH = 160


def where_the_time_went(results: Results, processes: ProcessCosts, wall_s: float) -> Iterator[str]:
    whole = f"{results.cpu_s:,.0f} s of processors in {results.lane_s:,.0f} s of lanes"
    yield f"== where the time went: {clock(wall_s)} min, {whole}"
    yield f"{'processor s':>12} {'lane s':>8} {'tests':>6}  room"
    rooms: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for file, cost in results.costs.items():
        for place, value in enumerate((cost.cpu_s, cost.wall_s, cost.tests)):
            rooms[file.split("/")[1]][place] += value
    for room, (cpu_s, lane_s, tests) in sorted(rooms.items(), key=lambda item: -item[1][0])[:ROOMS]:
        yield f"{cpu_s:12.0f} {lane_s:8.0f} {tests:6.0f}  {room}"
    yield f"{'processor s':>12} {'lane s':>8} {'tests':>6}  file"
    for file, cost in sorted(results.costs.items(), key=lambda item: -item[1].cpu_s)[:FILES]:
        yield f"{cost.cpu_s:12.0f} {cost.wall_s:8.0f} {cost.tests:6}  {file}"
    yield f"{'processor s':>12} {'starts':>8}  kind of process"
    for kind, starts, cpu_s in processes.table(results.cpu_s)[:KINDS]:
        yield f"{cpu_s:12.0f} {starts or '':>8}  {kind}"
    yield f"{'seconds':>12}  test"
    for test, seconds, _ in sorted(results.slowest, key=lambda row: -row[1])[:TESTS]:
        yield f"{seconds:12.1f}  {test[:WIDTH]}"


def skipped(reasons: Counter[str]) -> Iterator[str]:
    if reasons:
        yield "== skipped"
        for reason, count in reasons.most_common():
            yield f"{count:6}  {' '.join(reason.split())[:WIDTH]}"


def left_behind(batches: Counter[str]) -> Iterator[str]:
    if batches:
        yield "== processes that tests left behind, and that their lane ended"
        for batch, count in batches.most_common():
            yield f"{count:6}  {batch}"


def failures(title: str, failed: Sequence[Failure]) -> Iterator[str]:
    """One screen: all names, and for as many failures as fit the assertion and the last lines of the logs."""
    if not failed:
        return
    yield f"== {title}"
    lines = SCREEN_LINES - len(failed)
    for number, failure in enumerate(failed):
        details = list(_details(failure))
        share = max(REASON_LINES if number == 0 else 1, lines // (len(failed) - number))
        yield f"{failure.test} ({failure.when})"
        for line in details[:share]:
            yield f"    {line[:WIDTH]}"
        lines = max(0, lines - min(share, len(details)))


def _details(failure: Failure) -> Iterator[str]:
    yield from failure.reason.splitlines()[:REASON_LINES]
    for log, lines in failure.logs.items():
        if lines:
            yield f"-- {log}"
            yield from lines


def counts(results: Results) -> str:
    """The last line, which readers of CI look for."""
    return f"{results.passed} passed, {results.failed} failed, {results.skipped} skipped"
