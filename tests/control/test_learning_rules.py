"""The rules about learning and about the data plane: each speaks for a bad series, and a healthy one is silent."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from agentrl.control.alerts.lifecycle import AlertEngine
from agentrl.control.alerts.rule_table import LEARNING_RULES, default_rules
from agentrl.control.alerts.rules import RunSnapshot
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.engines.manifest import MEAN_LIMIT_HALF, Agreement
from agentrl.policies import step_alarms
from agentrl.protocol.commands import COMMANDS, WaitChain, WaitLink
from agentrl.protocol.rows import AlertRow, RunRow, Severity, UnitRow, UnitState
from agentrl.telemetry.learning import LEARNING
from agentrl.telemetry.services import (
    BREAKER_OPEN,
    CANARY_LARGEST,
    CANARY_OVER_LIMIT,
    HELD_OUT_TRAINED,
    REJECTED,
    STEP,
    TOOL_FAILURES,
    WARMUP_UNUSED,
    named,
)
from tests.policies.test_step_alarms import HEALTHY, series

AT = 1_700_000_000.0
WELL = HEALTHY | {"weight_mean": 1.0, "weight_std": 0.1, "ess": 0.98, "accepted_share": 0.97}
WELL |= {
    "mismatch_mean": 1e-6,
    "mismatch_over_limit": 1e-3,
    "kl_reference": 0.3,
    "not_finite_in_a_row": 0.0,
    "valid_share": 0.97,
}


def unit(name: str, **more: object) -> UnitRow:
    role = name.rpartition("-")[0]
    return UnitRow(name, role, role, UnitState.READY, host="a", incarnation=1, ready_at=AT, **more)  # type: ignore[arg-type]


TRAINER = unit("trainer-0")


class Plant:
    """A run whose units report numbers, and its alerts."""

    def __init__(self, *units: UnitRow) -> None:
        self.engine = AlertEngine(default_rules())
        self.units = {one.unit: one for one in units or (TRAINER,)}
        self.metrics = MetricStore(LEARNING.keys() | {STEP.name})
        self.chains: tuple[WaitChain, ...] = ()
        self.now = 0.0
        self.fired: list[AlertRow] = []

    def report(self, unit: str = "trainer-0", **values: float) -> None:
        self.metrics.update(unit, 1, values, self.now)

    def pass_time(self, seconds: float, looks: int = 3) -> list[str]:
        """Ids of what fires at the end of it."""
        world = RunSnapshot(RunRow("r", "u", "running"), self.units, {}, self.chains, self.metrics)
        for _ in range(looks):
            self.now += seconds / looks
            outcome = self.engine.evaluate(world, self.now, AT + self.now)
            self.fired += [note.alert for note in outcome.notify if note.what == "firing"]
        return [row.id for row in self.engine.rows()]

    def learn(self, steps: list[dict[str, float]], every_s: float = 5.0) -> list[str]:
        """As the trainer tells its Steps: with how each stands against those before."""
        for number, step in enumerate(steps):
            told = WELL | step
            self.report(**told, **step_alarms.against(steps[:number], step), step=float(number))
            ids = self.pass_time(every_s)
        return ids


BAD: dict[str, tuple[dict[str, list[float]], Severity, str]] = {
    "learning-mismatch": ({"mismatch_over_limit": [40.0]}, Severity.PAGE, "agentrl pause trainer-0"),
    "learning-drift": ({"ess": [0.2]}, Severity.WARNING, "agentrl tune bound"),
    "learning-reference": ({"kl_reference": [1.6]}, Severity.WARNING, "agentrl tune learning_rate"),
    "learning-entropy": ({"entropy": [0.3] * 8}, Severity.WARNING, "agentrl tune learning_rate"),
    "learning-gradient": ({"gradient_norm": [12.0]}, Severity.WARNING, "agentrl tune learning_rate"),
    "learning-no-signal": (
        {"groups": [0.0] * 10, "groups_without_signal": [1.0] * 10},
        Severity.WARNING,
        "agentrl tune temperature",
    ),
    "learning-truncation": ({"truncation_share": [0.6] * 10}, Severity.WARNING, "agentrl tune max_tokens"),
    "learning-no-tools": ({"tool_calls_per_record": [0.0] * 5}, Severity.WARNING, "agentrl tune learning_rate"),
    "learning-tools-fail": (
        {"tools/shop/lookup/infrastructure_share": [0.3] * 10},
        Severity.WARNING,
        "agentrl why",
    ),
    "learning-length": ({"tokens_per_record": [200.0] * 3}, Severity.WARNING, "agentrl tune learning_rate"),
    "learning-not-finite": ({"not_finite_in_a_row": [1.0]}, Severity.PAGE, "agentrl tune learning_rate"),
    "learning-overfits": (
        {"evaluation": [0.3] * 5, "reward_mean": [0.6] * 6},
        Severity.WARNING,
        "agentrl pause trainer-0",
    ),
    "learning-invalid": ({"valid_share": [0.3]}, Severity.PAGE, "agentrl why"),
}


FOR_NOTHING = "learning-nothing:trainer-0"


def test_a_short_run_that_trains_nothing_is_told_of_before_ten_steps_and_after_its_end() -> None:
    plant = Plant()
    silent = {"groups": [0.0] * 9, "groups_without_signal": [4.0] * 9}
    steps = series(9, **silent)
    for number in range(1, 10):
        plant.report(
            **WELL, **step_alarms.against(steps[: number - 1], steps[number - 1]), steps_without_training=number
        )
        assert plant.pass_time(5.0) == ([FOR_NOTHING] if number > 2 else []), number
    assert plant.fired[0].sentence == "trainer-0 has made 3 steps, and none of them trained anything."
    assert plant.fired[0].suggest == "agentrl tune temperature"
    plant.report(steps_without_training=0.0)
    assert plant.pass_time(60.0) == []


def test_where_most_attempts_are_cut_off_that_is_told_as_the_reason() -> None:
    plant = Plant()
    plant.report(**WELL, steps_without_training=3.0, cut_off_share=1.0)
    assert plant.pass_time(5.0) == [FOR_NOTHING]
    (row,) = plant.fired
    assert row.sentence.endswith("none of them trained anything. 100% of the newest attempts were cut off at a limit.")
    assert row.suggest == "agentrl tune max_tokens"
    assert any(line.startswith("cut_off_share = 1") for line in row.evidence)


def test_a_run_that_has_ended_for_nothing_says_so_for_as_long_as_it_is_there() -> None:
    plant = Plant()
    plant.report(**WELL, steps_without_training=1.0)
    assert plant.pass_time(5.0) == [], "a single step may be so"
    plant.units["trainer-0"] = replace(TRAINER, state=UnitState.STOPPED, done=True)
    assert plant.pass_time(5.0) == [FOR_NOTHING]
    assert plant.fired[-1].sentence == "trainer-0 has ended, and no step trained anything."
    plant.metrics = MetricStore(LEARNING.keys())
    assert plant.pass_time(600.0) == [FOR_NOTHING], "another coordinator never heard its numbers"
    plant.units["trainer-0"] = TRAINER
    plant.report(steps_without_training=0.0)
    assert plant.pass_time(60.0) == [], "it is at work again, and has trained"


def test_a_run_that_trains_nothing_is_told_of_for_as_long_as_it_trains_nothing() -> None:
    plant = Plant()
    plant.report(**WELL, steps_without_training=3.0)
    assert plant.pass_time(5.0) == [FOR_NOTHING]
    # Ten steps of groups that differ, and yet nothing was trained: the other rule has nothing to say.
    plant.report(steps_without_training=12.0, zero_variance_lately=0.0)
    assert plant.pass_time(60.0) == [FOR_NOTHING]
    for state in (UnitState.BACKOFF, UnitState.STARTING, UnitState.READY):
        plant.units["trainer-0"] = replace(TRAINER, state=state, incarnation=2)
        plant.metrics = MetricStore(LEARNING.keys())
        assert plant.pass_time(60.0) == [FOR_NOTHING], "its next life has told nothing yet"
    (row,) = plant.engine.rows()
    assert row.sentence == "trainer-0 has made no step that trained anything."
    plant.metrics.update("trainer-0", 2, {"steps_without_training": 0.0}, plant.now)
    assert plant.pass_time(60.0) == []
    assert len(plant.fired) == 1, "it was one alert all the while"


def test_ten_steps_without_signal_are_told_of_once() -> None:
    plant = Plant()
    plant.report(**WELL, steps_without_training=12.0, zero_variance_lately=1.0)
    assert plant.pass_time(60.0) == ["learning-no-signal:trainer-0"]


def test_a_run_that_has_trained_and_ended_is_silent() -> None:
    plant = Plant()
    plant.report(**WELL, steps_without_training=0.0)
    plant.units["trainer-0"] = replace(TRAINER, state=UnitState.STOPPED, done=True)
    assert plant.pass_time(600.0) == []


@pytest.mark.parametrize("name", ["mismatch_p99_over_limit", "mismatch_k3_over_limit"])
def test_a_tail_of_the_mismatch_is_a_fault_although_its_mean_is_within_the_limit(name: str) -> None:
    plant = Plant()
    assert plant.learn(series(20, **{name: [3.0]})) == ["learning-mismatch:trainer-0"]
    (row,) = plant.fired
    assert row.severity == Severity.PAGE
    assert "3 times" in row.sentence


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_speaks_for_a_bad_series_with_evidence_and_a_command(rule: str) -> None:
    bad, severity, suggest = BAD[rule]
    plant = Plant()
    assert plant.learn(series(60, **bad)) == [f"{rule}:trainer-0"]
    (row,) = plant.fired
    assert (row.severity, row.suggest) == (severity, suggest)
    assert any("normal:" in line for line in row.evidence)
    assert row.evidence[-1].startswith("as of step 5")
    assert "{" not in row.sentence
    assert suggest.split()[1] in {spec.cli.split()[0] for spec in COMMANDS.values()}


def test_groups_without_signal_are_counted_and_not_a_share_that_reads_like_a_count() -> None:
    plant = Plant()
    plant.learn(series(20, groups=[0.0] * 10, groups_without_signal=[2.0] * 10))
    (row,) = plant.fired
    assert row.sentence.startswith("21 of the last 28 groups teach nothing:")


def test_every_rule_about_learning_has_a_bad_series_here() -> None:
    assert {rule.name for rule in LEARNING_RULES} == set(BAD)
    assert {metric.name for rule in LEARNING_RULES for metric in (*rule.metrics, *rule.beside)} <= LEARNING.keys()


def test_a_policy_that_learns_quickly_is_silent() -> None:
    """Entropy falls to a fifth, answers become longer, scores rise: that is what training is for."""
    dice = random.Random(3)
    steps = []
    for number in range(120):
        share = min(1.0, number / 80)
        steps.append(
            {
                "entropy": 1.0 - 0.8 * share + dice.gauss(0, 0.02),
                "reward_mean": min(1.0, 0.1 + 0.8 * share + dice.gauss(0, 0.08)),
                "gradient_norm": abs(dice.gauss(0.8, 0.3)),
                "groups": 8.0,
                "groups_without_signal": float(dice.randint(1, 9)),
                "truncation_share": 0.3 * (1 - share) + dice.uniform(0, 0.1),
                "tool_calls_per_record": 1.0 + 3 * share,
                "tokens_per_record": 40 + 50 * share + dice.gauss(0, 4),
                "evaluation": 0.1 + 0.8 * share if number % 10 == 0 else 0.1 + 0.8 * min(1.0, number // 10 / 8),
            }
        )
    plant = Plant()
    plant.learn(steps)
    assert plant.fired == []


def test_an_alert_ends_well_inside_the_band_and_not_at_its_edge() -> None:
    plant = Plant()
    plant.report(**(WELL | {"ess": 0.29}))
    assert plant.pass_time(30) == ["learning-drift:trainer-0"]
    plant.report(ess=0.31)
    assert plant.pass_time(60) == ["learning-drift:trainer-0"]
    plant.report(ess=0.34)
    assert plant.pass_time(60) == []


def test_what_a_step_does_not_tell_any_more_accuses_nobody() -> None:
    plant = Plant()
    plant.report(mismatch_over_limit=40.0)
    assert plant.pass_time(30) == ["learning-mismatch:trainer-0"]
    plant.report(mismatch_over_limit=float("nan"))
    assert plant.pass_time(60) == []


def test_numbers_of_a_trainer_that_is_gone_accuse_nobody() -> None:
    plant = Plant(replace(TRAINER, state=UnitState.STOPPED))
    plant.report(**(WELL | {"ess": 0.01}))
    assert plant.pass_time(60) == []


# ---- the data plane ----


def test_no_step_for_long_is_judged_by_the_usual_pace_and_shows_the_chain() -> None:
    plant = Plant()
    for number in range(6):
        plant.report(**{STEP.name: float(number)})
        plant.pass_time(200)
    plant.chains = (WaitChain((WaitLink("trainer-0", "batch"),), "tool a.b", "has not answered", "the chain"),)
    assert plant.pass_time(1700) == [], "ten times two hundred seconds"
    assert plant.pass_time(600) == ["no-step:trainer-0"]
    assert plant.fired[0].evidence == ("usually one in 200 s", "the chain")
    plant.report(**{STEP.name: 6.0})
    assert plant.pass_time(60) == []
    paused = Plant(replace(TRAINER, paused=True))
    paused.report(**{STEP.name: 1.0})
    assert paused.pass_time(5000) == []


def test_an_engine_that_stays_behind_is_named() -> None:
    trainer, engine = replace(TRAINER, weights=9), unit("engine-0", weights=6, status="refused version 7 (hash)")
    plant = Plant(trainer, engine, unit("engine-1", weights=8), unit("engine-2"))
    assert plant.pass_time(30) == [], "it may be loading"
    assert plant.pass_time(60) == ["engine-lags:engine-0"]
    assert "refused version 7 (hash)" in plant.fired[0].evidence[0]


def test_a_version_that_no_engine_takes_is_told_until_one_is_taken() -> None:
    plant = Plant(unit("steward-0"), unit("engine-0", status="refused version 4 (its bytes are others)"))
    plant.report("steward-0", **{REJECTED.name: 4.0})
    assert plant.pass_time(3) == ["version-rejected:v4"]
    assert "its bytes are others" in plant.fired[0].evidence[0]
    plant.report("steward-0", **{REJECTED.name: 0.0})
    assert plant.pass_time(60) == []


def test_an_engine_whose_canary_is_strange_is_told_although_it_serves() -> None:
    plant = Plant(unit("engine-0", weights=7), unit("engine-1", weights=7))
    for name, largest in (("engine-0", 0.05), ("engine-1", 1e-5)):
        told = Agreement(tokens=300, mean=5e-4, largest=largest)
        plant.report(name, **{CANARY_LARGEST.name: told.largest, CANARY_OVER_LIMIT.name: told.largest_over_limit})
    assert plant.pass_time(3) == ["canary-differs:engine-0"]
    (row,) = plant.fired
    assert "version 7" in row.sentence
    assert "0.05 nat" in row.sentence
    assert "normal: at most 1" in row.evidence[0]
    # The same difference is what numbers of half that size make of it.
    in_half = Agreement(tokens=300, mean=5e-4, largest=0.05, limit=MEAN_LIMIT_HALF)
    plant.report("engine-0", **{CANARY_OVER_LIMIT.name: in_half.largest_over_limit})
    assert plant.pass_time(60) == []


def test_a_server_that_is_left_alone_and_a_tool_that_fails_are_named() -> None:
    plant = Plant(unit("toolbox-0"))
    breaker, failures = named(BREAKER_OPEN, "search"), named(TOOL_FAILURES, "shop.lookup")
    plant.report("toolbox-0", **{breaker: 0.0, failures: 0.05})
    assert plant.pass_time(60) == []
    plant.report("toolbox-0", **{breaker: 1.0, failures: 0.3})
    assert plant.pass_time(30) == ["tool-fails:toolbox-0/shop.lookup", "tool-server-left-alone:toolbox-0/search"]
    plant.report("toolbox-0", **{breaker: 0.0, failures: 0.15})
    assert plant.pass_time(60) == ["tool-fails:toolbox-0/shop.lookup"]
    plant.report("toolbox-0", **{failures: 0.02})
    assert plant.pass_time(60) == []


def test_prompts_of_two_splits_and_a_warm_up_that_came_too_late_are_told() -> None:
    plant = Plant(unit("steward-0"), TRAINER)
    example = "eval.jsonl line 2 is held out, and train.jsonl line 5 trains on the same prompt"
    plant.report("steward-0", **{named(HELD_OUT_TRAINED, f"shop/{example}"): 3.0})
    plant.report(**{WARMUP_UNUSED.name: 1.0})
    assert plant.pass_time(3) == ["held-out-trained:shop", "warm-up-unused:trainer-0"]
    told = {row.rule: row for row in plant.fired}
    assert told["held-out-trained"].sentence.startswith("3 held-out prompts of shop are trained on too")
    assert told["held-out-trained"].evidence[0] == example
    assert "continues from its checkpoint" in told["warm-up-unused"].sentence
    plant.report(**{WARMUP_UNUSED.name: 0.0})
    assert plant.pass_time(60) == ["held-out-trained:shop"]
