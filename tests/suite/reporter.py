"""A plugin of pytest that reports each test, as it begins and ends, to the process that runs the suite.

Each message is one line of JSON on a pipe. A failed test also brings the last lines of the logs in its directory,
which are removed with it.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LOG_LINES = 8
LOGS = 3
LINE_WIDTH = 200
LAST_BYTES = 8192


class Reporter:
    """Sends what happens in this process."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._begun_at = 0.0
        self._cpu_before_s = 0.0

    def _send(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        while line:
            line = line[os.write(self._channel, line) :]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._send("collected", tests=len(session.items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._send("failed", test=report.nodeid, when="collect", reason=_reason(report), logs={})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun_at = time.monotonic()
        self._cpu_before_s = cpu_s()
        self._send("begun", test=nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            logs = last_lines(getattr(item, "funcargs", {}).get("tmp_path"))
            self._send("failed", test=report.nodeid, when=report.when, reason=_reason(report), logs=logs)
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._send("skipped", test=report.nodeid, reason=_skip_reason(report))
        elif report.when == "call":
            self._send("passed", test=report.nodeid)
        return report

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._send("ended", test=nodeid, wall_s=time.monotonic() - self._begun_at, cpu_s=cpu_s() - self._cpu_before_s)


def cpu_s() -> float:
    """Processor seconds of this process and of its reaped children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Where it failed, and the lines of the assertion."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr)[-2000:]
    place = Path(crash.path)
    return f"{place.name}:{crash.lineno}: {crash.message}"


def _skip_reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def last_lines(directory: Path | None) -> dict[str, list[str]]:
    """The last lines of the logs below the directory that were written last."""
    if directory is None or not directory.is_dir():
        return {}
    logs = [path for pattern in ("*.log", "*.err", "*.out") for path in directory.rglob(pattern) if path.is_file()]
    written = sorted((path for path in logs if path.stat().st_size), key=lambda path: -path.stat().st_mtime)
    return {str(path.relative_to(directory)): _tail(path) for path in written[:LOGS]}


def _tail(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line[:LINE_WIDTH] for line in lines[-LOG_LINES:]]
