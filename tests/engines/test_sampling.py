"""Tokens are sampled by their probabilities, with repeatable randomness."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engines.embedded.token_sampling import Draw, chance, sample
from agentrl.policies.sampling_rule import NEUTRAL, SamplingRule

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0])


def frequencies(draws: int = 20_000, *, output: tuple[int, ...] = (), **how: float) -> list[float]:
    rows = LOGITS.expand(draws, -1)
    rule = SamplingRule.of(how)
    tokens, _ = sample(rows, [Draw(rule, chance(9, place), output) for place in range(draws)])
    counts = torch.bincount(torch.tensor(tokens), minlength=len(LOGITS))
    return [float(count) / draws for count in counts]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_probabilities(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, dim=-1).tolist()
    for seen, wanted in zip(frequencies(temperature=temperature), expected, strict=True):
        assert abs(seen - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / 20_000) + 1e-4


def test_top_p_keeps_the_likeliest_and_their_proportions() -> None:
    seen = frequencies(top_p=0.8)
    first, second = torch.softmax(LOGITS[:2], dim=-1).tolist()
    assert seen[2:] == [0.0, 0.0, 0.0]
    assert abs(seen[0] - first) < 0.02
    assert abs(seen[1] - second) < 0.02
    assert frequencies(100, top_p=1e-9)[0] == 1.0


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"top_k": 3}, 3),
        ({"top_k": 1}, 1),
        ({"top_k": 100}, 5),
        ({"top_k": 0}, 5),
        # The second token has 0.37 of the probability of the likeliest one, the third 0.14.
        ({"min_p": 0.3}, 2),
        ({"min_p": 1.0}, 1),
        # Each limit cuts the whole distribution, in which the likeliest token has 0.64.
        ({"top_k": 2, "top_p": 0.6}, 1),
        ({"top_k": 4, "min_p": 0.1}, 3),
        ({"temperature": 2.0, "min_p": 0.3}, 3),
    ],
)
def test_limits_keep_the_likeliest_and_their_proportions(how: dict[str, float], kept: int) -> None:
    seen = frequencies(**how)
    rest = torch.softmax(LOGITS[:kept] / how.get("temperature", 1.0), dim=-1).tolist()
    assert seen[kept:] == [0.0] * (5 - kept)
    for found, wanted in zip(seen, rest, strict=False):
        assert abs(found - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / 20_000) + 1e-4


def test_penalties_change_the_logits_of_the_output_alone() -> None:
    counting = SamplingRule(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25)
    scaling = SamplingRule(temperature=0.0, repetition_penalty=2.5)
    rows = LOGITS.expand(3, -1)
    tokens, found = sample(rows, [Draw(counting, 0.0), Draw(counting, 0.0, (0, 3, 0)), Draw(scaling, 0.0, (0, 0, 3))])
    assert tokens == [0, 1, 1]
    counted = torch.tensor([2.0 - 1.25, 1.0, 0.0, -1.0 - 0.75, -8.0])
    scaled = torch.tensor([2.0 / 2.5, 1.0, 0.0, -1.0 * 2.5, -8.0])
    for row, changed in enumerate((LOGITS, counted, scaled)):
        assert abs(found[row] - float(changed.log_softmax(-1)[tokens[row]])) < 1e-6
    assert LOGITS.tolist() == [2.0, 1.0, 0.0, -1.0, -8.0], "the logits of the caller are unchanged"


def test_neutral_values_leave_the_distribution_and_are_not_stored() -> None:
    for name in set(NEUTRAL) & set(SamplingRule.__struct_fields__):
        for value in NEUTRAL[name][1:]:
            assert frequencies(500, output=(0, 1), **{name: value}) == frequencies(500)  # type: ignore[arg-type]
            assert SamplingRule.of({name: value}).kept() == {"temperature": 1.0, "top_p": 1.0}
    assert set(SamplingRule.__struct_fields__) <= {"temperature", *NEUTRAL}, "the trainer refuses every other value"
    rule = SamplingRule(temperature=0.7, min_p=0.1, repetition_penalty=1.1)
    assert SamplingRule.of(rule.kept()) == rule
    assert "different orders" in SamplingRule(repetition_penalty=1.1, presence_penalty=0.1).problem()


def test_log_probs_are_tempered_over_the_whole_vocabulary_whatever_was_cut() -> None:
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.5), (2.0, 0.9)):
        tokens, found = sample(LOGITS[None], [Draw(SamplingRule(temperature=temperature, top_p=top_p), 0.3)])
        assert abs(found[0] - float(torch.log_softmax(LOGITS / temperature, -1)[tokens[0]])) < 1e-6


def test_greedy_and_sampled_rows_mix() -> None:
    rows = LOGITS.expand(3, -1)
    greedy = SamplingRule(temperature=0.0)
    narrow = SamplingRule(temperature=0.0, top_p=0.5)
    tokens, found = sample(rows, [Draw(greedy, 0.999), Draw(SamplingRule(), 0.97), Draw(narrow, 0.999)])
    assert tokens[0] == tokens[2] == 0
    assert tokens[1] != 0
    assert abs(found[0] - float(torch.log_softmax(LOGITS, -1)[0])) < 1e-6


@settings(deadline=None, max_examples=80)
@given(
    logits=st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=30),
    top_p=st.floats(1e-6, 1.0),
    top_k=st.integers(-1, 40),
    min_p=st.floats(0.0, 1.0),
    penalties=st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.01, 2)),
    temperature=st.floats(0.05, 10.0),
    seed=st.integers(0, 2**63 - 1),
)
def test_sampled_tokens_are_possible(
    logits: list[float],
    top_p: float,
    top_k: int,
    min_p: float,
    penalties: tuple[float, float, float],
    temperature: float,
    seed: int,
) -> None:
    frequency, presence, repetition = penalties
    rule = SamplingRule(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency,
        presence_penalty=presence,
        repetition_penalty=repetition,
    )
    rows = torch.tensor([logits])
    (token,), (log_prob,) = sample(rows, [Draw(rule, chance(seed, 0), (0, 0))])
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
