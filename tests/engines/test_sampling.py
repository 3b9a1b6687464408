"""Tokens are sampled by their probabilities, with repeatable randomness."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engines.embedded.token_sampling import Draw, chance, sample

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0])


def frequencies(temperature: float, top_p: float, draws: int = 20_000) -> list[float]:
    rows = LOGITS.expand(draws, -1)
    tokens, _ = sample(rows, [Draw(temperature, top_p, chance(9, place)) for place in range(draws)])
    counts = torch.bincount(torch.tensor(tokens), minlength=len(LOGITS))
    return [float(count) / draws for count in counts]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_probabilities(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, dim=-1).tolist()
    for seen, wanted in zip(frequencies(temperature, 1.0), expected, strict=True):
        assert abs(seen - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / 20_000) + 1e-4


def test_top_p_keeps_the_likeliest_and_their_proportions() -> None:
    seen = frequencies(1.0, 0.8)
    first, second = torch.softmax(LOGITS[:2], dim=-1).tolist()
    assert seen[2:] == [0.0, 0.0, 0.0]
    assert abs(seen[0] - first) < 0.02
    assert abs(seen[1] - second) < 0.02
    assert frequencies(1.0, 1e-9, 100)[0] == 1.0


def test_log_probs_are_tempered_over_the_whole_vocabulary_whatever_was_cut() -> None:
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.5), (2.0, 0.9)):
        tokens, found = sample(LOGITS[None], [Draw(temperature, top_p, 0.3)])
        assert abs(found[0] - float(torch.log_softmax(LOGITS / temperature, -1)[tokens[0]])) < 1e-6


def test_greedy_and_sampled_rows_mix() -> None:
    rows = LOGITS.expand(3, -1)
    tokens, found = sample(rows, [Draw(0.0, 1.0, 0.999), Draw(1.0, 1.0, 0.97), Draw(0.0, 0.5, 0.999)])
    assert tokens[0] == tokens[2] == 0
    assert tokens[1] != 0
    assert abs(found[0] - float(torch.log_softmax(LOGITS, -1)[0])) < 1e-6


@settings(deadline=None, max_examples=80)
@given(
    logits=st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=30),
    top_p=st.floats(1e-6, 1.0),
    temperature=st.floats(0.05, 10.0),
    seed=st.integers(0, 2**63 - 1),
)
def test_sampled_tokens_are_possible(logits: list[float], top_p: float, temperature: float, seed: int) -> None:
    rows = torch.tensor([logits])
    (token,), (log_prob,) = sample(rows, [Draw(temperature, top_p, chance(seed, 0))])
    assert 0 <= token < len(logits)
    assert math.isfinite(log_prob)
    assert log_prob <= 0.0


@given(seed=st.integers(0, 2**63 - 1), place=st.integers(0, 100_000))
def test_chance_is_below_one_and_can_be_repeated(seed: int, place: int) -> None:
    assert 0.0 <= chance(seed, place) < 1.0
    assert chance(seed, place) == chance(seed, place)


def test_chance_of_neighbouring_places_and_seeds_is_unrelated() -> None:
    for numbers in ([chance(5, place) for place in range(4000)], [chance(seed, 0) for seed in range(4000)]):
        mean = sum(numbers) / len(numbers)
        pairs = sum((a - 0.5) * (b - 0.5) for a, b in itertools.pairwise(numbers)) / len(numbers)
        assert abs(mean - 0.5) < 0.02
        assert abs(pairs) < 0.006
