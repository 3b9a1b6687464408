"""Faulty messages give few log lines, and the rest is counted."""

from __future__ import annotations

import logging

import pytest

from agentrl.transport import log_limiter
from agentrl.transport.log_limiter import LogLimiter


def test_faulty_messages_give_few_lines_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    quiet = LogLimiter(logging.getLogger("some.module"), clock=lambda: now)
    for number in range(1000):
        quiet.warning("loud", "loud says %d", number)
        quiet.warning(f"stranger {number}", "a stranger says %d", number)
    quiet.warning("loud", "not this one")
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("a stranger says 0") == 1, "a noisy peer does not hide the others"
    assert sum(line.startswith("loud says") for line in lines) == log_limiter.EACH
    assert len(lines) == log_limiter.EACH + log_limiter.SOURCES - 1

    caplog.clear()
    now = log_limiter.WINDOW_S
    quiet.warning("loud", "again")
    left_out = 2001 - log_limiter.EACH - log_limiter.SOURCES + 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{left_out} more lines of this kind were left out",
        "again",
    ]
