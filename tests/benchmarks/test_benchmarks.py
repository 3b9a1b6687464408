"""What surrounds the measurements: a reach is judged as it is written, and nothing that was started outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.benchmarks.figures import Outcome, as_markdown
from tests.waiting import eventually

PROGRAM = """
import subprocess, sys, time
from tests.benchmarks.leaving import nothing_behind
with nothing_behind() as left:
    # In a session of its own, as a daemon would be.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    print(child.pid, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(1000)
print(len(left))
"""


def outcome() -> Outcome:
    made = Outcome("a title")
    made.faster("start", 10.0, "ms", "slow", 50.0, by=5)
    made.faster("start", 10.0, "ms", "quick", 9.0, by=1)
    made.within("start", 10.0, "ms", "floor", 4.0, factor=3)
    made.share("rate", 40.0, "/s", "loop", 100.0, least=0.5)
    made.at_most("lost", 0.0, "", 0)
    made.plain("memory", 7.0, "MiB")
    return made


def test_a_reach_is_judged_as_it_is_written() -> None:
    assert [line.reached for line in outcome().lines] == [True, False, True, False, True, None]
    assert [line.ratio for line in outcome().lines[:4]] == [5.0, 0.9, 2.5, 0.4]


def test_the_figures_of_the_documentation() -> None:
    text = as_markdown({"start": outcome()})
    assert "### start: a title" in text
    assert "| start | 10 ms | slow | 50 ms | 5 | 5× faster | yes |" in text
    assert "| rate | 40 /s | loop | 100 /s | 0.4 | ≥ 0.5 | NO |" in text


@pytest.mark.parametrize("how", ["by itself", "by SIGTERM"])
def test_nothing_that_was_started_outlives_a_measurement(how: str) -> None:
    word = "go" if how == "by itself" else "wait"
    command = [sys.executable, "-c", PROGRAM, word]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        if how == "by SIGTERM":
            os.kill(process.pid, signal.SIGTERM)
        assert (process.wait(60) == 0) is (how == "by itself")
    eventually(lambda: not psutil.pid_exists(child), what="the child is gone")
