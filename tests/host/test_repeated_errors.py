"""Errors that logs repeat are counted once for each kind, with the first and the last of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentrl.host import repeated_errors
from agentrl.host.repeated_errors import COUNT_FROM, MOST_BYTES, RepeatedErrors, errors_in

TRACEBACK = """2026-11-23 03:10:12,120 scorer: the judge cannot be called
Traceback (most recent call last):
  File "limits.py", line {line}, in acquire
    raise LimiterGone(worker)
limits.LimiterGone: worker {worker} has no rate limiter
"""


def test_lines_that_are_no_errors_are_not_counted() -> None:
    fine = ["step 3", "errors: 0", "no Error here", "INFO shop.lookup failed: tool_server_failed", "  File 'a.py'"]
    assert list(errors_in(fine)) == []
    wrong = ["12:01 toolbox: search: RateLimiterDied: gone \x1b[0m", "12:02 ERROR the limiter is down"]
    assert list(errors_in(wrong)) == ["RateLimiterDied: gone", "ERROR the limiter is down"]


def test_a_traceback_and_the_line_before_it_are_one_error() -> None:
    logged = "12:01 ERROR scorer: no score\n" + TRACEBACK.partition("\n")[2].format(line=1, worker=2)
    assert list(errors_in((logged + logged).splitlines())) == ["limits.LimiterGone: worker 2 has no rate limiter"] * 2
    # Lines of a server begin with its name, and lines of an exception group begin with a margin.
    server = [f"12:01 toolbox: search: {line.strip()}" for line in logged.splitlines()[1:]]
    assert list(errors_in([*server, "12:02 toolbox: ValueError: no"])) == ["ValueError: no"]
    group = ["  + Exception Group Traceback (most recent call last):", "  | KeyError: 'a'", "step 3"]
    assert list(errors_in(group)) == ["KeyError: 'a'"]


@pytest.mark.parametrize("line", ["A" * MOST_BYTES, "AError" * 40_000, "XError" + " " * 200_000, "XError:\n" * 30_000])
def test_no_line_takes_long(line: str) -> None:
    began = time.process_time()
    for text in errors_in(line.splitlines()):
        assert len(text) <= repeated_errors.MOST_CHARS
    assert time.process_time() - began < 2.0


def test_memory_is_bounded_and_a_repeated_error_is_found_among_many_others(tmp_path: Path) -> None:
    errors, path = RepeatedErrors(), tmp_path / "1.log"
    errors.look([])
    letters = "abcdefghij"
    kinds = [f"{a}{b}{c}" for a in letters for b in letters for c in letters]
    path.write_text("".join(f"X{kind}Error: x\n" + "LimiterGoneError: x\n" * (kind[-1] == "a") for kind in kinds))
    errors.look([("web-0", path)])
    (found,) = errors.of_unit("web-0")
    assert (found.text, found.count) == ("LimiterGoneError: x", 100)
    assert len(errors._by_unit["web-0"]) == repeated_errors.MOST_KINDS


def test_an_error_is_counted_over_looks_with_its_first_and_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr("agentrl.host.repeated_errors.time.time", lambda: clock[0])
    errors, path = RepeatedErrors(), tmp_path / "1.log"
    old = TRACEBACK.format(line=1, worker=0)
    path.write_text(old * 30)
    errors.look([("web-0", path)])
    assert errors.of_unit("web-0") == (), "the error was in the log at the first look"
    for look in range(COUNT_FROM):
        assert errors.of_unit("web-0") == ()
        with path.open("a") as log:
            log.write(TRACEBACK.format(line=look, worker=look) + "half a li")
        clock[0] += 1.0
        errors.look([("web-0", path)])
    (found,) = errors.of_unit("web-0")
    assert (found.text, found.count) == ("limits.LimiterGone: worker 0 has no rate limiter", COUNT_FROM)
    assert (found.first_at, found.last_at) == (1_001.0, 1_000.0 + COUNT_FROM)
    path.write_text("ValueError: after a cut\n")
    path.with_name("2.log").write_text(old * 3 + "x" * MOST_BYTES + "\n" + old)
    errors.look([("web-0", path), ("web-0", path.with_name("2.log"))])
    assert errors.of_unit("web-0")[0].count == COUNT_FROM + 1, "a look reads the end of a long log"
    clock[0] += repeated_errors.FORGOTTEN_S + 1
    errors.look([])
    assert errors.of_unit("web-0") == ()
    assert not errors._by_unit, "a unit that is gone takes no memory"
