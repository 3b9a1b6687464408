"""The effect that other settings would have had on the last batches, counted with the functions that training uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentrl.policies.advantages import Trained
from agentrl.policies.curriculum import Window
from agentrl.policies.group_closing import GroupRule, Member
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.past_batches import (
    PastGroup,
    StepChanges,
    compare_batches,
    compare_groups,
    compare_steps,
    compare_windows,
)

USUAL = GroupRule()


def group(*scores: float, turns: Sequence[int] = ()) -> PastGroup:
    members = [
        Member(f"{scores}/{n}", OutcomeClass.POLICY, score, turns=turns[n] if turns else 1)
        for n, score in enumerate(scores)
    ]
    return PastGroup(len(members), tuple(members))


GROUPS = [group(0.0, 0.1, 0.1, 0.0), group(0.0, 1.0, 0.0, 1.0), group(0.5, 0.5, 0.5, 0.5)]


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (USUAL, USUAL, {}),
        (USUAL, replace(USUAL, min_range=0.2), {"lost": 1, "dropped": 4}),
        (replace(USUAL, min_range=0.2), USUAL, {"without_signal": 2, "gained": 1, "added": 4}),
        # All members of the first group are wrong, so its best two get the advantage 0. The group still has a signal.
        (USUAL, replace(USUAL, sign_clip=True), {"changed": 2}),
        (USUAL, replace(USUAL, divide_by_std=False), {"changed": 8}),
    ],
    ids=["the same", "min_range", "less min_range", "sign_clip", "scale"],
)
def test_groups_and_records_are_counted(before: GroupRule, after: GroupRule, counts: dict[str, int]) -> None:
    found = compare_groups(GROUPS, before, after)
    expected: dict[str, Any] = {"groups": 3, "records": 8, "without_signal": 1}
    expected |= dict.fromkeys(("lost", "gained", "dropped", "added", "changed", "turned"), 0) | counts
    assert {name: getattr(found, name) for name in expected} == expected


def test_shaping_gives_a_flat_group_a_signal_and_turns_signs() -> None:
    shaped = replace(USUAL, turn_spread=0.4)
    found = compare_groups([group(1.0, 1.0, turns=(1, 5)), group(0.6, 0.7, turns=(1, 9))], USUAL, shaped)
    assert (found.gained, found.added, found.turned) == (1, 2, 2)


def test_balance_scales_the_larger_side_only() -> None:
    batch = [Trained("shop", "a", 1.0, 30), Trained("shop", "a", -1.0, 10), Trained("shop", "b", 0.0, 5)]
    found = compare_batches([batch, batch], (False, False), (False, True))
    assert (found.batches, found.records, found.changed, found.turned) == (2, 6, 2, 0)
    assert (found.up, found.down) == (pytest.approx(1 / 3), 1.0)
    back = compare_batches([batch], (False, True), (False, False))
    assert back.up == pytest.approx(3.0)


def test_windows_count_measured_rows() -> None:
    found = compare_windows({0: 0.0, 1: 0.2, 2: 0.5, 3: 1.0}, Window(0.0, 1.0), Window(0.1, 0.9))
    assert (found.rows, found.hard, found.easy, found.hard_before, found.easy_before) == (4, 1, 1, 0, 0)


def test_a_group_keeps_the_settings_of_its_admission() -> None:
    rule = GroupRule(min_range=0.1, overlong_tokens=(10, 20))
    assert rule.with_kept({}) == rule
    assert rule.with_kept(rule.kept()) == rule
    later = rule.with_kept({"min_range": 0.3, "overlong_penalty": 0.5})
    assert later.min_range == 0.3
    assert later.overlong is not None
    assert later.overlong.of(15) == 0.25
    assert later.with_kept(rule.kept()) == rule


def test_groups_of_past_steps_are_cut_into_larger_steps_some_of_them_short() -> None:
    """Groups without signal are replaced, up to the number of groups in a step; then the step is short."""
    signals = [True, True, True, True, False, True, False, False, False, False, False]
    found = compare_steps(signals, 2, 4)
    assert found == StepChanges(11, 6, steps=1, short=0, steps_before=3, short_before=1)
    assert compare_steps([False] * 8, 4, 2) == StepChanges(8, 8, steps=2, short=2, steps_before=1, short_before=1)
