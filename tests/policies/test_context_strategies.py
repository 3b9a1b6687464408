"""What is left out of long conversations, and when an episode repeats itself: pure rules on lists."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentrl.policies import context_strategies, repetition
from agentrl.policies.context_strategies import Segment, length


def conversation(*sizes: tuple[int, int]) -> list[Segment]:
    """A first prompt of 10 tokens, then turns, each with its sampled tokens and its results."""
    found = [Segment("first", [0] * 10)]
    for number, (sampled, results) in enumerate(sizes, 1):
        found += [Segment("model", [number] * sampled), Segment("results", [-number] * results, ["result"])]
    return found


def shorten(segment: Segment) -> Segment:
    return replace(segment, ids=list(segment.ids)[:2], shortened=True)


def test_results_of_earlier_turns_are_shortened_once() -> None:
    discard = context_strategies.strategy_named("discard_tool_results")
    edited = discard(conversation((5, 40), (5, 40), (5, 40)), 100, 1, shorten)
    assert [len(segment.ids) for segment in edited.segments] == [10, 5, 2, 5, 2, 5, 40]
    assert edited.removed == {"results": 2, "tokens": 76}
    again = discard(edited.segments, 10, 1, shorten)
    assert again.removed == {}
    assert again.segments == edited.segments


def test_a_window_keeps_the_first_prompt_and_the_last_turns() -> None:
    slide = context_strategies.strategy_named("sliding_window")
    edited = slide(conversation((10, 20), (10, 20), (10, 20), (10, 20)), 120, 1, shorten)
    assert [segment.ids[0] for segment in edited.segments] == [0, 4, -4], "the window shrinks to half of the limit"
    assert edited.removed == {"turns": 3, "tokens": 90}
    kept = slide(conversation((10, 20), (10, 20), (10, 20), (10, 20)), 120, 2, shorten)
    assert [segment.ids[0] for segment in kept.segments] == [0, 3, -3, 4, -4]


@given(
    st.sampled_from(["discard_tool_results", "sliding_window"]),
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=1, max_size=8),
    st.integers(1, 300),
    st.integers(1, 9),
)
def test_every_strategy_keeps_order_whole_turns_and_accounts(
    name: str, sizes: list[tuple[int, int]], most: int, keep: int
) -> None:
    before = conversation(*sizes)
    edited = context_strategies.strategy_named(name)(before, most, keep, shorten)
    assert edited.segments[0] == before[0]
    assert list(edited.segments[-2:]) == before[-2:], "the last turn and its results stay"
    assert [segment.kind for segment in edited.segments[1:]] == ["model", "results"] * (len(edited.segments) // 2)
    assert length(before) - length(edited.segments) == edited.removed.get("tokens", 0)
    sampled = [segment for segment in before if segment.kind == "model"]
    assert all(segment in sampled for segment in edited.segments if segment.kind == "model")


def test_repetition_counts_what_follows_each_other() -> None:
    assert repetition.equal_texts(["a", "b", " b ", "b"]) == 3
    assert repetition.equal_texts([]) == 0
    one, other = ("look", {"at": 1, "far": True}), ("look", {"far": True, "at": 1})
    assert repetition.equal_calls([[one], [other], [one]]) == 3
    assert repetition.equal_calls([[one], [("look", {"at": 2})], [one]]) == 1
    assert repetition.equal_calls([[one], []]) == 0, "a turn without calls ends a repetition"
