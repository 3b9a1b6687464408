"""Sampling seeds: repeatable, and different wherever two calls differ."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrl.policies.sampling_seeds import SEED_BITS, sampling_seed

small = st.integers(0, 20)
places = st.fixed_dictionaries(
    {"task": st.text(max_size=8), **dict.fromkeys(("round", "seat", "attempt", "call", "kept"), small)}
)


@given(st.integers(-5, 5), places, st.integers(-5, 5), places)
def test_different_places_have_different_seeds(
    run: int, left: dict[str, Any], other: int, right: dict[str, Any]
) -> None:
    same = (run, left) == (other, right)
    assert (sampling_seed(run, **left) == sampling_seed(other, **right)) is same
    assert 0 <= sampling_seed(run, **left) < 2**SEED_BITS


def test_a_seed_never_changes_between_releases() -> None:
    seed = sampling_seed(1, task="shop/train/0/000017", round=1, seat=3, attempt=1, call=0)
    assert seed == 3707422205209593


def test_no_two_calls_of_a_large_run_share_a_seed() -> None:
    seeds = {
        sampling_seed(7, task=f"shop/train/0/{row:06d}", round=1, seat=seat, attempt=1, call=call)
        for row in range(100)
        for seat in range(16)
        for call in range(8)
    }
    assert len(seeds) == 100 * 16 * 8
