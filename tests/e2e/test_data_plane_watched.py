"""Monitoring of a run: no alert while it is healthy; explanation, alert and recovery when its tools fail."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.telemetry import learning_metrics
from tests.e2e import onscreen
from tests.e2e.running import Run, running
from tests.e2e.test_data_plane import UP_WITHIN_S, up
from tests.small_run import data_plane, write_data
from tests.tracing.receiver import Receiver, receiving
from tests.waiting import eventually

MOODY = str(Path(__file__).parent / "programs" / "moody_shop.py")
STEPS_OF_A_HEALTHY_RUN = 6
WITHIN_S = 180.0
USUAL_S = 30.0
"""The history of a latency has a value every ten seconds, and three values make a baseline."""
SLOW_S = 3.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Run]:
    """A run whose trainer makes steps. The tests below run in their order."""
    folder = tmp_path_factory.mktemp("watched")
    for made in running(folder, f"t-{uuid.uuid4().hex[:8]}", factor=1.0):
        begin(made, receiver)
        yield made


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def begin(run: Run, receiver: Receiver) -> None:
    write_data(run.file.parent)
    run.config |= data_plane() | {"logs": "json", "tracing": {"endpoint": receiver.url, "episodes": 1.0}}
    shop = {"command": ["{python}", MOODY, str(mood(run))], "session": "keyed", "timeout_s": 10}
    run.config["tools"] = {"shop": shop}
    run.config["training"] |= {"steps": 0, "checkpoint_every": 1000}
    run.config["evaluation"] = {"every": 0}
    up(run)
    eventually(lambda: steps(run) >= STEPS_OF_A_HEALTHY_RUN or None, within_s=UP_WITHIN_S, what="steps")


def mood(run: Run) -> Path:
    return run.file.parent / "mood"


def steps(run: Run) -> float:
    return run.units()["trainer-0"].metrics.get("step", 0.0)


def alerts(run: Run) -> dict[str, Any]:
    return {row["id"]: row for row in run.cli("status").get("alerts", [])}


def pulse(run: Run) -> Any:
    """The newest pulse. It needs two reports, and is missing for a moment when steps continue, because old counts are
    void.
    """
    shown = run.cli("status").get("pulse")
    assert shown is not None, "no pulse yet"
    return shown


def chain_of(run: Run, holds: Callable[[Any], bool]) -> Any:
    return next((chain for chain in run.cli("why").get("chains", []) if holds(chain)), None)


def test_healthy_run_fires_no_alert_and_its_steps_have_normal_metrics(run: Run) -> None:
    # On a busy machine an alert may have been pending and passed before it fired.
    assert [row for row in run.cli("alerts", "list", "--all") if not row.get("passed")] == []
    rows = run.cli("steps", "list", "--filter", "status = committed", "--sort", "-step", "--limit", "9")["rows"]
    looked_at = {"truncation_share", "tool_calls_per_record", "infrastructure_share", "zero_variance_share"}
    # If no attempt ended between two quick steps, the later step has no shares of attempts.
    shown = next(row["metrics"] for row in rows if row["metrics"]["records"] and looked_at <= row["metrics"].keys())
    assert shown["tools/shop/lookup/infrastructure_share"] == 0.0
    assert sum(shown[name] for name in shown if name.startswith("age_") and name.endswith("_pairs")) == shown["pairs"]
    # Once a small task is learned, groups have no variance.
    for name, value in ((name, value) for name, value in shown.items() if not name.startswith("zero_variance")):
        assert name not in learning_metrics.LEARNING or learning_metrics.LEARNING[name].is_normal(value), (
            f"{name} = {value}"
        )
    assert run.units()["trainer-0"].metrics["reward_mean"] == pytest.approx(shown["reward_mean"], abs=1.0)


def test_an_episode_is_one_trace_from_its_record_to_engine_and_tool(run: Run, receiver: Receiver) -> None:
    record = run.cli("records", "list", "--filter", "status = scored", "--limit", "1")["rows"][0]["id"]
    trace = run.cli("records", "show", record)["trace"]

    def tree() -> set[tuple[str, str]]:
        """Each span with the one around it."""
        found = [span for span in receiver.all if span.trace_id.hex() == trace]
        names = {span.span_id: span.name for span in found}
        return {(names.get(span.parent_span_id, ""), span.name) for span in found}

    root, call, tool = "invoke_agent tool_agent", "text_completion", "execute_tool shop.lookup"
    sampler = {("", root), (root, call), (root, tool)}
    elsewhere = {(call, "generate"), (tool, "run shop.lookup"), ("run shop.lookup", "tools/call lookup")}
    eventually(lambda: sampler | elsewhere <= tree() or None, what="the spans of three processes")

    def services() -> set[str]:
        return {resource["service.name"] for resource in receiver.resources}

    # Each process sends its spans at its own time.
    all_of_them = {"coordinator", "sampler", "engine", "toolbox", "trainer"}
    eventually(lambda: all_of_them <= services() or None, within_s=WITHIN_S, what="spans of all processes")
    spawns = {f"spawn {unit}" for unit in ("sampler-0", "trainer-0")}
    eventually(lambda: spawns <= receiver.spans.keys() or None, what="spans of the starts")
    assert receiver.attributes("spawn trainer-0")["host.name"] == run.unit_row("trainer-0").host


def test_utilisation_of_every_unit_is_computed_from_intervals(run: Run) -> None:
    def busy() -> Any:
        shown = pulse(run)
        assert {"trainer-0", "engine-0", "sampler-0", "toolbox-0"} <= shown["units"].keys(), shown
        assert shown["tools"], shown
        # In a short interval of a busy machine an engine may have been idle.
        assert shown["units"]["engine-0"] > 0.0, shown
        assert shown["in_tools"] + shown["in_model"] > 0.0, shown
        return shown

    shown = eventually(busy, what="the bottleneck row")
    assert all(0.0 <= share <= 1.0 for share in shown["units"].values())
    (lookup,) = (tool for tool in shown["tools"] if tool["name"] == "shop.lookup")
    assert 0.0 < lookup["p95_s"] < 10.0
    output = re.compile(r"(trainer waits \d+% for batches|the trainer is \d+% busy)")
    assert output.match(shown["sentence"])
    assert output.search(run.raw("status").stdout)
    onscreen.recorded(run, (), "Bottleneck", "trainer ")
    onscreen.recorded(run, ("2", "home", "enter"), "engine-0", "of the last intervals")


def test_slow_tool_is_named_as_the_bottleneck_with_the_time_of_the_change(run: Run) -> None:
    def latency_of(shown: Any) -> Any:
        return next(tool for tool in shown["tools"] if tool["name"] == "shop.lookup")

    begun = time.time()
    eventually(lambda: time.time() - begun > USUAL_S or None, within_s=WITHIN_S, what="a usual latency")
    slowed = time.time()
    mood(run).write_text(f"slow {SLOW_S:g}")

    def named() -> Any:
        shown = pulse(run)
        assert shown["bottleneck"] == "tools", shown["sentence"]
        assert latency_of(shown).get("changed_at", 0.0) > 0.0, shown
        return shown

    shown = eventually(named, within_s=WITHIN_S, what="another bottleneck")
    lookup = latency_of(shown)
    assert lookup["before_s"] < SLOW_S / 2, "the baseline is a normal latency, even on a busy machine"
    assert lookup["p95_s"] >= SLOW_S
    assert slowed - 1.0 < lookup["changed_at"] == shown["since_at"] < time.time()
    at = time.strftime("%H:%M", time.localtime(lookup["changed_at"]))
    changed = f"shop.lookup p95 {lookup['before_s']:g} → {lookup['p95_s']:g} s since {at}"
    assert shown["sentence"].endswith(f"% in tools: {changed}")
    onscreen.recorded(run, (), "% in tools: shop.lookup p95 ", f" s since {at}")
    mood(run).unlink()


def test_tool_that_does_not_answer_is_the_end_of_the_wait_chain(run: Run) -> None:
    mood(run).write_text("stuck")

    def is_whole(chain: Any) -> bool:
        return chain["culprit"] == "tool shop.lookup" and chain["links"][0]["who"] == "trainer-0"

    found = eventually(
        lambda: chain_of(run, is_whole), within_s=WITHIN_S, what="the chain from the trainer to the tool"
    )
    assert found["sentence"].startswith("trainer-0 ← batch ← task shop/train/")
    assert " on sampler-0 ← tool shop.lookup, " in found["sentence"]
    assert found["because"].startswith("has not answered the call shop/train/")
    assert [link["who"].partition(" ")[0] for link in found["links"][:4]] == ["trainer-0", "batch", "task", "record"]
    onscreen.live(run, ("w",), "trainer-0 ← batch", "ends at: tool shop.lookup", "has not answered the call")
    assert run.cli("status")["units"], "other queries still work"


def test_circuit_breaker_stops_calls_loses_no_task_and_closes_by_itself(run: Run) -> None:
    left_alone = "tool-server-left-alone:toolbox-0/shop"
    row = eventually(lambda: alerts(run).get(left_alone), within_s=WITHIN_S, what="the alert")
    assert any("shop" in line for line in row["evidence"])
    assert row["suggest"] == "agentrl tools errors --filter server=shop"
    eventually(
        lambda: "shop needs toolbox-0: shop" in run.unit_row("steward-0").status or None,
        what="no admission",
    )
    fails = "tool-fails:toolbox-0/shop.lookup"
    eventually(lambda: alerts(run).get(fails, {}).get("cause") == left_alone or None, what="its consequence is folded")
    onscreen.recorded(run, (), "toolbox-0 makes no calls to the tool server", "causes tool-fails")
    onscreen.recorded(run, ("4",), "tool-server-left-alone")
    failed_attempts_have_no_score(run)
    before = steps(run)
    mood(run).unlink()
    eventually(lambda: steps(run) >= before + 2 or None, within_s=WITHIN_S, what="steps go on")
    eventually(lambda: left_alone not in alerts(run) or None, within_s=WITHIN_S, what="the alert ends")
    assert run.cli("tasks", "list", "--filter", "status = dead").get("rows", []) == []
    assert set(run.incarnations().values()) == {1}, "no unit died"


def failed_attempts_have_no_score(run: Run) -> None:
    """Each attempt that failed because of the tool has that outcome, has no score, and is counted by error class."""
    failed = run.cli("records", "list", "--filter", "outcome = tool_timeout", "--sort", "-finished_at")["rows"]
    assert failed
    assert {(row["status"], row["outcome_class"], row.get("score")) for row in failed} == {
        ("failed", "infrastructure", None)
    }
    ended = run.cli("records", "list", "--filter", "finished_at != null", "--limit", "1000")["rows"]
    assert all(row["outcome"] and row["outcome_class"] for row in ended)
    (kind, *_) = run.cli("tools", "errors", "--filter", "status = timeout")
    assert (kind["server"], kind["tool"], kind["error_class"]) == ("shop", "lookup", "infrastructure")
    onscreen.live(run, ("7", "e"), "shop.lookup", "timeout", "lookup did not answer")
    onscreen.live(run, ("7", "e", "enter"), "calls", "shop.lookup", "timeout", once="timeout")
