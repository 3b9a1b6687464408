"""Weights and masks of ρ, and the distance to a reference within the score."""

from __future__ import annotations

import math
import random

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.policies.loss_settings import Masks, PolicyLoss
from agentrl.training import corrections
from agentrl.training.corrections import Columns, Records

LOG_RHO = [0.1, -0.3, 1.5, 0.0, -2.0, 0.4, 0.2]
RECORDS = [0, 0, 0, 1, 1, 2, 2]


def columns(loss: PolicyLoss, *, cut: int = 7, order: list[int] | None = None) -> Columns:
    """The columns of one or two micro-batches. For pairs in any order, the result is in the original order."""
    places = order or list(range(len(LOG_RHO)))
    log_rho = torch.tensor([LOG_RHO[place] for place in places], dtype=torch.float64)
    of_pairs = torch.tensor([RECORDS[place] for place in places])
    pairs_of = torch.bincount(torch.tensor(RECORDS)).double()
    parts = [part for part in (slice(0, cut), slice(cut, None)) if len(log_rho[part])]
    records = Records([of_pairs[part] for part in parts], pairs_of)
    found = corrections.columns_of([log_rho[part] for part in parts], records, loss, lambda sums: sums)
    back = torch.argsort(torch.tensor(places))
    return {name: [torch.cat(column)[back]] for name, column in found.items()}


def decoupled(**settings: object) -> PolicyLoss:
    return PolicyLoss(ratio="decoupled", **settings)  # type: ignore[arg-type]


def test_a_weight_of_a_token_is_its_quotient_up_to_the_cap() -> None:
    found = columns(decoupled(weight_cap=2.0))
    assert found["weight"][0].tolist() == pytest.approx([min(math.exp(one), 2.0) for one in LOG_RHO])
    assert found["at_cap"][0].tolist() == [False, False, True, False, False, False, False]


def test_a_weight_of_a_sequence_is_the_product_over_its_record() -> None:
    found = columns(decoupled(weight_cap=2.0, weight_by="sequence"))
    products = [min(math.exp(sum_), 2.0) for sum_ in (1.3, -2.0, 0.6)]
    assert found["weight"][0].tolist() == pytest.approx([products[record] for record in RECORDS])


def test_normalised_weights_have_the_mean_one() -> None:
    usual, normalised = (
        columns(decoupled(weight_cap=2.0, weight_normalised=each))["weight"][0] for each in (False, True)
    )
    assert float(normalised.mean()) == pytest.approx(1)
    assert torch.allclose(normalised * usual.mean(), usual)


@pytest.mark.parametrize(
    ("masks", "name", "masked"),
    [
        (Masks(token=(0.5, 2.0)), "token_mask", [False, False, True, False, True, False, False]),
        (Masks(sequence=(0.1, 2.0)), "sequence_mask", [True, True, True, False, False, False, False]),
        (Masks(geometric=(0.5, 2.0)), "geometric_mask", [False, False, False, True, True, False, False]),
        (Masks(k2=0.5), "k2_limit", [False, False, False, True, True, False, False]),
        (Masks(k3=0.6), "k3_limit", [True, True, True, False, False, False, False]),
    ],
)
def test_masks_take_tokens_or_whole_records_out(masks: Masks, name: str, masked: list[bool]) -> None:
    found = columns(PolicyLoss(masks=masks))
    assert {key: column[0].tolist() for key, column in found.items()} == {f"{corrections.MASK}{name}": masked}


ALL = decoupled(
    weight_cap=1.5,
    weight_by="sequence",
    weight_normalised=True,
    masks=Masks(token=(0.5, 2.0), sequence=(0.1, 2.0), geometric=(0.5, 2.0), k2=0.5, k3=0.6),
)


@pytest.mark.parametrize("number", range(4))
def test_neither_order_nor_the_cut_of_micro_batches_matters(number: int) -> None:
    expected = columns(ALL)
    order = random.Random(number).sample(range(7), 7)
    found = columns(ALL, cut=number + 1, order=order)
    assert found.keys() == expected.keys()
    for name, column in found.items():
        assert torch.allclose(column[0].double(), expected[name][0].double(), atol=1e-12), name


def test_extreme_quotients_stay_finite() -> None:
    pairs = torch.full((3,), 700.0, dtype=torch.float64)
    records = Records([torch.zeros(3, dtype=torch.int64)], torch.tensor([3.0], dtype=torch.float64))
    for sign in (1, -1):
        found = corrections.columns_of([sign * pairs], records, ALL, lambda sums: sums)
        assert torch.isfinite(found["weight"][0]).all()
        assert found[f"{corrections.MASK}sequence_mask"][0].all()


def test_a_distance_within_the_score_moves_advantages_by_the_mean_of_the_group() -> None:
    distance = [torch.tensor([0.1, 0.2, 0.6, 1.0], dtype=torch.float64)]
    # Records 0 and 1 are a group; record 2 has no pairs; record 3 is a group of its own.
    records = Records([torch.tensor([0, 0, 1, 3])], torch.tensor([2.0, 1.0, 0.0, 1.0], dtype=torch.float64))
    (shift,) = corrections.reward_shift(distance, records, torch.tensor([0, 0, 0, 1]), 2.0)
    assert shift.tolist() == pytest.approx([0.3, 0.3, -0.3, 0.0])


def test_masks_that_would_mask_the_same_policy_are_refused() -> None:
    for interval in ((1.1, 2.0), (0.5, 0.9), (-1.0, 2.0)):
        with pytest.raises(ConfigError, match="must contain 1"):
            Masks(token=interval)
    with pytest.raises(ConfigError, match="above 0"):
        Masks(k2=-1.0)
