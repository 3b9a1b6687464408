"""Log lines that repeat are folded into one; other lines and tracebacks stay."""

from __future__ import annotations

from agentrl.formatting.repeated_lines import fold_repeats

ROUTINE = [
    f"2026-11-22 13:{minute}:07,12{minute} sampler call c{minute} of r8f3a{minute} failed" for minute in range(13)
]
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in main',
    '  File "b.py", line 2, in main',
    "ValueError: 3",
]


def test_repeated_lines_fold_into_the_last_of_them() -> None:
    last = ["it starts", *ROUTINE[:7], "the disk is full", *ROUTINE[7:]]
    assert fold_repeats(last) == ["it starts", "the disk is full", f"×13 {ROUTINE[-1]}"]
    assert fold_repeats([]) == []
    assert fold_repeats(["one", "two"]) == ["one", "two"]


def test_tracebacks_are_not_folded() -> None:
    twice = [*TRACEBACK, *ROUTINE[:1], *TRACEBACK]
    assert fold_repeats(twice) == twice
