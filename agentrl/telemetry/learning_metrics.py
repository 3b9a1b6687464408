"""The metrics of learning: meaning, and the normal band of a healthy run. Pure.

Invariants: each name is declared once and is the same in Step documents, in curves and among the trainer's metrics;
outside its band a metric means a fault (mismatch) or a policy far from the one that sampled its batches (drift).
"""

from __future__ import annotations

from agentrl.telemetry.control_plane_metrics import Metric
from agentrl.telemetry.loss_terms import TERMS

REWARD = Metric("reward_mean", "", "Mean score of the groups of a step.")
EVALUATION = Metric("evaluation", "", "Mean score of the last evaluation on held-out tasks.")
EVALUATION_MARGIN = Metric("evaluation_margin", "", "Half of the 95 % interval of that mean.")
EVALUATION_BEST = Metric("evaluation_best", "", "The best evaluation of the run.")
EVALUATION_BEST_VERSION = Metric("evaluation_best_version", "", "The version with the best evaluation.")
REWARD_LATELY = Metric("reward_lately", "", "Mean reward of the last ten steps.")
REWARD_LATELY_MARGIN = Metric("reward_lately_margin", "", "Half of the 95 % interval of that mean.")
REWARD_BEST = Metric("reward_best", "", "The best reward of ten steps in the run.")
COLLAPSE = Metric(
    "collapse",
    "",
    "How far evaluation or reward are below their best, in units of both margins of error.",
    (float("-inf"), 1.0),
)
REWARD_COLLAPSE = Metric("reward_collapse", "", "How far the reward alone is below its best, in the same units.")
COLLAPSE_BEGAN = Metric("collapse_began_at", "s", "When the reward began to fall, in seconds since 1970.")
ROLLBACK_VERSION = Metric("rollback_version", "", "Version of the checkpoint with the best evaluation.")
STEPS_WANTED = Metric("steps_wanted", "", "Steps after which training is complete.")

MISMATCH_MEAN = Metric(
    "mismatch_mean", "nat", "Mean |Δ log-prob| between engine and trainer, on tokens of age 0.", (0.0, 2e-2)
)
MISMATCH_P99 = Metric("mismatch_p99", "nat", "The same, 99 of 100 tokens are below it.")
MISMATCH_K3 = Metric("mismatch_k3", "nat", "KL between engine and trainer on tokens of age 0, by the K3 estimate.")
MISMATCH_OVER_LIMIT = Metric(
    "mismatch_over_limit", "", "mismatch_mean against what the engine allows: 1e-3, or 2e-2 in bf16.", (0.0, 1.0)
)
MISMATCH_P99_OVER_LIMIT = Metric(
    "mismatch_p99_over_limit", "", "mismatch_p99 against ten times that limit.", (0.0, 1.0)
)
MISMATCH_K3_OVER_LIMIT = Metric(
    "mismatch_k3_over_limit", "", "mismatch_k3 against ten times the square of that limit.", (0.0, 1.0)
)

WEIGHT_MEAN = Metric("weight_mean", "", "Mean of ρ = π/μ over the pairs of a step.", (0.5, 2.0))
WEIGHT_STD = Metric("weight_std", "", "Spread of ρ.", (0.0, 1.0))
ESS = Metric("ess", "", "Effective sample size, as a share of the pairs.", (0.3, float("inf")))
ACCEPTED = Metric("accepted_share", "", "Pairs that neither a clip nor a bound took out.", (0.8, float("inf")))

CLIPPED = Metric("clipped_share", "", "Pairs whose gradient a clip took out.")
KL_BEHAVIOUR = Metric(
    "kl_behaviour", "nat", "KL of the policy to what it was sampled from, of a token, by the K3 estimate."
)
AGE = Metric("age_mean", "", "Mean age of the tokens of a step, in versions.")
KL_REFERENCE = Metric(
    "kl_reference", "nat", "KL of the policy to the reference, of a token, by the K3 estimate.", (0.0, 1.0)
)

LOSS = Metric("loss", "", "The loss of a step, as it was optimized.")
ENTROPY = Metric("entropy", "nat", "Mean entropy of the policy at its own tokens.")
ENTROPY_KEPT = Metric("entropy_kept", "", "Entropy against that of fifty steps before.", (0.5, float("inf")))
REWARD_GAIN = Metric("reward_gain", "", "Reward against that of fifty steps before.")
LEARNING_RATE = Metric("learning_rate", "", "The learning rate of the step, after its schedule.")
GRADIENT = Metric("gradient_norm", "", "Length of the gradient before it is cut.")
GRADIENT_OVER_MEDIAN = Metric("gradient_over_median", "", "The same against the median of fifty steps.", (0.0, 10.0))
EXPLAINED_VARIANCE = Metric(
    "explained_variance", "", "How much of the returns the critic expected: 1 is all, 0 no more than their mean."
)
VALUE_LOSS = Metric("value_loss", "", "The loss of the critic.")
CRITIC_GRADIENT = Metric("critic_gradient_norm", "", "Length of the gradient of the critic before it is cut.")
GROUPS = Metric("groups", "", "Groups that a step trained.")
WITHOUT_SIGNAL = Metric("groups_without_signal", "", "Groups that a step took and that teach nothing.")
RECORDS = Metric("records", "", "Records that a step trained.")
STALE = Metric("stale_records", "", "Records that were too old for a step when it was cut.")
BROKEN = Metric("broken_records", "", "Records of a step that could not be read, and were left out.")
STEP_SECONDS = Metric("seconds", "s", "How long a step took, from its lease until it was trained.")
ZERO_VARIANCE = Metric("zero_variance_share", "", "Groups of a step that teach nothing: all scores are the same.")
ZERO_VARIANCE_LATELY = Metric("zero_variance_lately", "", "The same over the last ten steps.", (0.0, 0.7))
WITHOUT_SIGNAL_LATELY = Metric("groups_without_signal_lately", "", "Such groups in the last ten steps.")
GROUPS_LATELY = Metric("groups_lately", "", "All groups of the last ten steps.")
TRUNCATION = Metric("truncation_share", "", "Records of a step that were cut off: by tokens, context or turns.")
TRUNCATION_RISE = Metric(
    "truncation_rise", "", "How many more were cut off than before, over ten steps.", (float("-inf"), 0.3)
)
TOOL_CALLS = Metric("tool_calls_per_record", "", "Tool calls of a record.")
TOOL_CALLS_KEPT = Metric("tool_calls_kept", "", "The same against what it was, over five steps.", (0.1, float("inf")))
TOOL_FAILURES_RISE = Metric(
    "tool_failures_rise", "", "How much more often than before one tool fails, over ten steps.", (float("-inf"), 0.2)
)
LENGTH = Metric("tokens_per_record", "", "Trained tokens of a record.")
LENGTH_JUMP = Metric("length_jump", "", "Length of the last three steps against the twenty before.", (0.5, 2.0))
EVALUATION_FALL = Metric("evaluation_fall", "", "How far the evaluation is below its best.", (0.0, 0.15))
LOSS_SCALE = Metric("loss_scale", "", "What float16 multiplies the loss by, so that small gradients are not lost.")
SCALE_OVERFLOWS = Metric(
    "loss_scale_overflows", "", "Gradients that overflowed float16 since the trainer started, and were computed again."
)
NOT_FINITE = Metric("not_finite_in_a_row", "", "Batches in a row with a loss that is not finite.", (0, 0))
NOTHING_TRAINED = Metric(
    "steps_without_training", "", "Steps of the run, as long as none of them trained anything; 0 once one did.", (0, 2)
)
VALID = Metric("valid_share", "", "Recent attempts that did not fail for infrastructure.", (0.5, float("inf")))
INFRASTRUCTURE = Metric("infrastructure_share", "", "Attempts since the last step that failed for infrastructure.")
CUT_OFF = Metric("cut_off_share", "", "Attempts since the last step that were cut off: by tokens, context or turns.")

OF_STEPS = (
    *(REWARD, EVALUATION, EVALUATION_MARGIN, MISMATCH_MEAN, MISMATCH_P99, MISMATCH_K3, MISMATCH_OVER_LIMIT),
    *(MISMATCH_P99_OVER_LIMIT, MISMATCH_K3_OVER_LIMIT, KL_REFERENCE),
    *(WEIGHT_MEAN, WEIGHT_STD, ESS, ACCEPTED, ENTROPY, ENTROPY_KEPT, REWARD_GAIN, GRADIENT, GRADIENT_OVER_MEDIAN),
    *(LOSS, LEARNING_RATE, CLIPPED, KL_BEHAVIOUR, AGE, GROUPS, WITHOUT_SIGNAL, RECORDS, STALE, BROKEN, STEP_SECONDS),
    *(
        ZERO_VARIANCE,
        ZERO_VARIANCE_LATELY,
        WITHOUT_SIGNAL_LATELY,
        GROUPS_LATELY,
        TRUNCATION,
        TRUNCATION_RISE,
        TOOL_CALLS,
        TOOL_CALLS_KEPT,
    ),
    *(TOOL_FAILURES_RISE, LENGTH, LENGTH_JUMP, EVALUATION_FALL, INFRASTRUCTURE, CUT_OFF),
    *(REWARD_LATELY, REWARD_LATELY_MARGIN),
    *(EXPLAINED_VARIANCE, VALUE_LOSS, CRITIC_GRADIENT),
    *(LOSS_SCALE, SCALE_OVERFLOWS),
    *TERMS,
)
"""Metrics of Step documents. The trainer also reports the newest ones in its row, so that recordings contain them."""
OF_COLLAPSE = (
    *(EVALUATION_BEST, EVALUATION_BEST_VERSION, REWARD_BEST),
    *(COLLAPSE, REWARD_COLLAPSE, COLLAPSE_BEGAN, ROLLBACK_VERSION),
)
OF_THE_TRAINER = (NOT_FINITE, VALID, STEPS_WANTED, NOTHING_TRAINED, *OF_COLLAPSE)
"""Metrics that the trainer reports between Steps."""

LEARNING: dict[str, Metric] = {metric.name: metric for metric in (*OF_STEPS, *OF_THE_TRAINER)}
