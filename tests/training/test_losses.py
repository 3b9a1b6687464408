"""Losses against finite differences and by their formulas; masked pairs have no gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.policies.freshness import Decay
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training import losses
from agentrl.training.losses import Denominator, PairFacts, pair_weights, policy_terms, supervised_terms

CASES = {
    "bypass": PolicyLoss(),
    "dual clip": PolicyLoss(dual_clip=3.0),
    "decoupled": PolicyLoss(ratio="decoupled"),
    "decoupled and weighted": PolicyLoss(ratio="decoupled", weight_cap=2.0),
    "held to a reference": PolicyLoss(reference_weight=0.7),
    "held by k3": PolicyLoss(reference_weight=0.7, reference_in="loss-k3"),
    "narrow": PolicyLoss(clip_low=0.05, clip_high=0.1),
    "ce-grpo without shares": PolicyLoss(kind="ce-grpo"),
}
STOPPED = {
    "gspo": PolicyLoss(kind="gspo", clip_low=0.1, clip_high=0.2, aggregation="record-mean"),
    "cispo": PolicyLoss(kind="cispo", ratio_cap=1.5),
    "minirl": PolicyLoss(kind="minirl", ratio="decoupled", ratio_cap=1.5),
    "ce-grpo": PolicyLoss(kind="ce-grpo", kept_below=0.3, kept_above=0.6),
}
"""Forms with factors that have no gradient. Finite differences are taken with these factors held constant."""


def facts_of(count: int, *, generator: int = 0, bounds: tuple[float, float] | None = None) -> PairFacts:
    chance = torch.Generator().manual_seed(generator)
    behaviour = -torch.rand(count, generator=chance, dtype=torch.float64) * 4
    proximal = behaviour + torch.randn(count, generator=chance, dtype=torch.float64) * 0.3
    advantage = torch.randn(count, generator=chance, dtype=torch.float64)
    weight = torch.full((count,), 1.0 / count, dtype=torch.float64)
    limits = None if bounds is None else tuple(torch.full((count,), one, dtype=torch.float64) for one in bounds)
    reference = behaviour + torch.randn(count, generator=chance, dtype=torch.float64) * 0.5
    return PairFacts(behaviour, advantage, weight, proximal, limits, reference)  # type: ignore[arg-type]


def near(facts: PairFacts) -> torch.Tensor:
    chance = torch.Generator().manual_seed(1)
    return facts.behaviour + torch.randn(len(facts.behaviour), generator=chance, dtype=torch.float64) * 0.6


def finite_difference(value: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    step, found = 1e-6, torch.zeros_like(at)
    for index in range(len(at)):
        up, down = at.clone(), at.clone()
        up[index] += step
        down[index] -= step
        found[index] = (value(up) - value(down)) / (2 * step)
    return found


def gradient(value: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    leaf = at.clone().requires_grad_()
    value(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    facts = facts_of(60)

    def value(log_probs: torch.Tensor) -> torch.Tensor:
        return losses.total(policy_terms(log_probs, facts, CASES[name]), facts.weight)

    at = near(facts)
    expected = finite_difference(value, at)
    assert torch.allclose(gradient(value, at), expected, atol=1e-7)
    assert int((expected != 0).sum()) > 10, "most of it is clipped: nothing was compared"


def held_forms(at: torch.Tensor, facts: PairFacts) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The forms as formulas of their own, with every stopped factor computed at `at`."""
    assert facts.proximal is not None
    assert facts.sequence is not None
    a, mu, old = facts.advantage, facts.behaviour, facts.proximal
    r, s = (at - mu).exp(), facts.sequence.exp()
    stopped = (((at - old).exp() > 1.28) & (a > 0)) | (((at - old).exp() < 0.8) & (a < 0))
    over, under = (r > 1.28) & (a > 0), (r < 0.8) & (a < 0)

    def gspo(x: torch.Tensor) -> torch.Tensor:
        of_token = s * (x - at).exp()
        return -torch.minimum(of_token * a, of_token.clamp(0.9, 1.2) * a)

    def ce_grpo(x: torch.Tensor) -> torch.Tensor:
        ratio = (x - mu).exp()
        beyond = torch.where(over, 0.6 * 1.28, 0.3 * 0.8).double() * ratio / r
        return -torch.where(over | under, beyond, ratio) * a

    return {
        "gspo": gspo,
        "cispo": lambda x: -r.clamp(max=1.5) * a * x,
        "minirl": lambda x: -(~stopped).double() * r.clamp(max=1.5) * a * x,
        "ce-grpo": ce_grpo,
    }


@pytest.mark.parametrize("name", STOPPED)
def test_forms_with_stopped_factors_have_the_gradients_of_their_formulas(name: str) -> None:
    facts = facts_of(80)
    facts = replace(facts, sequence=(facts.behaviour * 0.1).roll(1))
    at = near(facts)
    formula = held_forms(at, facts)[name]
    expected = finite_difference(lambda x: (formula(x) * facts.weight).sum(), at)
    terms = policy_terms(at, facts, STOPPED[name])
    assert torch.allclose(terms.loss, formula(at), atol=1e-12)
    found = gradient(lambda x: losses.total(policy_terms(x, facts, STOPPED[name]), facts.weight), at)
    assert torch.allclose(found, expected, atol=1e-7)
    assert int((expected != 0).sum()) > 10
    touched = terms.touched["cap" if name == "cispo" else "clip"]
    assert 5 < int(touched.sum()) < 75, "both sides of the clip were compared"


def test_ce_grpo_without_shares_has_the_gradient_of_grpo() -> None:
    facts = facts_of(200)
    of_grpo, of_ce = (
        gradient(
            lambda x, kind=kind: losses.total(policy_terms(x, facts, PolicyLoss(kind=kind)), facts.weight), near(facts)
        )
        for kind in ("grpo", "ce-grpo")
    )
    assert torch.allclose(of_grpo, of_ce, atol=1e-12)
    assert 20 < int((of_grpo == 0).sum()) < 180


def test_the_token_form_of_gspo_has_the_gradient_of_the_sequence_form() -> None:
    """One record of constant advantage, and the mean over it."""
    loss = replace(STOPPED["gspo"], clip_low=0.9, clip_high=9.0)
    behaviour = -torch.rand(9, dtype=torch.float64)
    at = behaviour + 0.1 * torch.randn(9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sequence = (at - behaviour).mean().expand(9)
    facts = PairFacts(behaviour, torch.full_like(at, -0.7), torch.full_like(at, 1 / 9), sequence=sequence)
    whole = finite_difference(lambda x: 0.7 * (x - behaviour).mean().exp(), at)
    assert torch.allclose(
        gradient(lambda x: losses.total(policy_terms(x, facts, loss), facts.weight), at), whole, atol=1e-8
    )


@pytest.mark.parametrize("name", [*CASES, *STOPPED])
def test_weights_and_masks_of_rho_act_on_every_form(name: str) -> None:
    loss = (CASES | STOPPED)[name]
    facts = replace(facts_of(60), sequence=torch.zeros(60, dtype=torch.float64))
    at = near(facts)
    mask = torch.arange(60) % 3 == 0
    found = policy_terms(at, replace(facts, correction=torch.full_like(at, 0.5), masks={"token_mask": mask}), loss)
    plain = replace(loss, reference_weight=0.0, reference_in="loss")
    expected = torch.where(mask, 0.0, 0.5 * policy_terms(at, facts, plain).loss)
    kept = policy_terms(at, facts, loss).loss - policy_terms(at, facts, plain).loss
    assert torch.allclose(found.loss, expected + kept), "the distance to the reference stays"
    assert torch.equal(found.masked, mask)
    assert torch.equal(found.touched["token_mask"], mask)


@pytest.mark.parametrize("name", [*CASES, *STOPPED])
@pytest.mark.parametrize("far", [500.0, -500.0])
def test_extreme_ratios_and_advantages_of_zero_stay_finite(name: str, far: float) -> None:
    loss = (CASES | STOPPED)[name]
    facts = facts_of(12)
    advantage = facts.advantage.clone()
    advantage[::2] = 0.0
    facts = replace(facts, advantage=advantage, sequence=torch.full_like(advantage, far))
    leaf = (facts.behaviour + far).requires_grad_()
    terms = policy_terms(leaf, facts, replace(loss, reference_weight=0.0, reference_in="loss"))
    losses.total(terms, facts.weight).backward()
    assert leaf.grad is not None
    assert torch.isfinite(terms.loss).all()
    assert torch.isfinite(leaf.grad).all()
    assert torch.equal(leaf.grad[::2], torch.zeros(6, dtype=torch.float64)), "no advantage, no gradient"


def test_decay_takes_the_place_of_the_clip_in_other_forms() -> None:
    ratios = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)
    bounds = torch.full_like(ratios, 0.2), torch.full_like(ratios, 2.2)
    zero = torch.zeros_like(ratios)
    facts = PairFacts(zero, torch.ones_like(ratios), torch.ones_like(ratios), proximal=zero, bounds=bounds)
    for name in ("minirl", "ce-grpo"):
        by_clip = policy_terms(ratios.log(), replace(facts, bounds=None), STOPPED[name])
        by_decay = policy_terms(ratios.log(), facts, STOPPED[name])
        assert by_clip.touched["clip"].tolist() == [False, True, True]
        assert by_decay.touched["clip"].tolist() == [False, False, False]
        assert by_decay.touched["decay"].tolist() == [False, False, True]


def test_the_supervised_loss_is_cross_entropy() -> None:
    at = -torch.rand(20, dtype=torch.float64)
    weight = torch.full((20,), 1 / 20, dtype=torch.float64)
    assert torch.allclose(losses.total(supervised_terms(at), weight), -at.mean())
    assert torch.allclose(gradient(lambda x: losses.total(supervised_terms(x), weight), at), -weight)


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [
        (1.0, 1.0, True),
        (1.0, 1.27, True),
        (1.0, 1.29, False),
        (1.0, 0.5, True),
        (-1.0, 1.0, True),
        (-1.0, 0.81, True),
        (-1.0, 0.79, False),
        (-1.0, 2.0, True),
    ],
)
def test_the_clip_cuts_only_what_would_go_further_away(advantage: float, ratio: float, moves: bool) -> None:
    one = torch.zeros(1, dtype=torch.float64)
    facts = PairFacts(one, one + advantage, one + 1)

    def value(log_probs: torch.Tensor) -> torch.Tensor:
        return losses.total(policy_terms(log_probs, facts, PolicyLoss()), facts.weight)

    at = one + math.log(ratio)
    assert bool(gradient(value, at) != 0) is moves
    assert bool(policy_terms(at, facts, PolicyLoss()).clipped) is not moves


def test_the_dual_clip_limits_what_a_bad_sample_may_cost() -> None:
    one = torch.zeros(1, dtype=torch.float64)
    facts = PairFacts(one, one - 1, one + 1)
    far = one + math.log(10)
    assert float(policy_terms(far, facts, PolicyLoss()).loss) == pytest.approx(10)
    assert float(policy_terms(far, facts, PolicyLoss(dual_clip=3.0)).loss) == pytest.approx(3)
    assert bool(policy_terms(far, facts, PolicyLoss(dual_clip=3.0)).clipped)


def test_at_the_policy_that_sampled_every_form_has_the_same_gradient() -> None:
    facts = facts_of(30)
    on_policy = replace(facts, proximal=facts.behaviour, reference=facts.behaviour)
    found = [
        gradient(lambda x, loss=loss: losses.total(policy_terms(x, on_policy, loss), on_policy.weight), facts.behaviour)
        for loss in CASES.values()
    ]
    for other in found:
        assert torch.allclose(other, -facts.advantage * facts.weight)


def test_decayed_bounds_mask_pairs_beyond_them() -> None:
    facts = facts_of(200, bounds=(0.9, 1.1))
    at = near(facts)
    terms = policy_terms(at, facts, PolicyLoss())
    ratio = (at - facts.behaviour).exp()
    too_far = ((ratio > 1.1) & (facts.advantage > 0)) | ((ratio < 0.9) & (facts.advantage < 0))
    assert torch.equal(terms.masked, too_far)
    moved = gradient(lambda x: losses.total(policy_terms(x, facts, PolicyLoss()), facts.weight), at)
    assert torch.equal(moved[too_far], torch.zeros_like(moved[too_far]))
    assert 20 < int(too_far.sum()) < 180


def test_decayed_bounds_take_the_place_of_the_clip() -> None:
    """On a grid of ratios and ages, bounds change what the clip alone would do."""
    decay = Decay(out_of_date_decay=0.5)
    ratios = torch.linspace(0.05, 2.5, 50, dtype=torch.float64)
    wider = tighter = 0
    for age, sign in product(range(8), (1.0, -1.0)):
        lower, upper = (torch.full_like(ratios, bound) for bound in decay.bounds(-age, 0))
        clipped = PairFacts(torch.zeros_like(ratios), torch.full_like(ratios, sign), torch.ones_like(ratios))
        facts = replace(clipped, bounds=(lower, upper))
        by_clip = gradient(lambda x, of=clipped: policy_terms(x, of, PolicyLoss()).loss.sum(), ratios.log())
        by_decay = gradient(lambda x, of=facts: policy_terms(x, of, PolicyLoss()).loss.sum(), ratios.log())
        outside = (ratios > upper) if sign > 0 else (ratios < lower)
        expected = torch.where(outside, 0.0, -sign * ratios)
        assert torch.allclose(by_decay, expected)
        wider += int(((by_clip == 0) & (by_decay != 0)).sum())
        tighter += int(((by_clip != 0) & (by_decay == 0)).sum())
    assert wider > 50, "fresh tokens may move further than the clip allows"
    assert tighter == 0, "with these settings the oldest bounds, 0.8 to 1.3, are those of the clip"
    strict = Decay(out_of_date_decay=0.5, epsilon=0.1, extra=0.0, strict=True).bounds(0, 0)
    facts = PairFacts(torch.zeros(1), torch.ones(1), torch.ones(1), bounds=tuple(torch.full((1,), b) for b in strict))
    assert policy_terms(torch.full((1,), 1.2).log(), facts, PolicyLoss()).masked.all(), "tighter than the clip"


def test_pairs_that_do_not_decay_keep_their_clip_and_masked_ones_their_reference() -> None:
    at = torch.full((2,), 2.0, dtype=torch.float64).log()
    bounds = torch.tensor([0.0, 0.2]), torch.tensor([math.inf, 2.2])
    facts = PairFacts(torch.zeros_like(at), torch.ones_like(at), torch.ones_like(at), bounds=bounds)
    moved = gradient(lambda x: policy_terms(x, facts, PolicyLoss()).loss.sum(), at)
    assert moved.tolist() == pytest.approx([0.0, -2.0])
    beyond = replace(facts, bounds=(torch.tensor([0.9, 0.9]), torch.tensor([1.1, 1.1])))
    with_reference = replace(beyond, reference=torch.zeros_like(at))
    moved = gradient(lambda x: policy_terms(x, with_reference, PolicyLoss(reference_weight=0.5)).loss.sum(), at)
    assert moved.tolist() == pytest.approx([0.5 * math.log(2)] * 2)


def test_pairs_without_weight_have_exactly_zero_gradient() -> None:
    facts = facts_of(10)
    weight = facts.weight.clone()
    weight[::2] = 0.0
    moved = gradient(lambda x: losses.total(policy_terms(x, facts, PolicyLoss()), weight), near(facts))
    assert torch.equal(moved[::2], torch.zeros(5, dtype=torch.float64))
    assert bool((moved[1::2] != 0).any())


def test_a_large_log_ratio_is_clamped() -> None:
    one = torch.zeros(1, dtype=torch.float64)
    facts = PairFacts(one - 500, one - 1, one + 1)
    assert float(policy_terms(one, facts, PolicyLoss()).loss) == pytest.approx(math.exp(20))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_denominator_is_one_number(lengths: list[int]) -> None:
    pairs_of = torch.tensor(lengths, dtype=torch.float64)
    records = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    whole = Denominator(len(records), len(lengths))
    token = pair_weights(records, pairs_of, whole, "token-mean")
    assert float(token.sum()) == pytest.approx(1)
    assert len(token.unique()) == 1
    mean = pair_weights(records, pairs_of, whole, "record-mean")
    for record in range(len(lengths)):
        assert float(mean[records == record].sum()) == pytest.approx(1 / len(lengths))
    summed = pair_weights(records, pairs_of, whole, "record-sum")
    assert float(summed.sum()) == pytest.approx(len(records) / len(lengths))
    fixed = pair_weights(records, pairs_of, whole, "dr-grpo", longest=9)
    assert fixed.unique().tolist() == [1 / (9 * len(lengths))], "every token weighs the same, also in a long record"


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "cispo", "ratio_cap": 5.0, "dual_clip": 3.0}, "dual_clip belongs to the losses grpo and ppo"),
    ({"kept_above": 0.5}, "belong to the loss ce-grpo"),
    ({"ratio_cap": 5.0}, "belongs to the losses cispo and minirl"),
    ({"kind": "cispo"}, "needs a ratio_cap"),
    ({"kind": "gspo"}, "must be record-mean"),
    ({"kind": "gspo", "aggregation": "record-mean", "decay": Decay(out_of_date_decay=0.5)}, "one ratio for a record"),
    ({"kind": "minirl", "ratio_cap": 5.0}, "must be decoupled"),
    ({"kind": "minirl", "ratio_cap": 5.0, "ratio": "decoupled", "weight_cap": 2.0}, "twice"),
    ({"weight_by": "sequence"}, "weight_cap makes none"),
    ({"reference_in": "reward"}, "reference_weight is 0"),
]


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        PolicyLoss(weight_cap=2.0)
    with pytest.raises(ConfigError, match="dual_clip"):
        PolicyLoss(dual_clip=1.1)
    for keys, why in CONTRADICTIONS:
        with pytest.raises(ConfigError, match=why):
            PolicyLoss(**keys)
    with pytest.raises(ConfigError, match="longest record"):
        PolicyLoss(aggregation="dr-grpo")
    with pytest.raises(ConfigError, match="mean over tokens"):
        PolicyLoss(aggregation="record-mean", denominator="kept")
    with pytest.raises(ConfigError, match="reach 0"):
        PolicyLoss(decay=Decay(out_of_date_decay=0.5, epsilon=0.3))
    with pytest.raises(ValueError, match="begins with"):
        policy_terms(torch.zeros(1), PairFacts(torch.zeros(1), torch.zeros(1), torch.ones(1)), CASES["decoupled"])
