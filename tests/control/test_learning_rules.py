"""The rules about learning and the data plane: each fires for a bad series, and a healthy one raises no alert."""

from __future__ import annotations

import dataclasses
import random

import pytest
from msgspec.structs import replace

from agentrl.control.alerts.alert_states import AlertEngine
from agentrl.control.alerts.builtin_rules import LEARNING_RULES, default_rules
from agentrl.control.alerts.rule_types import RunSnapshot
from agentrl.control.state.knob_registry import KnobChange
from agentrl.control.state.progress import ProgressTracker
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.engines.canary import MEAN_LIMIT_HALF, Agreement
from agentrl.policies import step_alarms
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.control_commands import WaitChain, WaitLink
from agentrl.protocol.messages import UnitPart
from agentrl.protocol.rows import AlertRow, RunRow, Severity, UnitRow, UnitState
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
from agentrl.telemetry.learning_metrics import LEARNING
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


class SimulatedRun:
    """A simulated run whose units report numbers, and its alerts."""

    def __init__(self, *units: UnitRow) -> None:
        self.engine = AlertEngine(default_rules())
        self.units = {one.unit: one for one in units or (TRAINER,)}
        self.metrics = MetricStore(LEARNING.keys() | {STEP.name})
        self.chains: tuple[WaitChain, ...] = ()
        self.changes: list[KnobChange] = []
        self.progress = ProgressTracker()
        self.now = 0.0
        self.fired: list[AlertRow] = []

    def report(self, unit: str = "trainer-0", **values: float) -> None:
        self.metrics.update(unit, 1, values, self.now)

    def pass_time(self, seconds: float, looks: int = 3) -> list[str]:
        """Returns the ids of active alerts at the end."""
        world = RunSnapshot(
            RunRow("r", "u", "running"),
            self.units,
            {},
            self.chains,
            self.metrics,
            scientific_changes=lambda: self.changes,
        )
        for _ in range(looks):
            self.now += seconds / looks
            for name, row in self.units.items():
                if row.role == "trainer":
                    works = row.state is UnitState.READY and not row.paused
                    self.progress.observe(name, self.metrics.values(name).get(STEP.name), self.now, works=works)
            world = dataclasses.replace(world, standing_still=tuple(self.progress.standing_still(self.now)))
            outcome = self.engine.evaluate(world, self.now, AT + self.now)
            self.fired += [note.alert for note in outcome.notify if note.what == "firing"]
        return [row.id for row in self.engine.rows()]

    def learn(self, steps: list[dict[str, float]], every_s: float = 5.0) -> list[str]:
        """Reports Steps as the trainer does, with their comparison to earlier ones."""
        for number, step in enumerate(steps):
            numbers = WELL | step
            self.report(**numbers, **step_alarms.against(steps[:number], step), step=float(number))
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


LEARNS_NOTHING = "learning-nothing:trainer-0"


def test_run_that_trains_nothing_alerts_after_three_steps() -> None:
    run = SimulatedRun()
    silent = {"groups": [0.0] * 9, "groups_without_signal": [4.0] * 9}
    steps = series(9, **silent)
    for number in range(1, 10):
        run.report(**WELL, **step_alarms.against(steps[: number - 1], steps[number - 1]), steps_without_training=number)
        assert run.pass_time(5.0) == ([LEARNS_NOTHING] if number > 2 else []), number
    assert run.fired[0].sentence == "trainer-0 has made 3 steps, and none of them trained anything."
    assert run.fired[0].suggest == "agentrl tune temperature"
    run.report(steps_without_training=0.0)
    assert run.pass_time(60.0) == []


def test_cut_off_attempts_are_named_as_the_reason() -> None:
    run = SimulatedRun()
    run.report(**WELL, steps_without_training=3.0, cut_off_share=1.0)
    assert run.pass_time(5.0) == [LEARNS_NOTHING]
    (row,) = run.fired
    assert row.sentence.endswith("none of them trained anything. 100% of the newest attempts were cut off at a limit.")
    assert row.suggest == "agentrl tune max_tokens"
    assert any(line.startswith("cut_off_share = 1") for line in row.evidence)


def test_run_that_ended_without_training_keeps_its_alert() -> None:
    run = SimulatedRun()
    run.report(**WELL, steps_without_training=1.0)
    assert run.pass_time(5.0) == [], "a single step may be so"
    run.units["trainer-0"] = replace(TRAINER, state=UnitState.STOPPED, done=True)
    assert run.pass_time(5.0) == [LEARNS_NOTHING]
    assert run.fired[-1].sentence == "trainer-0 has ended, and no step trained anything."
    run.metrics = MetricStore(LEARNING.keys())
    assert run.pass_time(600.0) == [LEARNS_NOTHING], "another coordinator has no numbers yet"
    run.units["trainer-0"] = TRAINER
    run.report(steps_without_training=0.0)
    assert run.pass_time(60.0) == [], "it is at work again, and has trained"


def test_alert_stays_until_a_step_trains() -> None:
    run = SimulatedRun()
    run.report(**WELL, steps_without_training=3.0)
    assert run.pass_time(5.0) == [LEARNS_NOTHING]
    # Ten steps of groups with different scores, but nothing was trained: the other rule does not fire.
    run.report(steps_without_training=12.0, zero_variance_lately=0.0)
    assert run.pass_time(60.0) == [LEARNS_NOTHING]
    for state in (UnitState.BACKOFF, UnitState.STARTING, UnitState.READY):
        run.units["trainer-0"] = replace(TRAINER, state=state, incarnation=2)
        run.metrics = MetricStore(LEARNING.keys())
        assert run.pass_time(60.0) == [LEARNS_NOTHING], "the next incarnation has reported nothing yet"
    (row,) = run.engine.rows()
    assert row.sentence == "trainer-0 has made no step that trained anything."
    run.metrics.update("trainer-0", 2, {"steps_without_training": 0.0}, run.now)
    assert run.pass_time(60.0) == []
    assert len(run.fired) == 1, "it was a single alert"


COLLAPSED = "learning-collapsed:trainer-0"
BEFORE = {"evaluation": 0.97, "evaluation_margin": 0.04, "evaluation_best": 0.97, "evaluation_best_version": 165.0}


def _change(name: str, old: float, new: float, at: float, segment: int = 1) -> KnobChange:
    return KnobChange(name, 1, at, "root", old, new, "tune", "why", segment)


def test_collapse_pages_with_the_change_before_it_and_the_rollback() -> None:
    run = SimulatedRun()
    run.changes = [_change("groups", 4, 8, AT - 600), _change("learning_rate", 0.0005, 0.05, AT + 2)]
    run.report(**(WELL | BEFORE), collapse=0.0)
    assert run.pass_time(5.0) == []
    fallen = BEFORE | {"evaluation": 0.0, "collapse": 9.0, "collapse_began_at": AT + 5, "rollback_version": 160.0}
    run.report(**fallen)
    assert run.pass_time(5.0) == [COLLAPSED]
    (row,) = run.fired
    assert row.severity == Severity.PAGE
    assert row.sentence == "Evaluation fell from 0.97 to 0.00, 3 s after learning_rate 0.0005 -> 0.05 by root."
    assert "began 3 s after learning_rate 0.0005 -> 0.05 by root" in row.evidence
    assert row.suggest == "agentrl rollback --to 160 --reason 'learning collapsed'"


UNCHANGED = "no scientific knob was changed shortly before it"


def test_collapse_names_what_collapsed() -> None:
    run = SimulatedRun()
    lost = {"evaluation": 0.95, "reward_best": 0.8, "reward_lately": 0.0, "collapse_began_at": AT}
    run.report(**(WELL | BEFORE | lost), collapse=3.0, reward_collapse=3.0)
    assert run.pass_time(5.0) == [COLLAPSED]
    assert run.fired[0].sentence == "Reward fell from 0.80 to 0.00."
    assert UNCHANGED in run.fired[0].evidence
    run.report(collapse=3.0, reward_collapse=1.2, evaluation=0.3)
    assert run.pass_time(5.0) == [COLLAPSED]
    (row,) = run.engine.rows()
    assert row.sentence == "Evaluation fell from 0.97 to 0.30."


def test_collapse_whose_beginning_is_not_known_is_shown_so() -> None:
    run = SimulatedRun()
    run.changes = [_change("learning_rate", 0.0005, 0.05, AT - 5)]
    run.report(**(WELL | BEFORE | {"evaluation": 0.1}), collapse=3.0)
    assert run.pass_time(5.0) == [COLLAPSED]
    assert "when it began is not known" in run.fired[0].evidence
    assert UNCHANGED not in run.fired[0].evidence


def test_collapse_stays_an_alert_until_an_evaluation_is_near_the_best() -> None:
    run = SimulatedRun()
    run.report(**(WELL | BEFORE), collapse=9.0)
    assert run.pass_time(5.0) == [COLLAPSED]
    assert run.fired[0].suggest == "agentrl checkpoints list", "no checkpoint has an evaluation"
    for state in (UnitState.DRAINING, UnitState.STARTING, UnitState.READY):
        run.units["trainer-0"] = replace(TRAINER, state=state, incarnation=2)
        run.metrics = MetricStore(LEARNING.keys())
        assert run.pass_time(60.0) == [COLLAPSED], "the next incarnation has reported nothing yet"
    run.metrics.update("trainer-0", 2, BEFORE | {"collapse": 0.9}, run.now)
    assert run.pass_time(60.0) == [COLLAPSED], "not near enough"
    run.metrics.update("trainer-0", 2, BEFORE | {"collapse": 0.1}, run.now)
    assert run.pass_time(60.0) == []
    assert len(run.fired) == 1, "it was a single alert"


def test_damaged_checkpoint_raises_an_alert() -> None:
    run = SimulatedRun()
    run.report(**WELL, checkpoints_damaged=1.0)
    assert run.pass_time(5.0) == ["checkpoint-damaged:trainer-0"]
    assert run.fired[0].suggest == "agentrl checkpoints list"


def test_ten_steps_without_signal_raise_one_alert() -> None:
    run = SimulatedRun()
    run.report(**WELL, steps_without_training=12.0, zero_variance_lately=1.0)
    assert run.pass_time(60.0) == ["learning-no-signal:trainer-0"]


def test_run_that_trained_and_ended_raises_no_alert() -> None:
    run = SimulatedRun()
    run.report(**WELL, steps_without_training=0.0)
    run.units["trainer-0"] = replace(TRAINER, state=UnitState.STOPPED, done=True)
    assert run.pass_time(600.0) == []


@pytest.mark.parametrize("name", ["mismatch_p99_over_limit", "mismatch_k3_over_limit"])
def test_tail_of_the_mismatch_pages_although_its_mean_is_within_the_limit(name: str) -> None:
    run = SimulatedRun()
    assert run.learn(series(20, **{name: [3.0]})) == ["learning-mismatch:trainer-0"]
    (row,) = run.fired
    assert row.severity == Severity.PAGE
    assert "3 times" in row.sentence


SIGNS = {
    "reward-by-length": (
        "shop",
        {"reward_by_length": 0.6, "answer_growth": 1.5},
        "has grown by a factor of 1.50.",
    ),
    "answers-repeat": ("shop", {"repeats_across": 0.7, "repeats_gain": 0.4}, "In shop 70% of the answers"),
    "groups-repeat": ("shop", {"repeats_within": 0.95, "repeats_within_score": 0.1}, "and they score 0.10 on average"),
    "judge-votes-split": ("shop", {"votes_split": 0.4}, "contradicts itself on 40% of the records"),
    "reward-watcher-falls": (
        "shop/polite",
        {"watched_score_before": 0.4, "watched_score_now": 0.6, "watcher_before": 0.9, "watcher_now": 0.5},
        "In shop the score rises (0.4 → 0.6) while polite, which only watches, falls (0.9 → 0.5).",
    ),
}
OVER = dict(zip(SIGNS, ("reward_by_length", "repeats", "repeats_within", "votes_split", "watcher"), strict=True))


@pytest.mark.parametrize("rule", SIGNS)
def test_sign_of_an_exploited_reward_beyond_its_limit_is_an_alert_with_its_numbers(rule: str) -> None:
    name, numbers, sentence = SIGNS[rule]
    run = SimulatedRun(unit("steward-0"))
    over = f"{OVER[rule]}_over_limit/{name}"
    own = {f"{metric}/{name}": value for metric, value in numbers.items()}
    run.report("steward-0", **own, **{over: 0.95})
    assert run.pass_time(10) == []
    run.report("steward-0", **own, **{over: 1.2})
    assert run.pass_time(10) == [f"{rule}:{name}"]
    (row,) = run.fired
    assert sentence in row.sentence
    assert row.evidence
    assert row.suggest.split()[1] in {spec.cli.split()[0] for spec in COMMANDS.values()}
    run.report("steward-0", **own, **{over: 0.5})
    assert run.pass_time(120) == []


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_fires_for_a_bad_series_with_evidence_and_a_command(rule: str) -> None:
    bad, severity, suggest = BAD[rule]
    run = SimulatedRun()
    assert run.learn(series(60, **bad)) == [f"{rule}:trainer-0"]
    (row,) = run.fired
    assert (row.severity, row.suggest) == (severity, suggest)
    assert any("normal:" in line for line in row.evidence)
    assert row.evidence[-1].startswith("as of step 5")
    assert "{" not in row.sentence
    assert suggest.split()[1] in {spec.cli.split()[0] for spec in COMMANDS.values()}


def test_groups_without_signal_are_shown_as_counts() -> None:
    run = SimulatedRun()
    run.learn(series(20, groups=[0.0] * 10, groups_without_signal=[2.0] * 10))
    (row,) = run.fired
    assert row.sentence.startswith("21 of the last 28 groups teach nothing:")


def test_every_learning_rule_has_a_bad_series() -> None:
    assert {rule.name for rule in LEARNING_RULES} == set(BAD)
    assert {metric.name for rule in LEARNING_RULES for metric in (*rule.metrics, *rule.beside)} <= LEARNING.keys()


def test_policy_that_learns_quickly_raises_no_alert() -> None:
    """Entropy falls to a fifth, answers become longer and scores rise, which is normal."""
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
    run = SimulatedRun()
    run.learn(steps)
    assert run.fired == []


def test_alert_ends_inside_the_band_and_not_at_its_edge() -> None:
    run = SimulatedRun()
    run.report(**(WELL | {"ess": 0.29}))
    assert run.pass_time(30) == ["learning-drift:trainer-0"]
    run.report(ess=0.31)
    assert run.pass_time(60) == ["learning-drift:trainer-0"]
    run.report(ess=0.34)
    assert run.pass_time(60) == []


def test_missing_number_ends_the_alert() -> None:
    run = SimulatedRun()
    run.report(mismatch_over_limit=40.0)
    assert run.pass_time(30) == ["learning-mismatch:trainer-0"]
    run.report(mismatch_over_limit=float("nan"))
    assert run.pass_time(60) == []


def test_numbers_of_a_stopped_trainer_raise_no_alert() -> None:
    run = SimulatedRun(replace(TRAINER, state=UnitState.STOPPED))
    run.report(**(WELL | {"ess": 0.01}))
    assert run.pass_time(60) == []


# ---- the data plane ----


def test_missing_steps_are_compared_with_the_usual_pace() -> None:
    run = SimulatedRun()
    for number in range(6):
        run.report(**{STEP.name: float(number)})
        run.pass_time(200)
    run.chains = (WaitChain((WaitLink("trainer-0", "batch"),), "tool a.b", "has not answered", "the chain"),)
    assert run.pass_time(1700) == [], "ten times two hundred seconds"
    assert run.pass_time(600) == ["no-step:trainer-0"]
    assert run.fired[0].evidence == ("usually one in 200 s", "the chain")
    run.report(**{STEP.name: 6.0})
    assert run.pass_time(60) == []
    paused = SimulatedRun(replace(TRAINER, paused=True))
    paused.report(**{STEP.name: 1.0})
    assert paused.pass_time(5000) == []


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
