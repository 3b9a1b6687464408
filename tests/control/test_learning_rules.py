"""The rules about learning: each fires for a bad series, and a healthy one raises no alert."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from agentrl.control.alerts.learning_rules import BANDS
from agentrl.control.state.knob_registry import KnobChange
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.policies import step_alarms
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.control_commands import WaitChain, WaitLink
from agentrl.protocol.rows import Severity, UnitState
from agentrl.telemetry.data_plane_metrics import STEP
from agentrl.telemetry.learning_metrics import LEARNING
from tests.control.simulated_run import AT, TRAINER, WELL, SimulatedRun, unit
from tests.policies.test_step_alarms import series

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
    assert {rule.name for rule in BANDS} == set(BAD)
    assert {metric.name for rule in BANDS for metric in (*rule.metrics, *rule.beside)} <= LEARNING.keys()


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
