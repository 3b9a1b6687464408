"""Runs the files of one or two failed tests once more, alone.

With thousands of tests and real processes on a busy machine, a rare order of events can make a test fail. A test that
fails again is broken. A test that passes is unsteady: it needs a repair, but the change did not break it. Nothing runs
again if more than two tests failed or if a chaos test failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.suite import schedule
from tests.suite.results import Failure, Results
from tests.suite.schedule import Cost

if TYPE_CHECKING:
    from tests.suite.__main__ import Suite

MOST = 2


def second_look(suite: Suite, results: Results, costs: Mapping[str, Cost], root: Path) -> list[Failure]:
    """The failures that did not come again, which are no longer among the results."""
    first = results.failures
    files = sorted({failure.file for failure in first})
    if not first or results.failed > MOST or any(file.startswith("tests/chaos/") for file in files):
        return []
    results.failures = []
    before = results.passed, results.skipped
    tests = {failure.test for failure in first}
    suite.run(schedule.batches(files, costs, root))
    results.passed, results.skipped = before
    if results.failures:
        results.failures = first
        return []
    results.passed += len(tests)
    return first
