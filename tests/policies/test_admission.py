"""How much is sampled ahead: enough for a step, never more than the bound allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.policies.admission_capacity import (
    TRIED,
    TRIED_EVERY_S,
    Counts,
    Plan,
    batch_records,
    capacity,
    granted,
    groups_on_trial,
    largest_group,
    refuse_impossible,
)


def test_the_formula() -> None:
    plan = Plan(bound=2, batch=64, max_concurrent=100)
    assert capacity(plan, Counts()) == 100
    assert capacity(plan, Counts(open=10, running=20, finished=5, unscored=5)) == 60
    assert capacity(plan, Counts(running=10, ready=100, leased=64)) == 18
    assert capacity(Plan(2, 64, 1000, publish_every=2), Counts(leased=64)) == 320
    assert capacity(Plan(0, 8, 8), Counts(running=8, ready=8)) == -8, (
        "a lowered bound may leave too many records under way"
    )


def test_whole_groups_in_their_order() -> None:
    assert granted([(20, 8), (20, 8), (20, 8)]) == 2
    assert granted([(20, 8), (20, 16), (20, 4)]) == 1, "a small group does not overtake a large one"
    assert granted([(-3, 1)]) == 0
    assert granted([]) == 0


def test_a_stricter_bound_holds_for_its_own_groups_and_is_not_overtaken() -> None:
    assert granted([(24, 8), (8, 8), (24, 8)]) == 1, "one group is enough for the strict one to wait"
    assert granted([(8, 8), (24, 8), (24, 8)]) == 3


@given(st.integers(-20, 200), st.lists(st.integers(1, 16)))
def test_no_more_is_granted_than_there_is(room: int, sizes: list[int]) -> None:
    number = granted((room, size) for size in sizes)
    assert sum(sizes[:number]) <= max(room, 0)
    assert number == len(sizes) or sum(sizes[: number + 1]) > room


@given(
    st.integers(0, 3),
    st.integers(1, 4),
    st.lists(st.integers(1, 8), min_size=1, max_size=12),
    st.integers(1, 3),
    st.data(),
)
def test_a_batch_that_lacks_a_group_leaves_room_for_any(
    bound: int, groups: int, sizes: list[int], every: int, data: st.DataObject
) -> None:
    """If nothing is under way and fewer groups are ready than a step needs, the next group is admitted, whatever its
    size."""
    plan = Plan(bound, batch_records(groups, sizes), max_concurrent=max(sizes), publish_every=every)
    refuse_impossible(plan, sizes)
    number = data.draw(st.integers(0, groups - 1))
    ready = sum(data.draw(st.sampled_from(sizes)) for _ in range(number))
    assert granted([(capacity(plan, Counts(ready=ready)), max(sizes))]) == 1


@given(st.integers(0, 3), st.integers(1, 4), st.integers(2, 8), st.integers(1, 3), st.integers(8, 500))
def test_a_batch_that_lacks_a_group_leaves_room_for_the_largest_branch(
    bound: int, groups: int, n: int, every: int, most: int
) -> None:
    plan = Plan(bound, batch_records(groups, [n]), max_concurrent=most, publish_every=every)
    largest = largest_group(plan, n)
    assert largest >= n
    ready = Counts(ready=(groups - 1) * largest)
    assert granted([(capacity(plan, ready), largest)]) == 1


@given(st.integers(1, 100))
def test_a_hold_admits_a_few_once_those_before_have_ended(size: int) -> None:
    number = groups_on_trial(size, Counts(ready=100, leased=7), TRIED_EVERY_S)
    assert TRIED <= number * size < TRIED + size, "enough attempts to show whether they still fail"
    assert groups_on_trial(size, Counts(), TRIED_EVERY_S - 1) == 0
    for under_way in (Counts(open=1), Counts(running=1), Counts(finished=1), Counts(unscored=1)):
        assert groups_on_trial(size, under_way, 10 * TRIED_EVERY_S) == 0


def test_a_configuration_that_could_never_admit_is_refused() -> None:
    refuse_impossible(Plan(0, 8, 8), [8, 4])
    with pytest.raises(ConfigError, match="only 7 records may be under way") as refused:
        refuse_impossible(Plan(0, 8, 7), [8])
    assert refused.value.hint == "Raise max_in_flight to 8 or more, or lower n.", "the hint names the knobs to change"
    with pytest.raises(ConfigError, match="publish_every is 8") as refused:
        refuse_impossible(Plan(1, 4, 100), [9])
    assert refused.value.hint == "Raise bound or groups, or lower n."
    with pytest.raises(ConfigError, match="at least 1"):
        refuse_impossible(Plan(1, 8, 8, publish_every=0), [8])
    with pytest.raises(ConfigError, match="at least 0"):
        refuse_impossible(Plan(-1, 8, 8), [8])
