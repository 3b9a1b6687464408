"""PPO with a critic: GAE by its definition, the value loss, what a critic learns, its checkpoint."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.policies.loss_settings import CriticRule, PolicyLoss
from agentrl.training import checkpoints
from agentrl.training.batch import Batch, Trajectory
from agentrl.training.checkpoints import Progress
from agentrl.training.critic import generalised_advantages, targets_of, value_loss
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.lora import Adapters
from tests.training.conftest import make_learner
from tests.training.test_losses import finite_difference, gradient
from tests.training.trees import batch_of, fork, group

RULE = CriticRule(discount=0.97, trace=0.9, normalise=False)
LOSS = PolicyLoss(kind="ppo", critic=RULE)


def given(chance: int = 4, *, groups: int = 2, capped: bool = False) -> Batch:
    """A batch with edited contexts. The reward of a turn depends on its tokens."""
    members = [
        rewarded(one, capped=capped)
        for number in range(groups)
        for one in group(random.Random(chance + number), 3, name=f"g{number}", make=fork)
    ]
    return batch_of(members)


def rewarded(one: Trajectory, *, capped: bool) -> Trajectory:
    segments = [msgspec.structs.replace(each, reward=(int(each.ids.sum()) % 7 - 3) / 3) for each in one.segments]
    return msgspec.structs.replace(one, segments=segments, advantage=0.0, capped=capped)


@pytest.mark.parametrize("rule", [RULE, CriticRule(), CriticRule(trace=0.0), CriticRule(trace=1.0, discount=0.9)])
def test_gae_is_the_discounted_sum_of_surprises_of_each_record(rule: CriticRule) -> None:
    lengths = [1, 7, 64, 3]
    record = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    chance = torch.Generator().manual_seed(0)
    values, rewards = (torch.randn(len(record), generator=chance, dtype=torch.float64) for _ in range(2))
    expected = torch.zeros_like(values)
    for index in reversed(range(len(record))):
        last = index + 1 == len(record) or record[index + 1] != record[index]
        after, later = (0.0, 0.0) if last else (float(values[index + 1]), float(expected[index + 1]))
        surprise = float(rewards[index]) + rule.discount * after - float(values[index])
        expected[index] = surprise + rule.discount * rule.trace * later
    assert torch.allclose(generalised_advantages(values, rewards, record, rule), expected, atol=1e-12)


def test_with_a_trace_of_one_an_advantage_is_the_return_less_the_value() -> None:
    values, rewards = torch.tensor([0.5, 0.25, 2.0]), torch.tensor([0.0, 0.0, 1.0])
    rule = CriticRule(trace=1.0)
    found = generalised_advantages(values, rewards, torch.zeros(3, dtype=torch.int64), rule)
    assert found.tolist() == [0.5, 0.75, -1.0]


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_the_gradient_of_the_value_loss_is_that_of_finite_differences(clip: float) -> None:
    chance = torch.Generator().manual_seed(1)
    at, before, returns = (torch.randn(60, generator=chance, dtype=torch.float64) for _ in range(3))
    rule = replace(RULE, clip=clip)

    def value(values: torch.Tensor) -> torch.Tensor:
        return value_loss(values, before, returns, rule).loss.sum()

    assert torch.allclose(gradient(value, at), finite_difference(value, at), atol=1e-7)
    held = value_loss(at, before, returns, rule).held
    assert bool(held.any()) is (clip > 0)
    assert not (gradient(value, at)[held]).any(), "a clipped value has no gradient"


def with_critic(directory: Path, *, critic_rate: float = 1e-3, **settings: Any) -> Learner:
    return make_learner(directory, critic_rate=critic_rate, **settings)


def test_a_critic_needs_settings_that_make_one(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="the trainer has none"):
        make_learner(tiny).train(given(), LOSS)
    with pytest.raises(ConfigError, match="needs the advantages of a critic"):
        PolicyLoss(kind="ppo")
    with pytest.raises(ConfigError, match="one ratio for a record"):
        PolicyLoss(kind="gspo", aggregation="record-mean", critic=RULE)


def test_neither_packing_nor_micro_batches_change_what_a_step_with_a_critic_learns(tiny: Path) -> None:
    """Rows of one record each, and all of them together; also the parameters agree after the step."""
    found = []
    for tokens in (1, 4_096):
        learner = with_critic(tiny, tokens_per_batch=tokens)
        metrics = [learner.train(given(step), LOSS, learning_rate=1e-3).metrics for step in range(3)]
        assert learner.critic is not None
        found.append((metrics, {**learner.weights(), **learner.gathered("critic")}))
    (one, weights), (other, others) = found
    for name in ("loss", "value_loss", "explained_variance", "critic_gradient_norm", "advantage_std", "term_value"):
        assert [each[name] for each in one] == pytest.approx([each[name] for each in other], rel=1e-7), name
    assert one[2]["value_mean"] != 0, "the critic has learned something to compare"
    for name, tensor in weights.items():
        assert torch.allclose(tensor, others[name], atol=1e-7), name


def test_advantages_of_a_fresh_critic_are_the_returns(tiny: Path) -> None:
    rule = CriticRule(trace=1.0, normalise=False)
    found = with_critic(tiny).train(given(), PolicyLoss(kind="ppo", critic=rule)).metrics
    assert found["value_mean"] == 0
    assert found["advantage_mean"] == pytest.approx(found["return_mean"])
    normalised = with_critic(tiny).train(given(), PolicyLoss(kind="ppo", critic=replace(rule, normalise=True))).metrics
    assert normalised["advantage_mean"] == pytest.approx(0, abs=1e-9)
    assert normalised["advantage_std"] == pytest.approx(1)
    capped = with_critic(tiny).train(given(capped=True), PolicyLoss(kind="ppo", critic=rule)).metrics
    assert capped["advantage_mean"] < found["advantage_mean"]
    assert capped["return_mean"] == found["return_mean"], "the critic still learns the returns"


def test_a_penalty_lowers_the_returns_up_to_its_token_and_no_other_record() -> None:
    """Two records of three and two tokens, whose pairs are spread over two micro-batches in another order."""
    rule = CriticRule(trace=1.0, normalise=False)
    facts: Any = SimpleNamespace(
        first=torch.tensor([0, 3]),
        pairs_of_record=torch.tensor([3.0, 2.0]),
        rewards=torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0]),
        capped=torch.tensor([False, True]),
    )
    places = [
        (torch.tensor([1, 0, 0]), torch.tensor([1, 2, 0])),
        (torch.tensor([0, 1]), torch.tensor([1, 0])),
    ]
    values = [torch.zeros(3), torch.zeros(2)]
    penalty = [torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.25, 0.0])]
    found = targets_of(values, penalty, places, facts, rule, lambda one: one)
    assert [one.tolist() for one in found.returns] == [[1.0, 1.0, 0.75], [0.75, 1.0]]
    assert [one.tolist() for one in found.advantage] == [[0.0, 1.0, 0.75], [0.75, 0.0]], "the second one is capped"


def test_a_distance_in_the_reward_is_that_of_the_policy_before_the_step(tiny: Path) -> None:
    loss = PolicyLoss(kind="ppo", critic=replace(RULE, trace=1.0), reference_weight=0.5, reference_in="reward")
    learner = with_critic(tiny, exact=False)
    with pytest.raises(ConfigError, match="there is no reference"):
        learner.train(given(), loss)
    learner.compare_with(tiny)
    plain = with_critic(tiny, exact=False).train(given(), replace(loss, reference_weight=0.0, reference_in="loss"))
    same = learner.train(given(), loss, learning_rate=0.05).metrics["return_mean"]
    assert same == pytest.approx(plain.metrics["return_mean"], abs=1e-6), "the policy is its own reference"
    assert abs(learner.train(given(), loss).metrics["return_mean"] - same) > 0.1, "now it is another one"


def test_the_critic_learns_to_expect_returns_while_the_policy_waits(tiny: Path) -> None:
    learner = with_critic(tiny, critic_rate=1e-2)
    loss = PolicyLoss(kind="ppo", critic=replace(RULE, trace=1.0, clip=0.0, alone=30))
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    explained = [
        learner.train(msgspec.structs.replace(given(), step=step), loss).metrics["explained_variance"]
        for step in range(1, 31)
    ]
    assert explained[0] == pytest.approx(0, abs=1e-9)
    assert explained[-1] > 0.5
    after = learner.weights()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    learner.train(msgspec.structs.replace(given(), step=31), loss, learning_rate=1e-3)
    assert any(not torch.equal(learner.weights()[name], tensor) for name, tensor in before.items())


def test_a_step_that_is_not_finite_leaves_the_critic_as_it_was(tiny: Path) -> None:
    learner = with_critic(tiny)
    batch = given(groups=2)
    learner.train(batch, LOSS)
    before = {name: tensor.clone() for name, tensor in learner.gathered("critic").items()}
    last = batch.trajectories[-1]
    broken = [msgspec.structs.replace(one, reward=float("nan")) for one in last.segments]
    trajectories = [*batch.trajectories[:-1], msgspec.structs.replace(last, segments=broken)]
    result = learner.train(msgspec.structs.replace(batch, trajectories=trajectories), LOSS, optimizer_steps=2)
    assert not result.applied
    after = learner.gathered("critic")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("adapters", [None, Adapters(rank=2, alpha=4.0)], ids=["all weights", "adapters"])
def test_training_goes_on_from_a_checkpoint_with_the_same_bits(
    tiny: Path, tmp_path: Path, adapters: Adapters | None
) -> None:
    """The critic trains all of its weights also where the policy trains adapters."""

    def learner_at(directory: Path) -> Learner:
        return Learner(directory, LearnerSettings(critic_rate=1e-3, learning_rate=1e-3, adapters=adapters))

    first = learner_at(tiny)
    first.train(given(), "supervised")
    first.new_optimizers(1e-3)
    assert first.critic is not None
    embedded = first.critic.tensors()["weights/model.embed_tokens.weight"]
    assert torch.equal(embedded, first.weights()["model.embed_tokens.weight"]), "it begins as the policy is now"
    first.train(given(), LOSS)
    checkpoints.write_checkpoint(tmp_path / "kept", first, Progress(step=1, version=0))
    second = learner_at(tmp_path / "kept")
    assert checkpoints.restore_optimizers(tmp_path / "kept", second)
    assert first.train(given(7), LOSS).metrics == second.train(given(7), LOSS).metrics
    ends = [{**one.weights(), **one.gathered("critic")} for one in (first, second)]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    (tmp_path / "kept" / checkpoints.CRITIC_FILE).unlink()
    without = learner_at(tmp_path / "kept")
    assert checkpoints.restore_optimizers(tmp_path / "kept", without)
    assert without.train(given(7), LOSS).metrics["value_mean"] == 0, "it begins as a copy of the policy"
