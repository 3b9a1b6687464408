"""A page that cannot be delivered yet survives `up` and the death of the coordinator."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.running import Run
from tests.waiting import eventually


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_waiting_page_is_delivered_after_up_and_a_coordinator_death(run: Run) -> None:
    folder = run.file.parent
    tries, pages, reachable = folder / "tries", folder / "pages", folder / "reachable"
    pager = f"echo try >> {tries}; test -e {reachable} && echo $AGENTRL_ALERT_ID >> {pages}"
    run.sidecar("gone", ["sh", "-c", "exit 78"])
    run.config["alerts"] = {"sinks": {"exec": {"command": ["sh", "-c", pager]}}}
    run.write()
    run.cli("up", str(run.file), "--no-wait")
    run.wait_state("gone-0", "fatal")
    eventually(lambda: lines(tries) >= 1, what="the page to be tried")

    run.config["alerts"]["repeat_s"] = 5000.0
    run.write()
    run.cli("up", str(run.file), "--no-wait")
    before = lines(tries)
    eventually(lambda: lines(tries) > before, what="it to be tried again after another `up`")

    pid, before = run.coordinator_pid(), lines(tries)
    run.kill(pid)
    eventually(lambda: run.run_row().coordinator_pid not in (0, pid), what="the next coordinator")
    eventually(lambda: lines(tries) > before, what="the next coordinator to try")
    assert lines(pages) == 0
    reachable.touch()
    eventually(lambda: lines(pages) >= 1, what="the page")
    assert pages.read_text() == "unit-fatal:gone-0\n"
