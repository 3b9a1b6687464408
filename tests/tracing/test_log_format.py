"""Log lines as JSON: one object a line with the trace that it belongs to, and text again for people."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from agentrl.formatting.log_lines import as_text, time_of
from agentrl.host.repeated_errors import errors_in
from agentrl.tracing import log_format, trace_context
from agentrl.tracing.trace_context import TraceContext

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    made = io.StringIO()
    monkeypatch.setattr("sys.stderr", made)
    return made


@pytest.fixture
def log(written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A logger whose root writes JSON lines to stderr as a daemon does."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv("AGENTRL_LOG_FORMAT", "json")
    monkeypatch.setenv("AGENTRL_INCARNATION", "sampler-0.3")
    monkeypatch.setenv("AGENTRL_HOST", "a")
    before = root.level
    log_format.set_up()
    yield logging.getLogger("sampler")
    root.setLevel(before)


def test_a_line_is_one_object_with_unit_level_and_trace(log: logging.Logger, written: io.StringIO) -> None:
    hostile = 'x\n{"time": "1970"}\x1b[31m"'
    with trace_context.within(TRACE):
        log.warning("record %s: %s", "r1", hostile)
    log.info("none")
    try:
        raise ValueError("broken\nhere")
    except ValueError:
        log.exception("it failed")
    first, second, third = map(json.loads, written.getvalue().splitlines())
    assert next(iter(first)) == "time"
    assert {name: first[name] for name in ("level", "unit", "host", "logger", "message", "trace_id", "span_id")} == {
        "level": "WARNING",
        "unit": "sampler-0.3",
        "host": "a",
        "logger": "sampler",
        "message": f"record r1: {hostile}",
        "trace_id": TRACE.trace_id,
        "span_id": TRACE.span_id,
    }
    assert "trace_id" not in second
    assert third["error"].endswith("ValueError: broken\nhere")


def test_people_and_the_search_for_repeated_errors_read_json_lines_as_text(
    log: logging.Logger, written: io.StringIO
) -> None:
    log.error("no route to %s", "b")
    try:
        raise OSError("the disk is full")
    except OSError:
        log.exception("it failed")
    lines = written.getvalue().splitlines()
    texts = [as_text(line) for line in lines]
    assert texts[0].endswith(" ERROR sampler: no route to b")
    assert time_of(texts[0]) == time_of(lines[0]) is not None
    found = list(errors_in(part for text in texts for part in text.split("\n")))
    assert found[-1] == "OSError: the disk is full"
    assert any("no route to b" in each for each in found)
    for other in ("plain", '{"time": 3}', '{"time": "x", "level"', '{"time": "x"}', "[1]"):
        assert as_text(other) == other


def test_the_format_can_change_while_the_process_lives(log: logging.Logger, written: io.StringIO) -> None:
    log_format.use("text")
    log.info("hello")
    log_format.use("json", "coordinator")
    log.info("hello")
    text, line = written.getvalue().splitlines()
    assert text.endswith("INFO sampler: hello")
    assert json.loads(line)["unit"] == "coordinator"
