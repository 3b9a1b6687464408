"""Packing changes no result."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training import learner as learning
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner
from agentrl.training.packing import Layout, micro_batches, rows
from tests.training.trees import batch_of, chain, fork, group, some, trajectory_of_calls

LOSS = PolicyLoss()


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in learner.model.named_parameters() if one.grad is not None}


def context_of(trajectory: Trajectory, index: int) -> list[int]:
    """All tokens before a segment, on its path from the root."""
    parent = trajectory.segments[index].parent
    if parent < 0:
        return []
    return context_of(trajectory, parent) + trajectory.segments[parent].ids.tolist()


def reference(learner: Learner, batch: Batch, loss: PolicyLoss = LOSS) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient without packing: one forward pass for each segment with its own context."""
    count = batch.trained_tokens
    whole = torch.zeros((), dtype=torch.float64)
    for trajectory in batch.trajectories:
        for index, segment in enumerate(trajectory.segments):
            if not segment.trains:
                continue
            context = context_of(trajectory, index)
            logits = learner.model(torch.tensor([context + segment.ids.tolist()])).logits[0, len(context) - 1 : -1]
            spread = torch.log_softmax(logits / segment.temperature, dim=-1)
            now = spread[torch.arange(len(segment.ids)), torch.tensor(segment.ids)]
            ratio = (now - torch.tensor(segment.log_probs, dtype=torch.float64)).exp()
            a = trajectory.advantage
            bound = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
            whole = whole - torch.minimum(ratio * a, bound * a).sum() / count
    learner.model.zero_grad()
    whole.backward()
    found = gradients(learner)
    learner.model.zero_grad()
    return float(whole.detach()), found


def packed(learner: Learner, batch: Batch, loss: PolicyLoss = LOSS) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and gradient of the learner, before the optimizer uses them."""
    caught: dict[str, torch.Tensor] = {}
    parallelism = learner._parallelism
    clip = parallelism.clip

    def catch(*_: object, scale: float) -> float:
        caught.update({name: one / scale for name, one in gradients(learner).items()})
        return 0.0

    parallelism.clip = catch  # type: ignore[method-assign]
    step = learner.optimizers.step
    learner.optimizers.step = lambda: None  # type: ignore[method-assign]
    try:
        result = learner.train(batch, loss)
    finally:
        parallelism.clip = clip  # type: ignore[method-assign]
        learner.optimizers.step = step  # type: ignore[method-assign]
    return result.metrics["loss"], caught


def agree(
    one: tuple[float, dict[str, torch.Tensor]], other: tuple[float, dict[str, torch.Tensor]], limit: float = 1e-10
) -> None:
    assert one[0] == pytest.approx(other[0], abs=limit)
    assert one[1].keys() == other[1].keys()
    assert max(float(gradient.abs().max()) for gradient in one[1].values()) > 1e-4
    for name, gradient in one[1].items():
        assert float((gradient - other[1][name]).abs().max()) <= limit, name


def one_chain(chance: random.Random) -> list[Trajectory]:
    return [trajectory_of_calls(chain(chance, some(chance, 4, 8), 4), "chain", advantage=1.3)]


def one_fork(chance: random.Random) -> list[Trajectory]:
    return [trajectory_of_calls(fork(chance, some(chance, 4, 8), 3), "fork", advantage=-0.7)]


def two_groups(chance: random.Random) -> list[Trajectory]:
    return group(chance, 4, name="a") + group(chance, 3, name="b", make=fork)


def tempered(chance: random.Random) -> list[Trajectory]:
    calls = chain(chance, some(chance, 4, 8), 3)
    return [
        trajectory_of_calls(calls, "cool", group="g", advantage=1.0, heat=0.7),
        trajectory_of_calls(calls, "warm", group="g", advantage=-1.0, heat=1.0),
    ]


def twins(chance: random.Random) -> list[Trajectory]:
    """Two members sampled the same ids with other log-probs and advantages."""
    prompt, output = some(chance, 5, 5), some(chance, 6, 6)
    return [
        trajectory_of_calls([(0, prompt, output)], "left", group="g", advantage=1.5, version=1),
        trajectory_of_calls([(1, prompt, output)], "right", group="g", advantage=-0.5, version=2),
    ]


@pytest.mark.parametrize("make", [one_chain, one_fork, two_groups, tempered, twins])
def test_packed_loss_and_gradient_are_those_of_the_unmerged_computation(
    exact: Learner, make: Callable[[random.Random], list[Trajectory]]
) -> None:
    batch = batch_of(make(random.Random(11)))
    agree(packed(exact, batch), reference(exact, batch))


@pytest.mark.parametrize("number", range(6))
def test_random_trees_are_computed_exactly(exact: Learner, number: int) -> None:
    chance = random.Random(number)
    batch = batch_of([member for name in "ab" for member in group(chance, 3, name=name, make=fork)])
    agree(packed(exact, batch), reference(exact, batch))


def test_loss_and_gradient_do_not_depend_on_rows_micro_batches_or_layout(exact: Learner) -> None:
    batch = batch_of(two_groups(random.Random(5)))
    expected = packed(exact, batch)
    for tokens in (1, 60, 100, 200, 10_000):
        exact.settings = learning.LearnerSettings(tokens_per_batch=tokens)
        agree(packed(exact, batch), expected)
    exact.layout = "linear"
    agree(packed(exact, batch), expected)


def test_the_order_of_records_changes_nothing(exact: Learner) -> None:
    members = two_groups(random.Random(6))
    expected = packed(exact, batch_of(members))
    random.Random(1).shuffle(members)
    agree(packed(exact, batch_of(members)), expected)


@pytest.mark.parametrize("row_tokens", [1, 30, 200, 10_000])
@pytest.mark.parametrize("layout", ["tree", "linear"])
def test_every_trained_token_is_one_pair_behind_its_own_context(row_tokens: int, layout: str) -> None:
    chance = random.Random(row_tokens)
    members = group(chance, 5, name="a", make=fork) + group(chance, 2, name="b")
    found = []
    for row in rows(members, layout, row_tokens=row_tokens):  # type: ignore[arg-type]
        pairs = row.pairs
        for wanted, target, record, log_prob, version in zip(
            pairs.asked, pairs.target, pairs.record, pairs.behaviour, pairs.version, strict=True
        ):
            at = row.asked_at[wanted]
            before = [row.ids[j] for j in range(len(row)) if j <= at < row.ends[j]]
            assert row.positions[at] == len(before) - 1
            found.append((record, tuple(before), target, log_prob, version, row.temperatures[wanted]))
    assert sorted(found) == sorted(expected_pairs(members))


def expected_pairs(members: Sequence[Trajectory]) -> list[tuple[object, ...]]:
    return [
        (
            record,
            tuple(context_of(member, index) + segment.ids[:at].tolist()),
            token,
            segment.log_probs[at],
            segment.versions[0][0],
            segment.temperature,
        )
        for record, member in enumerate(members)
        for index, segment in enumerate(member.segments)
        if segment.trains
        for at, token in enumerate(segment.ids)
    ]


def test_a_common_prefix_is_packed_once() -> None:
    prompt = list(range(100, 150))
    members = [
        trajectory_of_calls([(0, prompt, [seat, seat + 1, seat + 2])], f"r{seat}", group="g") for seat in range(8)
    ]
    (row,) = rows(members)
    assert len(row) == len(prompt) + 8 * 3
    # The first tokens of all members need the same logits.
    assert len(row.asked_at) == 1 + 8 * 2


@pytest.mark.parametrize("layout", ["tree", "linear"])
def test_micro_batches_stay_within_their_tokens_unless_a_row_alone_is_longer(layout: Layout) -> None:
    chance = random.Random(2)
    packed_rows = rows([member for name in "abcdefgh" for member in group(chance, 3, name=name)], row_tokens=60)
    batches = micro_batches(packed_rows, 150, layout)
    assert sorted(map(id, packed_rows)) == sorted(id(row) for batch in batches for row in batch)
    for batch in batches:
        lengths = list(map(len, batch))
        assert len(batch) == 1 or (sum(lengths) if layout == "tree" else len(batch) * max(lengths)) <= 150
    assert len(batches) < len(packed_rows)


def test_a_segment_without_tokens_changes_nothing(exact: Learner) -> None:
    calls = chain(random.Random(3), [1, 2, 3], 2)
    plain = trajectory_of_calls(calls, "r")
    empty = Segment(parent=len(plain.segments) - 1, ids=[], trains=True)
    padded = Trajectory(record="r", segments=[*plain.segments, empty], advantage=1.0)
    agree(packed(exact, batch_of([padded])), packed(exact, batch_of([plain])))
