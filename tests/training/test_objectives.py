"""Objectives in the learner: decay by age or by time, the denominator, both ratios."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from agentrl.policies.freshness import Decay
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch
from agentrl.training.learner import Learner
from tests.training.trees import batch_of, group

TIGHT = Decay(out_of_date_decay=5.0, epsilon=0.05, extra=0.0, cap=2.0)


def batch(*, decays: bool, ages: Mapping[int, int] | None = None, **fields: Any) -> Batch:
    members = [msgspec.structs.replace(one, decays=decays) for one in group(random.Random(4), 4)]
    return msgspec.structs.replace(batch_of(members, dict(ages or {0: 9, 1: 9, 2: 9})), **fields)


def measured(learner: Learner, given: Batch, **loss: Any) -> dict[str, float]:
    """The metrics of a step that changes no weights."""
    learner.optimizers.set_learning_rate(0.0)
    return learner.train(given, PolicyLoss(**loss)).metrics


def test_decay_masks_only_records_of_environments_that_decay(exact: Learner) -> None:
    assert measured(exact, batch(decays=False), decay=TIGHT)["masked_share"] == 0
    assert 0.1 < measured(exact, batch(decays=True), decay=TIGHT)["masked_share"] < 0.9


def test_decay_uses_time_if_it_is_given(exact: Learner) -> None:
    wide = Decay(out_of_date_decay=5.0, epsilon=0.2, extra=500.0, cap=4.9)
    old = measured(exact, batch(decays=True), decay=TIGHT)["masked_share"]
    new = measured(exact, batch(decays=True, ages={0: 0, 1: 0, 2: 0}), decay=wide)["masked_share"]
    by_time = batch(decays=True, ages={0: 0, 1: 0, 2: 0}, ages_s={0: 60.0, 1: 60.0, 2: 60.0})
    assert measured(exact, by_time, decay=TIGHT)["masked_share"] == old, "a minute is old, whatever was published"
    assert new < old


def test_a_denominator_of_kept_pairs_rescales_loss_and_gradient_once(exact: Learner) -> None:
    given = batch(decays=True)
    every = measured(exact, given, decay=TIGHT)
    kept = measured(exact, given, decay=TIGHT, denominator="kept")
    factor = 1 / (1 - every["masked_share"])
    assert kept["loss"] == pytest.approx(every["loss"] * factor)
    assert kept["gradient_norm"] == pytest.approx(every["gradient_norm"] * factor)
    nothing_masked = batch(decays=False)
    assert (
        measured(exact, nothing_masked, denominator="kept")["loss"]
        == measured(exact, nothing_masked, denominator="all")["loss"]
    )


def test_the_decoupled_ratio_is_one_at_the_policy_that_the_step_begins_with(exact: Learner) -> None:
    given = batch(decays=False)
    bypass, decoupled = measured(exact, given), measured(exact, given, ratio="decoupled")
    assert bypass["clipped_share"] > 0.05, "the sampled log-probs of these trees are far from the model's"
    assert decoupled["clipped_share"] == 0
    weighted = measured(exact, given, ratio="decoupled", weight_cap=1e-6)
    assert abs(weighted["loss"]) < 1e-4 < abs(decoupled["loss"]), "weights of at most a millionth"
