"""Alerts of a real run: an abnormal number sends a page with evidence and a command, and a healthy run sends none."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.errors import ExitCode
from agentrl.http.free_ports import free_port
from agentrl.protocol.rows import AlertRow, AlertState
from tests.e2e import onscreen
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

METER = str(Path(__file__).parent / "programs" / "meter.py")
REWARD = "reward-collapsed:judge-0"
QUEUE = "queue-full:queue-0"
WELL = {"judge": 'reward_mean 0.8\nreward_mean_by{split="eval"} 0.7\n', "queue": "depth 3\nrefused 0\n"}
ILL = {"judge": "reward_mean 0.0625\n", "queue": "depth 500\n"}
PINGS_EVERY_S = 0.2
STEP_S = 0.05
QUIET_STEPS = round(15 / STEP_S)
REPEAT_S = 1.0
PATIENT = ("suspect_after_s", "dead_after_s", "host_silent_after_s")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose numbers are read over HTTP and from a command, with two rules and two sinks."""
    for run in running(tmp_path_factory.mktemp("alerts"), f"t-{uuid.uuid4().hex[:8]}"):
        # These tests are not about slow machines, so units have the default time before they count as dead.
        usual = SupervisionTimes()
        run.config["supervision"] |= {name: getattr(usual, name) for name in PATIENT}
        port = free_port()
        numbers = {"interval_s": 0.1}
        run.sidecar(
            "judge", [PYTHON, METER, str(port), "judge"], metrics={"http": f"http://127.0.0.1:{port}/", **numbers}
        )
        run.sidecar("queue", ["sleep", "1000"], metrics={"exec": ["cat", "{run_dir}/queue"], **numbers})
        run.unit("tick", "step_loop", "--every", str(STEP_S))
        run.unit("pair", "step_loop", "--every", "0.1", "--waits-for", "tick-0", count=2)
        run.sidecar("job", ["true"], life="job")
        run.sidecar("web", ["sleep", "1000"], live={"exec": ["true"], "interval_s": 0.2}, after=["judge"])
        run.config["alerts"] = alerts(run)
        run.dir.mkdir()
        for name in WELL:
            show(run, name, WELL)
        run.up()
        yield run


def alerts(run: Run) -> dict[str, Any]:
    return {
        "rules": [
            {
                "name": "reward-collapsed",
                "metric": "reward_mean",
                "of": "judge",
                "severity": "page",
                "below": 0.2,
                "clear": 0.4,
                "for_s": 0.5,
                "sentence": "The reward of {subject} fell to {value}.",
                "suggest": "agentrl pause {subject}",
            },
            {"name": "queue-full", "metric": "depth", "of": "queue-0", "above": 100, "severity": "page"},
        ],
        "sinks": {"file": {"path": "pages.jsonl"}, "exec": {"command": ["sh", "-c", exec_sink(run)]}},
        "dead_man": {"file": "alive", "every_s": PINGS_EVERY_S},
        "repeat_s": REPEAT_S,
    }


def exec_sink(run: Run) -> str:
    return f'printf "%s %s %s\\n" "$AGENTRL_ALERT_WHAT" "$AGENTRL_ALERT_ID" "$AGENTRL_ALERT_SUGGEST" >> {run.dir}/told'


def show(run: Run, name: str, numbers: dict[str, str]) -> None:
    draft = run.dir / f"{name}.draft"
    draft.write_text(numbers[name])
    draft.replace(run.dir / name)


def written(path: Path) -> str:
    """The text that a sink wrote. Sinks finish in any order."""
    return path.read_text() if path.exists() else ""


def pages(run: Run, what: str, id: str) -> list[Any]:
    """The pages in the file sink."""
    whole, _, _ = written(run.dir / "pages.jsonl").rpartition("\n")
    found = [json.loads(line) for line in whole.splitlines()]
    return [each for each in found if (each["what"], each["alert"]["id"]) == (what, id)]


def alert(run: Run, id: str, state: str) -> Any:
    def there() -> Any:
        found = {each["id"]: each for each in run.cli("alerts", "list", "--all")}
        assert id in found, f"there are {list(found)}"
        assert found[id]["state"] == state
        return found[id]

    return eventually(there, every_s=0.1, what=f"{id} to be {state}")


# ---- the tests run in this order ----


def test_healthy_run_fires_no_alert(run: Run) -> None:
    read = eventually(lambda: run.unit_row("judge-0").metrics, what="the numbers to be read")
    assert read == {"reward_mean": 0.8}, "the row shows only metrics that a rule reads"
    seen: dict[str, AlertRow] = {}
    until = run.unit_row("tick-0").progress + QUIET_STEPS

    def a_while_passed() -> bool:
        rows = run.rows()
        alerting = {key: row for key, row in rows.items() if isinstance(row, AlertRow)}
        seen.update(
            (key, row) for key, row in alerting.items() if row.state is not AlertState.PENDING and not row.passed
        )
        return rows["unit/tick-0"].progress >= until  # type: ignore[no-any-return]

    eventually(a_while_passed, within_s=120, every_s=0.2, what="a quarter of a minute to pass")
    assert not seen
    # On a busy machine an alert may have been pending and passed before it fired.
    assert [row for row in run.cli("alerts", "list", "--all") if not row.get("passed")] == []
    assert not (run.dir / "pages.jsonl").exists()
    assert not [each for each in run.cli("events", "--kind", "alert", "--kind", "incident")]
    assert run.raw("status", "--check").returncode == ExitCode.OK


def test_abnormal_number_sends_a_page_with_evidence_and_a_command(run: Run) -> None:
    wrong = time.time()
    show(run, "judge", ILL)
    row = alert(run, REWARD, "firing")
    assert row["severity"] == "page"
    assert row["sentence"] == "The reward of judge-0 fell to 0.0625."
    assert row["evidence"][0] == "reward_mean = 0.0625 (alert below 0.2 for 0.5 s, ends at 0.4)"
    assert "most 0.8" in row["evidence"][1], "the value before the alert"
    assert row["suggest"] == "agentrl pause judge-0"
    assert wrong - 1 <= row["since_at"] <= time.time()
    (page,) = eventually(lambda: pages(run, "firing", REWARD), what="the page in the file")
    assert page["text"] == f"[page] {run.name}: The reward of judge-0 fell to 0.0625."
    assert page["alert"]["evidence"]
    assert (page["run"], page["uuid"]) == (run.name, run.uuid())
    line = f"firing {REWARD} agentrl pause judge-0\n"
    eventually(lambda: line in written(run.dir / "told"), what="the command to be reported")
    status = run.cli("status")
    assert [each["id"] for each in status["alerts"]] == [REWARD]
    assert run.raw("status", "--check").returncode == ExitCode.UNHEALTHY
    onscreen.recorded(run, (), "‼ page", "The reward of judge-0 fell to 0.0625.")
    onscreen.recorded(run, ("a",), "reward_mean = 0.0625", "agentrl pause judge-0", "most 0.8")
    # The suggested command can be run as it is written.
    assert run.cli(*row["suggest"].split()[1:], "--dry-run")["dry_run"]


def test_page_is_repeated_until_it_is_acknowledged(run: Run) -> None:
    eventually(lambda: len(pages(run, "repeated", REWARD)) >= 1, what="the page to be repeated")
    assert run.cli("alerts", "ack", REWARD)["operation"]["state"] == "succeeded"
    row = alert(run, REWARD, "acknowledged")
    assert "@" in row["acknowledged_by"]
    got = len(pages(run, "repeated", REWARD))
    # Another alert without acknowledgement shows that pages are still repeated.
    show(run, "queue", ILL)
    eventually(lambda: len(pages(run, "repeated", QUEUE)) >= 2, what="the other page to be repeated")
    assert len(pages(run, "repeated", REWARD)) <= got + 1, "one page may have been on its way"
    sentence = pages(run, "firing", QUEUE)[0]["alert"]["sentence"]
    assert sentence == "depth of queue-0 is 500, above 100."


def test_silenced_alert_stays_visible_and_sends_no_page(run: Run) -> None:
    done = run.cli("alerts", "silence", "queue-full", "--for", "1h", "--why", "the queue is being moved")
    assert done["operation"]["state"] == "succeeded"
    row = alert(run, QUEUE, "firing")
    assert row["silence_why"] == "the queue is being moved"
    assert row["silenced_until_at"] > time.time() + 3000
    got = len(pages(run, "repeated", QUEUE))
    at = time.time()
    eventually(lambda: time.time() > at + 2 * REPEAT_S, what="two repetitions to be due")
    assert len(pages(run, "repeated", QUEUE)) <= got + 1
    run.cli("alerts", "silence", "queue-full", "--for", "0")
    eventually(lambda: len(pages(run, "repeated", QUEUE)) > got + 1, what="another notification")


def test_unknown_alert_cannot_be_acknowledged_or_silenced(run: Run) -> None:
    before = len(run.cli("events", "--kind", "operation"))
    for command in ("ack", "silence"):
        code, output = run.cli("alerts", command, "reward-collapsed:judge-7", check=False)
        assert code == ExitCode.UNKNOWN
        assert f"did you mean '{REWARD}'" in output["error"]["message"]
    assert len(run.cli("events", "--kind", "operation")) == before


def test_new_coordinator_keeps_fired_alerts_and_their_acknowledgements(run: Run) -> None:
    before = {each["id"]: each for each in run.cli("alerts", "list")}
    assert {id: each["state"] for id, each in before.items()} == {REWARD: "acknowledged", QUEUE: "firing"}
    former = run.coordinator_pid()
    run.kill(former)
    eventually(lambda: not run.alive(former), what="the end of the former incarnation")
    got = len(pages(run, "repeated", QUEUE))
    eventually(lambda: len(pages(run, "repeated", QUEUE)) > got, what="the new incarnation to continue")
    after = {each["id"]: each for each in run.cli("alerts", "list")}
    for same in ("state", "since_at", "acknowledged_by", "sentence"):
        assert {id: each[same] for id, each in after.items()} == {id: each[same] for id, each in before.items()}
    assert len(pages(run, "firing", REWARD)) == len(pages(run, "firing", QUEUE)) == 1, (
        "the new coordinator sends no page again"
    )
    assert not pages(run, "resolved", REWARD)


def test_resolved_alert_sends_a_message_to_its_sinks(run: Run) -> None:
    for name in WELL:
        show(run, name, WELL)
    for id in (REWARD, QUEUE):
        row = alert(run, id, "resolved")
        assert row["resolved_at"] > row["since_at"]
        eventually(lambda id=id: pages(run, "resolved", id), what=f"the end of {id} to be sent")
    assert run.cli("alerts", "list") == []
    states = [each["state"] for each in run.cli("events", "--kind", "alert") if each["id"] == REWARD]
    assert states == ["firing", "acknowledged", "resolved"]


def test_alert_test_uses_every_sink_and_names_the_one_that_fails(run: Run) -> None:
    done = run.cli("alerts", "test")["operation"]
    assert sorted(done["lines"]) == ["exec: delivered", "file: delivered"]
    assert pages(run, "test", "test:alert")[0]["text"].startswith(f"[test] {run.name}: This is a test alert from ")
    run.config["alerts"]["sinks"]["exec"]["command"] = ["sh", "-c", "echo no such pager >&2; exit 4"]
    run.up()
    code, document = run.cli("alerts", "test", check=False)
    assert code == ExitCode.FAILED
    assert "exec: The command sh ended with 4: no such pager." in document["operation"]["lines"]
    assert "file: delivered" in document["operation"]["lines"]


def test_dead_man_ping_stops_without_host_agent_and_coordinator(run: Run) -> None:
    alive = run.dir / "alive"

    def age_s() -> float:
        return time.time() - alive.stat().st_mtime

    first = eventually(alive.read_text, what="the first ping")
    eventually(lambda: alive.read_text() != first and age_s() < 1, what="pings to go on")
    run.kill_agent_and_coordinator()
    eventually(lambda: age_s() > 10 * PINGS_EVERY_S, what="the pings to stop")
    assert run.lives_of("tick-0"), "the units work on"
    run.up()
    eventually(lambda: age_s() < 1, what="the pings to be there again")
