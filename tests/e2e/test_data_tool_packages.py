"""Packages of a tool server, from the run file to a serving toolbox: refused, failed, installed, and installed
again."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.config.tool_lock import ToolLock
from agentrl.errors import ExitCode
from tests.e2e import onscreen
from tests.e2e.running import Run, running
from tests.tool_environments.conftest import QuotaIndex, Workplace
from tests.waiting import eventually

WITHIN_S = 120.0
MARK = f"--random=4{os.getpid()}"
"""A mark in the command line of each server that this test starts."""
SERVER = f"""
import os

def main():
    os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "assets.shop_server", "--no-faults", {MARK!r}])
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _serves(run: Run) -> bool:
    return "1 of 1 server serves" in run.unit_row("toolbox-0").status


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=0.3)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[QuotaIndex]:
    index = QuotaIndex(tmp_path / "index")
    yield index
    index.close()


def test_packages_are_pinned_installed_and_made_again(run: Run, tmp_path: Path, index: QuotaIndex) -> None:
    place = Workplace(tmp_path)
    place.wheel("shop-server", code=SERVER)
    run.environ |= place.env | index.env
    (tmp_path / "train.jsonl").write_text('{"query": "what?", "answer": "1"}\n')
    run.config |= {
        "environments": {"shop": {"dataset": "train.jsonl", "tools": ["shop"]}},
        "tools": {"shop": {"python": "shop-server", "command": ["shop-server"], "session": "keyed"}},
        "model": {"build": "tiny"},
        "sampling": {"n": 2, "max_tokens": 8},
        "rollout": {"samplers": 0},
        "training": {"frozen": True},
        "inherit": [name for name, value in index.env.items() if value],
    }
    run.write()
    code, refused = run.cli("up", str(run.file), check=False)
    assert (code, run.state_dir.exists()) == (ExitCode.CONFIG, False)
    assert "run.tools.lock does not pin shop-server" in refused["error"]["message"]

    refused = run.raw("tools", "lock", str(run.file))
    assert (refused.returncode, index.refused) == (ExitCode.FAILED, 3), (
        "retries have growing delays and do not wait for the requested hour"
    )
    assert "429 Client Error: Too Many Requests" in refused.stderr
    assert "as when a quota is used up" in refused.stderr
    index.refuses = None
    lock = Path(run.cli("tools", "lock", str(run.file))["lock"])
    assert list(ToolLock.beside(run.file).servers) == ["shop"]
    assert lock.exists()
    (wheel,) = place.index.iterdir()
    kept = wheel.rename(tmp_path / wheel.name)
    failed = run.raw("up", str(run.file))
    assert (failed.returncode, run.state_dir.exists()) == (ExitCode.FAILED, False)
    assert "The packages of shop were not installed: No matching distribution found" in failed.stderr
    assert (place.installed, place.remains) == ([], [])

    kept.rename(wheel)
    run.calls_tools = True
    wrong = run.raw(
        "up", str(run.file), "--set", "tools.shop.examples={lookup: {item: gold}}", "--no-wait", within_s=WITHIN_S
    )
    assert wrong.returncode == ExitCode.TOOLS, wrong.stderr
    assert "The packages of shop are installed: 1 package" in wrong.stderr
    assert 'tools.shop: the tool lookup refuses its example {"item": "gold"}: no such item: gold.' in wrong.stderr
    assert "Nothing was started. `agentrl up --skip-tools` starts without calling tools." in wrong.stderr
    assert (run.state_dir.exists(), run.dir.exists(), _servers()) == (False, False, [])
    started = run.raw("up", str(run.file), "--no-wait", within_s=WITHIN_S)
    assert started.returncode == 0, started.stderr
    assert "untried" not in started.stderr, "both tools were called and work"
    eventually(lambda: _serves(run), within_s=WITHIN_S)
    run.cli("tools", "environments", "--remove-unused")
    (environment,) = place.installed
    (listed,) = run.cli("tools", "environments")
    assert (listed["path"], listed["in_use"]) == (str(environment), True)

    # The lock file is only for the next `up`, because the run has a copy of its pins.
    lock.unlink()
    shutil.rmtree(place.cache)
    index.refuses = "/"
    before = run.incarnations()["toolbox-0"]
    run.cli("restart", "toolbox-0", "--yes", "--no-wait")
    run.wait_incarnation("toolbox-0", before, within_s=WITHIN_S)
    spends_no_attempt_while_the_index_refuses(run)
    index.refuses = None
    eventually(lambda: _serves(run), within_s=WITHIN_S)
    assert place.installed == [environment]
    scored = eventually(lambda: _records(run, "status=scored"), within_s=WITHIN_S, what="a score")
    assert {record["attempt"] for record in scored} == {1}


def spends_no_attempt_while_the_index_refuses(run: Run) -> None:
    run.cli("scale", "sampler", "1", "--yes", "--no-wait")
    eventually(lambda: _records(run, "status=running"), within_s=WITHIN_S, what="records that wait")
    why = "The packages of shop were not installed: Could not fetch URL http://127.0.0.1"

    def named() -> bool:
        (server,) = run.cli("tools", "list")["rows"]
        assert why in server["why"], server
        assert "429" in server["why"]
        return True

    eventually(named, within_s=WITHIN_S, what="the answer of the index")
    assert "429 Client Error" in run.raw("tools", "show", "shop").stdout
    eventually(lambda: "429 Client Error" in str(run.cli("alerts", "list")), within_s=WITHIN_S, what="an alert")
    onscreen.live(run, ("4", "enter"), "429")


def _servers() -> list[int]:
    return [process.pid for process in psutil.process_iter(["cmdline"]) if MARK in (process.info["cmdline"] or ())]


def _records(run: Run, filter: str) -> list[Any]:
    return list(run.cli("records", "list", "--filter", filter)["rows"])
