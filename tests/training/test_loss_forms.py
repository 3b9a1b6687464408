"""The forms of the loss in the learner: against formulas on unmerged records, and however a batch is packed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from agentrl.policies.loss_settings import DEFAULTS_BY_NAME, Masks, PolicyLoss
from agentrl.store.database import Database
from agentrl.telemetry.loss_terms import is_term, metric_of
from agentrl.training import learner as learning
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner
from tests.training.conftest import make_learner
from tests.training.rollouts import closed_groups, configuration, trainer
from tests.training.test_packing import agree, context_of, gradients, packed, two_groups
from tests.training.trees import batch_of

GSPO = PolicyLoss(kind="gspo", clip_low=0.3, clip_high=0.3, aggregation="record-mean")
MINIRL = PolicyLoss(kind="minirl", ratio="decoupled", ratio_cap=1.5, aggregation="record-sum")
MASKED = PolicyLoss(masks=Masks(token=(0.3, 3.0), geometric=(0.5, 1.5), k2=1.0), denominator="kept")
WEIGHTED = PolicyLoss(ratio="decoupled", weight_cap=1.2, weight_by="sequence", weight_normalised=True)
FORMS = {
    "gspo": GSPO,
    "cispo": PolicyLoss(kind="cispo", ratio_cap=1.5),
    "minirl": MINIRL,
    "ce-grpo": PolicyLoss(kind="ce-grpo", kept_below=0.5, kept_above=0.5),
    "masked": MASKED,
    "weighted": WEIGHTED,
}
Scores = list[tuple[torch.Tensor, torch.Tensor, float]]
"""For each record: the present log-probs, those of sampling, and the advantage."""


@pytest.fixture
def batch() -> Batch:
    return batch_of(two_groups(random.Random(5)))


def unmerged(learner: Learner, batch: Batch) -> Scores:
    found: Scores = []
    for trajectory in batch.trajectories:
        now, sampled = [], []
        for index, segment in enumerate(trajectory.segments):
            if not segment.trains:
                continue
            context = context_of(trajectory, index)
            logits = learner.model(torch.tensor([context + segment.ids.tolist()])).logits[0, len(context) - 1 : -1]
            spread = torch.log_softmax(logits / segment.temperature, dim=-1)
            now.append(spread[torch.arange(len(segment.ids)), torch.tensor(segment.ids)])
            sampled.append(torch.tensor(segment.log_probs, dtype=torch.float64))
        found.append((torch.cat(now), torch.cat(sampled), trajectory.advantage))
    return found


def gspo(scores: Scores) -> torch.Tensor:
    """The sequence form."""
    whole = []
    for now, sampled, a in scores:
        s = (now - sampled).mean().exp()
        whole.append(-torch.minimum(s * a, s.clamp(0.7, 1.3) * a))
    return torch.stack(whole).mean()


def minirl(scores: Scores) -> torch.Tensor:
    """At the start of a step: nothing is stopped yet."""
    return torch.stack(
        [-((now - sampled).exp().detach().clamp(max=1.5) * a * now).sum() for now, sampled, a in scores]
    ).mean()


def masked(scores: Scores) -> torch.Tensor:
    kept, whole = 0, torch.zeros((), dtype=torch.float64)
    for now, sampled, a in scores:
        apart = (now - sampled).detach()
        keeps = (apart.exp() >= 0.3) & (apart.exp() <= 3.0)
        keeps &= 0.5 <= float(apart.mean().exp()) <= 1.5 and float((0.5 * apart**2).mean()) <= 1.0
        r = (now - sampled).exp()
        whole = whole - torch.minimum(r * a, r.clamp(0.8, 1.28) * a)[keeps].sum()
        kept += int(keeps.sum())
    assert 0 < kept < sum(len(now) for now, _, _ in scores)
    return whole / kept


def weighted(scores: Scores) -> torch.Tensor:
    weights = [(now - sampled).detach().sum().clamp(-20, 20).exp().clamp(max=1.2) for now, sampled, _ in scores]
    pairs = sum(len(now) for now, _, _ in scores)
    mean = sum(weight * len(now) for weight, (now, _, _) in zip(weights, scores, strict=True)) / pairs
    of_records = [
        -(weight / mean * a * (now - now.detach()).exp()).sum()
        for weight, (now, _, a) in zip(weights, scores, strict=True)
    ]
    return torch.stack(of_records).sum() / pairs


@pytest.mark.parametrize(
    ("name", "formula"), [("gspo", gspo), ("minirl", minirl), ("masked", masked), ("weighted", weighted)]
)
def test_packed_loss_and_gradient_are_those_of_the_formula_on_unmerged_records(
    exact: Learner, batch: Batch, name: str, formula: Callable[[Scores], torch.Tensor]
) -> None:
    found = packed(exact, batch, FORMS[name])
    expected = formula(unmerged(exact, batch))
    exact.model.zero_grad()
    expected.backward()
    agree(found, (float(expected.detach()), gradients(exact)))


@pytest.mark.parametrize("name", FORMS)
def test_no_form_depends_on_rows_micro_batches_layout_or_order(exact: Learner, batch: Batch, name: str) -> None:
    expected = packed(exact, batch, FORMS[name])
    for tokens in (1, 60, 10_000):
        exact.settings = learning.LearnerSettings(tokens_per_batch=tokens)
        agree(packed(exact, batch, FORMS[name]), expected)
    exact.layout = "linear"
    shuffled = random.Random(1).sample(batch.trajectories, len(batch.trajectories))
    agree(packed(exact, batch_of(shuffled), FORMS[name]), expected)


@pytest.mark.parametrize("name", FORMS)
def test_equal_rewards_and_single_records_give_no_or_a_finite_gradient(exact: Learner, batch: Batch, name: str) -> None:
    one = batch_of(batch.trajectories[:1])
    assert exact.train(one, FORMS[name], learning_rate=0.0).applied
    flat = batch_of([msgspec.structs.replace(each, advantage=0.0) for each in batch.trajectories])
    found = exact.train(flat, FORMS[name], learning_rate=0.0)
    assert found.metrics["loss"] == 0
    assert found.metrics["gradient_norm"] == 0


def test_a_batch_that_masks_everything_changes_no_weight(tiny: Path, batch: Batch) -> None:
    learner = make_learner(tiny)
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    for denominator in ("all", "kept"):
        loss = PolicyLoss(masks=Masks(token=(0.999999, 1.000001)), denominator=denominator)  # type: ignore[arg-type]
        found = learner.train(batch, loss)
        assert found.applied
        assert found.metrics["masked_share"] == found.metrics["term_token_mask"] == 1
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())


def test_every_optimizer_step_measures_the_ratios_of_its_records(tiny: Path, batch: Batch) -> None:
    one, other = (make_learner(tiny, learning_rate=1e-2) for _ in range(2))
    one.train(batch, GSPO, optimizer_steps=2)
    for group in ("a", "b"):
        other.train(batch_of([each for each in batch.trajectories if each.group == group]), GSPO)
    for name, value in one.model.state_dict().items():
        assert torch.allclose(value, other.model.state_dict()[name], atol=1e-12), name


def test_gspo_warns_once_of_a_gap_wider_than_half_of_its_clip(
    exact: Learner, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    for loss in (PolicyLoss(), GSPO, GSPO):
        exact.train(batch, loss, learning_rate=0.0)
    (note,) = [one.getMessage() for one in caplog.records if "gspo" in one.getMessage()]
    assert "more than half of the clip of gspo (0.3)" in note


def test_a_distance_within_the_score_needs_a_reference_and_moves_advantages(tiny: Path, batch: Batch) -> None:
    learner = make_learner(tiny, learning_rate=5e-3)
    learner.compare_with(tiny)
    in_reward = PolicyLoss(reference_weight=3.0, reference_in="reward")
    at_start, plain = packed(learner, batch, in_reward), packed(learner, batch)
    # The norms of the reference are not exact.
    agree(at_start, plain, limit=1e-5)
    learner.train(batch, PolicyLoss())
    assert packed(learner, batch, in_reward)[0] != pytest.approx(packed(learner, batch)[0], abs=1e-6)


def test_metrics_name_the_active_terms_with_their_shares(exact: Learner, batch: Batch) -> None:
    metrics = exact.train(batch, MASKED, learning_rate=0.0).metrics
    shares = {name: value for name, value in metrics.items() if name.startswith("term_")}
    assert shares.keys() == {"term_grpo", "term_clip", "term_token_mask", "term_geometric_mask", "term_k2_limit"}
    assert all(0 <= share <= 1 for share in shares.values())
    assert 0 < shares["term_token_mask"] <= metrics["masked_share"] < 1
    assert shares["term_grpo"] == pytest.approx(metrics["accepted_share"])


@pytest.mark.parametrize(
    ("training", "terms"),
    [
        ({"loss": "minirl", "optimizer_steps": 2}, {"minirl", "clip", "cap"}),
        ({"loss": "gspo", "masks": {"sequence": [0.0, 1e6]}}, {"gspo", "clip", "sequence_mask"}),
        ({"ratio": "decoupled", "weight_cap": 2.0, "dual_clip": 3.0}, {"grpo", "clip", "dual_clip", "weight"}),
        (
            {"loss": "cispo", "strategy": "decay", "reference": "initial", "reference_weight": 0.1},
            {"cispo", "cap", "decay", "reference"},
        ),
    ],
)
async def test_a_run_file_reaches_the_loss_and_the_step_says_what_was_active(
    db: Database, tiny: Path, tmp_path: Path, training: dict[str, Any], terms: set[str]
) -> None:
    await closed_groups(db, 2)
    await trainer(db, configuration(tmp_path, tiny, steps=1, **training), tmp_path).run()
    (step,) = await db.find("Step", {})
    shares = {name: value for name, value in step["metrics"].items() if is_term(name)}
    assert shares.keys() == {metric_of(name) for name in terms}
    assert shares[metric_of(next(name for name in terms if name in DEFAULTS_BY_NAME))] > 0
