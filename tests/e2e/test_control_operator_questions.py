"""Operators find the cause of real faults in the `--json` output within seconds."""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl import __version__
from agentrl.client import find
from agentrl.errors import ExitCode
from tests.e2e import onscreen
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import PATIENCE_S, eventually

GROWER = str(Path(__file__).parent / "programs" / "grower.py")
BREAKABLE = """
if test -e "$AGENTRL_RUN_DIR/no-store"; then echo 'cannot reach the store at 10.0.0.7' >&2; exit 3; fi
exec sleep 1000
"""
TOOL_SERVER = """
case "$AGENTRL_INCARNATION" in *.1)
    until test -e "$AGENTRL_RUN_DIR/no-index"; do sleep 0.02; done
    echo 'searching' ; echo 'IndexError: the index is corrupt' >&2; exit 7;;
esac
exec sleep 1000
"""
LIMITED = """
until test -e "$AGENTRL_RUN_DIR/no-limiter"; do sleep 0.02; done
i=0; while test $i -lt 50; do i=$((i+1)); echo "12:00 call $i: RateLimiterDied: no permit for call $i" >&2; done
exec sleep 1000
"""
UNPLACEABLE = ("gpu-0", "far-0", "wide-0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose faults a test can trigger."""
    for run in running(tmp_path_factory.mktemp("operators"), f"t-{uuid.uuid4().hex[:8]}"):
        run.config["supervision"] |= {"max_deaths": 100, "backoff_first_s": 1.0, "stacks_grace_s": 1.0}
        run.sidecar("collector", ["sh", "-c", BREAKABLE])
        run.unit("rollout", "many_waits", "--waits", "2", "--on", "collector-0")
        run.sidecar("tools", ["sh", "-c", TOOL_SERVER])
        run.sidecar("limited", ["sh", "-c", LIMITED], count=2)
        run.sidecar("gpu", ["sleep", "1000"], resources={"gpus": 99})
        run.sidecar("far", ["sleep", "1000"], hosts=["node-17"])
        run.sidecar("wide", ["sleep", "1000"], resources={"cpus": 5000})
        run.sidecar("eager", ["sleep", "1000"], after=["gpu"])
        run.unit("ticker", "step_loop", "--every", "0.05")
        # The memory grows for half a minute, so it still grows when the test looks.
        run.sidecar("grower", [PYTHON, GROWER, "--to-mib", "750", "--mib-per-s", "30"], count=0)
        run.config["alerts"] = {"memory_window_s": 3.0}
        run.up("--no-wait")
        for unit in ("collector-0", "rollout-0", "tools-0", "ticker-0"):
            run.wait_state(unit, "ready")
        yield run


def unit_in(status: Any, unit: str) -> Any:
    return next(row for row in status["units"] if row["unit"] == unit)


def answer(run: Run, check: Callable[[Any], Any], *command: str, what: str) -> Any:
    """Returns the first answer of a command that passes a check."""

    def asked() -> Any:
        found = run.cli(*command)
        check(found)
        return found

    return eventually(asked, every_s=0.1, what=what)


# ---- dead units ----


def test_dead_unit_is_shown_with_time_reason_and_next_action(run: Run) -> None:
    before = run.unit_row("collector-0")
    (run.dir / "no-store").touch()
    killed = time.time()
    run.kill(before.pid)

    def in_backoff(status: Any) -> None:
        row = unit_in(status, "collector-0")
        assert row["state"] == "backoff"
        assert row["restarts"] >= 2

    try:
        status = answer(run, in_backoff, "status", what="the collector to wait for its next start")
        row = unit_in(status, "collector-0")
        assert killed - 1 <= row["since_at"] <= time.time()
        assert "exit 3" in row["reason"]
        assert row["next_what"]
        assert row["next_at"] > row["since_at"]
        assert row["last_exit"]["code"] == 3
        assert status["run"]["state"] == "degraded"
        assert "collector-0" in status["run"]["reason"]

        def is_blamed(found: Any) -> None:
            blamed = [each for each in found["chains"] if each["culprit"] == "collector-0"]
            assert [each["links"][0]["who"] for each in blamed] == ["rollout-0"]
            assert blamed[0]["links"][0]["age_s"] > 0
            # It may be starting at this moment.
            assert "exit 3" in blamed[0]["because"]

        answer(run, is_blamed, "why", what="the collector to be named as the cause")

        def is_alerted(found: Any) -> None:
            assert [each for each in found if each["id"] == "unit-restarting:collector-0"]

        alerts = answer(run, is_alerted, "alerts", "list", what="an alert about the collector")
        (alert,) = [each for each in alerts if each["id"] == "unit-restarting:collector-0"]
        assert "keeps dying" in alert["sentence"]
        # The last log lines may be those of this incarnation or of the one before.
        assert alert["suggest"].removesuffix(" --previous") == "agentrl logs collector-0"
        output = run.raw("logs", "collector-0", "--previous").stdout
        assert "cannot reach the store at 10.0.0.7" in output
        onscreen.recorded(run, (), "collector-0", "exit 3")
        onscreen.recorded(run, ("2", "enter"), "collector-0", "exit 3", "died")
        onscreen.live(run, ("w",), "culprit: collector-0")
    finally:
        (run.dir / "no-store").unlink()
    run.wait_state("collector-0", "ready")


def test_error_of_a_tool_server_is_an_incident_with_its_last_log_lines(run: Run) -> None:
    (run.dir / "no-index").touch()
    happened = time.time()

    def check(found: Any) -> None:
        assert [each for each in found if each["unit"] == "tools-0"]

    found = answer(run, check, "events", "--kind", "incident", what="the incident")
    (incident,) = [each for each in found if each["unit"] == "tools-0"]
    assert incident["incarnation"] == 1
    assert happened - 1 <= incident["at"] <= time.time() + 1
    assert incident["exit"]["code"] == 7
    assert incident["tail"] == ["searching", "IndexError: the index is corrupt"]
    assert incident["versions"] == {"agentrl": __version__}
    assert incident["done"] == "started again at once"
    assert incident["host"] == run.host().host
    assert run.wait_incarnation("tools-0", above=1).incarnation == 2
    onscreen.recorded(run, (), "tools-0.1 [exit 7]")
    onscreen.recorded(run, ("2", "end", "up", "i"), "incident tools-0.1", "IndexError: the index is corrupt")


def test_error_that_logs_repeat_is_one_alert_with_count_first_and_last(run: Run) -> None:
    (run.dir / "no-limiter").touch()

    def check(found: Any) -> None:
        (alert,) = [each for each in found if each["rule"] == "errors-repeat"]
        assert "An error is in the logs of 2 units 100 times: RateLimiterDied: no permit" in alert["sentence"]

    found = answer(run, check, "alerts", "list", what="an alert about the error")
    (alert,) = [each for each in found if each["rule"] == "errors-repeat"]
    first = alert["evidence"][0]
    assert re.fullmatch(r"the first at \d\d:\d\d:\d\d, the last at \d\d:\d\d:\d\d", first)
    assert alert["evidence"][1:3] == ["limited-0: 50 times", "limited-1: 50 times"]
    assert first in run.raw("alerts", "list").stdout
    cure = alert["suggest"].split()
    assert len(run.raw(*cure[1:]).stdout.splitlines()) == 50
    onscreen.recorded(run, (), "An error is in the logs of 2 units 100 times")
    onscreen.recorded(run, ("4",), "errors-repeat:ratelimiter")


def test_unit_that_cannot_be_placed_shows_what_is_missing(run: Run) -> None:
    status = run.cli("status")
    gpu, far, wide = (unit_in(status, unit) for unit in UNPLACEABLE)
    assert {row["state"] for row in (gpu, far, wide)} == {"pending"}
    host = status["hosts"][0]["host"]
    assert "needs 99 GPU" in gpu["reason"]
    assert f"{host}: not among its hosts" in far["reason"]
    assert "node-17: has not registered" in far["reason"]
    assert "needs 5000 CPU" in wide["reason"]
    assert "gpu" in unit_in(status, "eager-0")["reason"]
    chains = run.cli("why")["chains"]
    (chain,) = [each for each in chains if "eager-0" in [link["who"] for link in each["links"]]]
    assert chain["culprit"] == "gpu-0"
    assert "needs 99 GPU" in chain["because"]
    onscreen.recorded(run, ("2",), "gpu-0", "○ pending", "no host can")
    onscreen.live(run, ("w",), "culprit: gpu-0", "needs 99 GPU")


# ---- stacks and memory ----


def test_stacks_of_all_units_are_written_to_one_file(run: Run) -> None:
    alive = sorted(f"{unit}.{row.incarnation}" for unit, row in run.units().items() if row.pid)
    done = run.cli("stacks")["operation"]
    assert done["state"] == "succeeded"
    text = Path(done["result"]["file"]).read_text()
    assert done["result"]["units"] == len(alive)
    for unit in alive:
        assert f"==== unit {unit} on " in text
    of = {part.partition(".")[0]: part for part in text.split("==== unit ")[1:]}
    assert "step_loop.py" in of["ticker-0"]
    assert "many_waits.py" in of["rollout-0"]
    assert "sleep" in of["collector-0"], "a foreign program is shown with its command"
    assert "==== coordinator ====" in text
    onscreen.recorded(run, ("3", "t", "enter"), "the stacks of all units", "✓ succeeded", "all-", once="stacks: ")
    one = run.cli("stacks", "ticker-0")["operation"]["result"]
    assert one["units"] == 1
    assert Path(one["file"]).name.startswith("ticker-0-"), "the file name has the requested units"


def test_memory_over_time_and_its_slope_are_shown(run: Run) -> None:
    run.cli("scale", "grower", "1")

    def grows(status: Any) -> None:
        row = unit_in(status, "grower-0")
        assert len(row.get("rss_over_time", ())) >= 9
        assert row.get("rss_slope_bytes_per_h", 0) > 3600 * (10 << 20), row.get("rss_slope_bytes_per_h")

    row = unit_in(answer(run, grows, "status", what="a slope"), "grower-0")
    assert row["rss_over_time"][0] < row["rss_over_time"][-1] <= row["rss_bytes"] * 1.5
    assert row["rss_over_s"] >= 3.0

    def is_alerted(found: Any) -> None:
        assert [each for each in found if each["id"] == "unit-memory-grows:grower-0"]

    alerts = answer(run, is_alerted, "alerts", "list", "--all", what="an alert with the slope")
    (alert,) = [each for each in alerts if each["rule"] == "unit-memory-grows"]
    assert "per hour" in alert["sentence"]
    assert any("->" in line for line in alert["evidence"]), "memory over time"
    assert any("enough for" in line for line in alert["evidence"])
    assert alert["suggest"] == "agentrl restart grower-0"
    onscreen.recorded(run, ("4", "t"), "unit-memory-grows:grower-0", "The memory of grower-0")


# ---- two operators, one knob ----


def test_second_operator_cannot_overwrite_an_unseen_knob_value(run: Run) -> None:
    knob = "supervision.max_failed_starts"
    seen = run.cli("tune", knob)["knob"]
    both_saw = str(seen["revision"])
    assert run.cli("tune", knob, "7", "--seen", both_saw)["operation"]["state"] == "succeeded"
    for more in ((), ("--preview",)):
        code, output = run.cli("tune", knob, "9", "--seen", both_saw, *more, check=False)
        assert code == ExitCode.CONFLICT
        assert "to 7" in output["error"]["message"], "the value of the first"
        assert "@" in output["error"]["message"], "and who it was"
    now = run.cli("tune", knob)
    assert now["knob"]["value"] == 7
    assert [change["what"] for change in now["history"]] == [f"{knob}: {seen['value']} -> 7"]
    # It was refused before it was accepted, so there is no operation and no change.
    tunes = [each for each in run.cli("events", "--kind", "operation") if each["command"] == "tune"]
    assert [each["state"] for each in tunes] == ["succeeded"]
    assert len([each for each in run.cli("events", "--kind", "audit") if each["command"] == "tune"]) == 1
    onscreen.recorded(run, (), f"{knob} {seen['value']} -> 7 by ")
    onscreen.recorded(run, ("3",), "-> 7, by ")
    run.cli("tune", knob, "--undo")
    assert run.cli("tune", knob)["knob"]["value"] == seen["value"]


# ---- stray processes ----


@pytest.fixture(scope="module")
def mark(run: Run) -> dict[str, str]:
    """The environment of a unit that ended long ago."""
    return psutil.Process(run.unit_row("ticker-0").pid).environ() | {"AGENTRL_INCARNATION": "trainer-3.2"}


@pytest.fixture
def stray(mark: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a crash left behind: it has the mark of the run, and no living unit is its parent."""
    with subprocess.Popen(["sleep", "3333"], env=mark, start_new_session=True) as process:
        eventually(lambda: psutil.Process(process.pid).cmdline() == ["sleep", "3333"], what="its real state")
        try:
            yield process
        finally:
            process.kill()


def test_stray_process_is_named_while_the_run_is_up(run: Run, stray: subprocess.Popen[bytes]) -> None:
    def named(status: Any) -> None:
        assert [each for each in status["hosts"][0].get("strays", ()) if each["pid"] == stray.pid]

    status = answer(run, named, "status", what="the stray to be named")
    (found,) = [each for each in status["hosts"][0]["strays"] if each["pid"] == stray.pid]
    assert found["command"] == "sleep 3333"
    assert found["incarnation"] == "trainer-3.2"
    assert found["why"] == "mark; its incarnation has ended"
    onscreen.recorded(run, ("2",), f"stray: pid {stray.pid} sleep 3333 (mark;")


def test_stray_process_is_named_and_removed_by_down(
    run: Run, stray: subprocess.Popen[bytes], mark: dict[str, str]
) -> None:
    """The last test of this file, because it ends the run."""
    sockets = Path(find(state_dir=run.state_dir).address.removeprefix("ipc://")).parent
    ended = run.cli("down", "--yes")
    assert ended["proven"]
    assert not sockets.exists()
    output = " ".join(ended["lines"])
    assert f"{stray.pid} (sleep 3333), mark" in output
    eventually(lambda: stray.poll() is not None, what="the stray to be gone")
    # Looks in the operations, because the alert may end with the run.
    onscreen.recorded(run, ("3", "t", "enter"), f"{stray.pid} (sleep 3333), mark", once="down")
    with subprocess.Popen(["sleep", "4444"], env=mark, start_new_session=True) as late:
        eventually(lambda: psutil.Process(late.pid).cmdline() == ["sleep", "4444"])
        preview = run.cli("down", "--dry-run")
        assert f"trainer-3.2 (pid {late.pid}, mark)" in " ".join(preview["effect"]["kills"])
        again = run.cli("down", "--yes")
        assert again["proven"]
        assert f"killed trainer-3.2 (pid {late.pid}, mark)" in again["lines"]
        assert late.wait(PATIENCE_S) < 0
    assert run.cli("down")["was_up"] is False
