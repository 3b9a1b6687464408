"""The rules about engines, tool servers, curves and data: each names what is wrong, and ends when it is well."""

from __future__ import annotations

from msgspec.structs import replace

from agentrl.engines.canary import MEAN_LIMIT_HALF, Agreement
from agentrl.protocol.control_commands import WaitChain, WaitLink
from agentrl.protocol.messages import UnitPart
from agentrl.protocol.rows import Severity
from agentrl.telemetry.data_plane_metrics import (
    BREAKER_OPEN,
    CANARY_LARGEST,
    CANARY_OVER_LIMIT,
    CURVES_DROPPED,
    CURVES_FAILING,
    CURVES_WAITING,
    HELD_OUT_TRAINED,
    REJECTED,
    STEP,
    TOOL_FAILURES,
    WARMUP_UNUSED,
    named,
)
from tests.control.simulated_run import TRAINER, SimulatedRun, unit


def test_lagging_engine_is_named() -> None:
    trainer, engine = replace(TRAINER, weights=9), unit("engine-0", weights=6, status="refused version 7 (hash)")
    run = SimulatedRun(trainer, engine, unit("engine-1", weights=8), unit("engine-2"))
    assert run.pass_time(30) == [], "it may be loading"
    assert run.pass_time(60) == ["engine-lags:engine-0"]
    assert "refused version 7 (hash)" in run.fired[0].evidence[0]


def test_rejected_version_alerts_until_one_is_accepted() -> None:
    run = SimulatedRun(unit("steward-0"), unit("engine-0", status="refused version 4 (its bytes are others)"))
    run.report("steward-0", **{REJECTED.name: 4.0})
    assert run.pass_time(3) == ["version-rejected:v4"]
    assert "its bytes are others" in run.fired[0].evidence[0]
    run.report("steward-0", **{REJECTED.name: 0.0})
    assert run.pass_time(60) == []


def test_engine_with_a_different_canary_alerts_although_it_serves() -> None:
    run = SimulatedRun(unit("engine-0", weights=7), unit("engine-1", weights=7))
    for name, largest in (("engine-0", 0.05), ("engine-1", 1e-5)):
        found = Agreement(tokens=300, mean=5e-4, largest=largest)
        run.report(name, **{CANARY_LARGEST.name: found.largest, CANARY_OVER_LIMIT.name: found.largest_over_limit})
    assert run.pass_time(3) == ["canary-differs:engine-0"]
    (row,) = run.fired
    assert "version 7" in row.sentence
    assert "0.05 nat" in row.sentence
    assert "normal: at most 1" in row.evidence[0]
    # In half precision the same difference is normal.
    in_half = Agreement(tokens=300, mean=5e-4, largest=0.05, limit=MEAN_LIMIT_HALF)
    run.report("engine-0", **{CANARY_OVER_LIMIT.name: in_half.largest_over_limit})
    assert run.pass_time(60) == []


def test_open_circuit_breaker_and_failing_tool_are_named() -> None:
    cause = "search has its breaker open; the last call that it made: KeyError: 'index'"
    run = SimulatedRun(unit("toolbox-0", parts=(UnitPart("search", "serving", cause),)))
    breaker, failures = named(BREAKER_OPEN, "search"), named(TOOL_FAILURES, "shop.lookup")
    run.report("toolbox-0", **{breaker: 0.0, failures: 0.05})
    assert run.pass_time(60) == []
    run.report("toolbox-0", **{breaker: 1.0, failures: 0.3})
    assert run.pass_time(30) == ["tool-fails:toolbox-0/shop.lookup", "tool-server-left-alone:toolbox-0/search"]
    (left,) = [row for row in run.fired if row.rule == "tool-server-left-alone"]
    assert left.evidence[0] == cause
    assert left.suggest == "agentrl tools errors --filter server=search"
    run.report("toolbox-0", **{breaker: 0.0, failures: 0.15})
    assert run.pass_time(60) == ["tool-fails:toolbox-0/shop.lookup"]
    run.report("toolbox-0", **{failures: 0.02})
    assert run.pass_time(60) == []


def test_curves_that_a_program_does_not_take_are_an_alert_until_it_takes_them() -> None:
    run = SimulatedRun(TRAINER)
    failing, waiting, dropped = (named(metric, "mlflow") for metric in (CURVES_FAILING, CURVES_WAITING, CURVES_DROPPED))
    run.report(**{failing: 0.0, waiting: 3.0, dropped: 0.0})
    assert run.pass_time(60) == []
    run.report(**{failing: 1.0, waiting: 1000.0, dropped: 12.0})
    assert run.pass_time(60) == ["curves-not-written:trainer-0/mlflow"]
    (row,) = run.fired
    assert (row.severity, row.evidence[0]) == (
        Severity.WARNING,
        "Points that wait: 1000; dropped since the process began: 12.",
    )
    run.report(**{failing: 0.0, waiting: 0.0})
    assert run.pass_time(60) == []


def test_consequences_of_a_failing_tool_server_name_it_as_their_cause_and_follow_it() -> None:
    run = SimulatedRun(unit("toolbox-0"), TRAINER)
    for number in range(6):
        run.report(**{STEP.name: float(number)})
        run.pass_time(200)
    run.report(zero_variance_lately=0.95, groups_lately=20.0, groups_without_signal_lately=19.0)
    run.pass_time(60)
    run.chains = (WaitChain((WaitLink("trainer-0", "batch"),), "tool shop.lookup", "has not answered", "the chain"),)
    run.report("toolbox-0", **{named(TOOL_FAILURES, "shop.lookup"): 1.0})
    run.pass_time(1200)
    run.report("toolbox-0", **{named(BREAKER_OPEN, "shop"): 1.0, named(BREAKER_OPEN, "search"): 1.0})
    other, shop = (f"tool-server-left-alone:toolbox-0/{server}" for server in ("search", "shop"))
    folded = ["tool-fails:toolbox-0/shop.lookup", "no-step:trainer-0"]
    without = "learning-no-signal:trainer-0"
    ids = run.pass_time(1200)
    assert ids == [shop, *folded, without, other], "a server of another name explains nothing of it"
    assert {row.id: row.cause for row in run.engine.rows()} == dict.fromkeys(folded, shop) | dict.fromkeys(
        (shop, without, other), ""
    )
    run.units["toolbox-0"] = unit("toolbox-0", parts=(UnitPart("shop", "serving", died=9, died_lately=4),))
    deaths, *explained = run.pass_time(60)[:4]
    assert deaths == "tool-restarts:toolbox-0/shop"
    assert set(explained) == {shop, *folded}, "its deaths explain all of it"
    run.units["toolbox-0"] = unit("toolbox-0")
    run.report("toolbox-0", **{named(BREAKER_OPEN, "shop"): 0.0, named(TOOL_FAILURES, "shop.lookup"): 0.0})
    run.chains = ()
    run.pass_time(60)
    assert {row.cause for row in run.engine.rows(all=True)} == {""}, "an alert that ended causes nothing"


def test_tool_servers_near_their_limit_dying_or_unhealthy_are_named_until_they_are_well() -> None:
    run = SimulatedRun(unit("toolbox-0"))

    def state(part: UnitPart) -> list[str]:
        run.units["toolbox-0"] = unit("toolbox-0", parts=(part,))
        return run.pass_time(30)

    good = UnitPart("shop", "serving", memory_share=0.85, fullest="toolbox-0.1/shop-7", died=9, died_lately=2)
    assert state(good) == []
    near = replace(good, memory_share=0.95, died_lately=3, last_death="it exited with 1", unhealthy="list hangs")
    assert state(near) == [f"tool-{rule}:toolbox-0/shop" for rule in ("restarts", "unhealthy", "memory")]
    suggested = {row.rule: row.suggest for row in run.fired}
    assert suggested["tool-memory"] == "agentrl tools sandboxes --server shop"
    assert suggested["tool-restarts"] == "agentrl tools logs shop"
    assert suggested["tool-unhealthy"] == "agentrl tools restart shop"
    assert "toolbox-0.1/shop-7 is the fullest" in next(row.evidence for row in run.fired if row.rule == "tool-memory")
    assert state(good) == ["tool-memory:toolbox-0/shop", "tool-restarts:toolbox-0/shop"], "both end below another value"
    assert state(UnitPart("shop", "serving")) == []


def test_held_out_prompts_in_training_and_an_unused_warm_up_alert() -> None:
    run = SimulatedRun(unit("steward-0"), TRAINER)
    example = "eval.jsonl line 2 is held out, and train.jsonl line 5 trains on the same prompt"
    run.report("steward-0", **{named(HELD_OUT_TRAINED, f"shop/{example}"): 3.0})
    run.report(**{WARMUP_UNUSED.name: 1.0})
    assert run.pass_time(3) == ["held-out-trained:shop", "warm-up-unused:trainer-0"]
    rows = {row.rule: row for row in run.fired}
    assert rows["held-out-trained"].sentence.startswith("3 held-out prompts of shop are trained on too")
    assert rows["held-out-trained"].evidence[0] == example
    assert "continues from its checkpoint" in rows["warm-up-unused"].sentence
    run.report(**{WARMUP_UNUSED.name: 0.0})
    assert run.pass_time(60) == ["held-out-trained:shop"]
