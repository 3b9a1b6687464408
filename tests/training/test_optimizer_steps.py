"""Several optimizer steps of one batch: over whole groups, against one π_old, all or none."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch, Trajectory, split_by_groups
from agentrl.training.learner import Learner
from tests.training.conftest import make_learner
from tests.training.trees import batch_of, chain, group, some, trajectory_of_calls

RATE = 1e-2


def groups(count: int, *, number: int = 5) -> Batch:
    chance = random.Random(number)
    return batch_of([one for place in range(count) for one in group(chance, 3, name=f"g{place}")])


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("count", "wanted", "sizes"), [(5, 2, [2, 3]), (4, 4, [1, 1, 1, 1]), (2, 7, [1, 1]), (3, 1, [3])]
)
def test_parts_are_whole_groups_in_order_and_of_even_size(count: int, wanted: int, sizes: list[int]) -> None:
    batch = groups(count)
    random.Random(2).shuffle(batch.trajectories)
    parts = split_by_groups(batch, wanted)
    named = [list(dict.fromkeys(one.group for one in part.trajectories)) for part in parts]
    assert [len(names) for names in named] == sizes
    order = list(dict.fromkeys(one.group for one in batch.trajectories))
    assert [name for names in named for name in names] == order
    assert sorted(one.record for part in parts for one in part.trajectories) == sorted(
        one.record for one in batch.trajectories
    )
    assert all(part.ages == batch.ages for part in parts)


def test_an_empty_batch_is_one_empty_part() -> None:
    (empty,) = split_by_groups(batch_of([]), 3)
    assert empty.trajectories == []


def test_steps_over_parts_give_the_bits_of_their_batches_one_after_the_other(tiny: Path) -> None:
    one, other = (make_learner(tiny, optimizer="muon", learning_rate=RATE) for _ in range(2))
    batch = groups(4)
    whole = one.train(batch, PolicyLoss(), optimizer_steps=3)
    losses = [other.train(part, PolicyLoss()).metrics["loss"] for part in split_by_groups(batch, 3)]
    assert whole.metrics["optimizer_steps"] == 3
    assert whole.metrics["loss"] == pytest.approx(sum(losses) / 3, abs=1e-12)
    assert same(weights(one), weights(other))
    assert same(one.optimizers.tensors(), other.optimizers.tensors())


def at_the_start(learner: Learner, batch: Batch) -> Batch:
    """The batch as if the policy that it begins with had sampled it."""
    known = []
    for one in batch.trajectories:
        (prompt, sampled) = one.segments
        (found,) = learner.log_probs([[*prompt.ids, *sampled.ids]])
        answer = msgspec.structs.replace(sampled, log_probs=np.array(found[-len(sampled.ids) :]))
        known.append(msgspec.structs.replace(one, segments=[prompt, answer]))
    return msgspec.structs.replace(batch, trajectories=known)


def single_turns(count: int) -> list[Trajectory]:
    chance = random.Random(8)
    calls = [chain(chance, some(chance, 4, 6), 1) for _ in range(count)]
    return [
        trajectory_of_calls(one, f"r{place}", group=f"g{place // 2}", advantage=(-1.0) ** place)
        for place, one in enumerate(calls)
    ]


def test_all_parts_of_a_decoupled_step_use_the_policy_before_the_first(tiny: Path) -> None:
    """The same step against π_old of the whole batch, as its own starting policy would have sampled it."""
    one, other = (make_learner(tiny, optimizer="muon", learning_rate=RATE) for _ in range(2))
    batch = batch_of(single_turns(8))
    reference = at_the_start(other, batch)
    decoupled = one.train(batch, PolicyLoss(ratio="decoupled"), optimizer_steps=4)
    sampled = other.train(reference, PolicyLoss(), optimizer_steps=4)
    assert decoupled.metrics["clipped_share"] == sampled.metrics["clipped_share"] > 0, "later parts have moved away"
    assert decoupled.metrics["loss"] == pytest.approx(sampled.metrics["loss"], abs=1e-10)
    for name, value in weights(one).items():
        assert float((value - weights(other)[name]).abs().max()) < 1e-6, name


def test_mismatch_is_not_measured_on_weights_that_the_step_itself_moved(tiny: Path) -> None:
    learner = make_learner(tiny, optimizer="muon", learning_rate=RATE)
    fresh = at_the_start(learner, batch_of(single_turns(8)))
    for ratio in ("bypass", "decoupled"):
        start = make_learner(tiny, optimizer="muon", learning_rate=RATE)
        metrics = start.train(fresh, PolicyLoss(ratio=ratio), optimizer_steps=4).metrics  # type: ignore[arg-type]
        assert metrics["mismatch_max"] < 1e-9
    assert learner.train(fresh, PolicyLoss()).applied
    assert learner.train(fresh, PolicyLoss()).metrics["mismatch_max"] > 1e-3, "one step moves it by more than that"


def test_packing_and_micro_batches_change_nothing_in_any_part(tiny: Path) -> None:
    batch = groups(4, number=9)
    learners = [
        make_learner(tiny, optimizer="muon", learning_rate=RATE, tokens_per_batch=tokens) for tokens in (16_384, 20)
    ]
    results = [one.train(batch, PolicyLoss(ratio="decoupled"), optimizer_steps=2).metrics for one in learners]
    assert len({metrics["packed_tokens"] for metrics in results}) > 1, "they were packed in other ways"
    for metrics, learner in zip(results[1:], learners[1:], strict=True):
        assert metrics["loss"] == pytest.approx(results[0]["loss"], abs=1e-9)
        assert metrics["gradient_norm"] == pytest.approx(results[0]["gradient_norm"], rel=1e-7)
        for name, value in weights(learner).items():
            assert float((value - weights(learners[0])[name]).abs().max()) < 1e-6, name


@pytest.mark.parametrize("trained_before", [False, True])
def test_a_late_part_that_is_not_finite_undoes_the_parts_before(tiny: Path, trained_before: bool) -> None:
    learner = make_learner(tiny, exact=False, optimizer="muon", learning_rate=RATE)
    if trained_before:
        learner.train(groups(1, number=1), PolicyLoss())
    before, state = weights(learner), {name: value.clone() for name, value in learner.optimizers.tensors().items()}
    good = groups(3)
    last = good.trajectories[-1]
    poisoned = [*good.trajectories[:-1], msgspec.structs.replace(last, advantage=float("inf"))]
    result = learner.train(msgspec.structs.replace(good, trajectories=poisoned), PolicyLoss(), optimizer_steps=3)
    assert not result.applied
    assert result.metrics["optimizer_steps"] == 3, "the third found it"
    assert same(weights(learner), before)
    assert same(learner.optimizers.tensors(), state)
    again = make_learner(tiny, exact=False, optimizer="muon", learning_rate=RATE)
    if trained_before:
        again.train(groups(1, number=1), PolicyLoss())
    for one in (learner, again):
        assert one.train(good, PolicyLoss(), optimizer_steps=3).applied
    assert same(weights(learner), weights(again)), "it goes on as if that batch had never been"
