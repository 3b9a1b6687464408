"""A token tree holds the tokens of calls completely, exactly and once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tokens import version_runs
from agentrl.tokens.spans import ROOT, Span, StoredCall, full_prompts, span_ids, trained_spans
from agentrl.tokens.token_tree import TokenTree

Call = tuple[int, list[int], list[int]]

tokens = st.integers(0, 2)
"""Few different ids, so that calls share long prefixes by chance."""


@st.composite
def any_calls(draw: st.DrawFn) -> list[Call]:
    """Calls that extend, cut, edit or repeat earlier ones, or have nothing to do with them."""
    calls: list[Call] = []
    for index in range(draw(st.integers(1, 8))):
        more = draw(st.lists(tokens, max_size=4))
        if calls and draw(st.integers(0, 3)):
            _, prompt, output = draw(st.sampled_from(calls))
            known = prompt + output
            prompt = known[: draw(st.integers(0, len(known)) | st.just(len(known)))] + more
        else:
            prompt = more
        calls.append((index, prompt or [draw(tokens)], draw(st.lists(tokens, max_size=4))))
    return calls


def common(left: Sequence[int], right: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def stored(calls: list[Call]) -> dict[int, StoredCall]:
    """The calls as a sampler would store them."""
    tree = TokenTree()
    kept: dict[int, StoredCall] = {}
    for index, prompt, output in calls:
        base, length = tree.base(prompt)
        kept[index] = StoredCall(prompt[length:], output, base, length)
        tree.insert(index, prompt, output)
    return kept


def trained(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Every trained token, as its span and its place in it."""
    return [(index, at) for index in trained_spans(spans) for at in range(spans[index].length)]


def branches(spans: Sequence[Span]) -> list[tuple[int, ...]]:
    """The path from the root to each leaf, as indices of spans."""
    paths = []
    for leaf in sorted(set(range(len(spans))) - {span.parent for span in spans}):
        path = [leaf]
        while spans[path[0]].parent != ROOT:
            path.insert(0, spans[path[0]].parent)
        paths.append(tuple(path))
    return paths


@given(any_calls())
@settings(max_examples=120, deadline=None)
def test_any_sequence_of_calls_is_rebuilt_exactly(calls: list[Call]) -> None:
    tree = TokenTree.from_calls(calls)
    for index, prompt, output in calls:
        assert [token for at in tree.path(index) for token in tree.ids(tree.spans[at])] == prompt + output


@given(any_calls())
@settings(max_examples=120, deadline=None)
def test_a_prompt_adds_only_what_no_earlier_call_had(calls: list[Call]) -> None:
    tree = TokenTree()
    earlier: list[list[int]] = []
    before = 0
    for index, prompt, output in calls:
        tree.insert(index, prompt, output)
        after = sum(span.length for span in tree.spans)
        new = len(prompt) - max((common(prompt, known) for known in earlier), default=0)
        assert after - before == new + len(output)
        before = after
        earlier.append(prompt + output)


@given(any_calls())
@settings(max_examples=120, deadline=None)
def test_a_generated_token_is_trained_by_exactly_one_pair_in_its_own_context(calls: list[Call]) -> None:
    tree = TokenTree.from_calls(calls)
    spans = tree.spans
    places = [(spans[index].call, spans[index].start + offset) for index, offset in trained(spans)]
    assert Counter(places) == Counter((index, at) for index, _, output in calls for at in range(len(output)))
    whole = {index: (prompt, output) for index, prompt, output in calls}
    deep: list[int] = []
    for span in spans:
        deep.append(0 if span.parent == ROOT else deep[span.parent] + spans[span.parent].length)
    for index, offset in trained(spans):
        call, at = spans[index].call, spans[index].start + offset
        prompt, output = whole[call]
        # Its position is the one at which it was generated, and what stands before it is what the engine saw.
        assert deep[index] + offset == len(prompt) + at
        assert path_ids(tree, index)[: len(prompt) + at + 1] == (prompt + output)[: len(prompt) + at + 1]


def path_ids(tree: TokenTree, index: int) -> list[int]:
    spans = tree.spans
    way, at = [], index
    while at != ROOT:
        way.append(spans[at])
        at = spans[at].parent
    return [token for span in reversed(way) for token in tree.ids(span)]


@given(any_calls())
@settings(max_examples=80, deadline=None)
def test_the_stored_calls_and_spans_are_enough(calls: list[Call]) -> None:
    tree = TokenTree.from_calls(calls)
    kept = stored(calls)
    assert [span_ids(span, kept) for span in tree.spans] == [tree.ids(span) for span in tree.spans]
    assert full_prompts(kept) == {index: prompt for index, prompt, _ in calls}


@given(any_calls())
@settings(max_examples=80, deadline=None)
def test_the_spans_are_in_depth_first_order(calls: list[Call]) -> None:
    spans = TokenTree.from_calls(calls).spans
    below: list[list[int]] = [[] for _ in spans]
    for index in range(len(spans)):
        at = spans[index].parent
        while at != ROOT:
            assert at < index
            below[at].append(index)
            at = spans[at].parent
    for index, descendants in enumerate(below):
        assert descendants == list(range(index + 1, index + 1 + len(descendants))), "a subtree is contiguous"


def test_a_conversation_is_one_chain() -> None:
    tree = TokenTree.from_calls([(0, [1, 2], [3, 4]), (1, [1, 2, 3, 4, 5], [6])])
    assert tree.spans == [
        Span(-1, "environment", 0, 0, 2),
        Span(0, "model", 0, 0, 2),
        Span(1, "environment", 1, 4, 1),
        Span(2, "model", 1, 0, 1),
    ]
    assert branches(tree.spans) == [(0, 1, 2, 3)]
    assert trained(tree.spans) == [(1, 0), (1, 1), (3, 0)]


def test_an_edited_context_branches_where_it_differs_and_keeps_what_was_generated() -> None:
    tree = TokenTree.from_calls([(0, [1, 2], [3, 4, 5]), (1, [1, 2, 3, 9], [6])])
    assert branches(tree.spans) == [(0, 1, 2), (0, 1, 3, 4)]
    assert [tree.ids(span) for span in tree.spans] == [[1, 2], [3], [4, 5], [9], [6]]
    assert [tree.spans[index].call for index, _ in trained(tree.spans)] == [0, 0, 0, 1]


def test_two_calls_that_generate_the_same_are_both_kept() -> None:
    tree = TokenTree.from_calls([(0, [1], [2, 3]), (1, [1], [2, 3]), (2, [1, 2, 3, 4], [5])])
    assert [(span.kind, span.call) for span in tree.spans] == [
        ("environment", 0),
        ("model", 0),
        ("model", 1),
        ("environment", 2),
        ("model", 2),
    ]
    assert tree.spans[3].parent == 2, "an agent continues from its latest call"
    assert tree.base([1, 2, 3, 4]) == (2, 4)


def test_a_call_that_continues_a_partial_one_extends_it() -> None:
    tree = TokenTree.from_calls([(0, [1, 2], [3]), (1, [1, 2, 3], [4, 5]), (2, [1, 2, 3, 4, 5, 6], [])])
    assert branches(tree.spans) == [(0, 1, 2, 3)]
    assert len(trained(tree.spans)) == 3


def test_insert_returns_the_path_of_the_call() -> None:
    tree = TokenTree()
    assert tree.insert(0, [1, 2], [3]) == (Span(-1, "environment", 0, 0, 2), Span(0, "model", 0, 0, 1))
    with pytest.raises(ValueError, match="already"):
        tree.insert(0, [1], [2])
    with pytest.raises(ValueError, match="no prompt"):
        tree.insert(1, [], [2])


def test_stored_calls_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="not before it"):
        full_prompts({0: StoredCall([1], [2]), 1: StoredCall([], [3], base=2, base_length=1)})
    with pytest.raises(ValueError, match="keeps 5 tokens"):
        full_prompts({0: StoredCall([1], [2]), 1: StoredCall([], [3], base=0, base_length=5)})
    with pytest.raises(ValueError, match="points beyond"):
        span_ids(Span(-1, "model", 0, 0, 3), {0: StoredCall([1], [2])})


def test_a_long_conversation_is_inserted_quickly() -> None:
    """A hundred turns of a thousand tokens: slices are compared, not tokens."""
    tree = TokenTree()
    known: list[int] = []
    for index in range(100):
        prompt = known + list(range(index, index + 900))
        output = list(range(100))
        tree.insert(index, prompt, output)
        known = prompt + output
    assert len(tree.spans) == 200
    assert sum(span.length for span in tree.spans) == 100_000
    assert len(trained(tree.spans)) == 10_000


# ---- versions ----

runs = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=6)


def flat(some: version_runs.Runs) -> list[int]:
    return [version for version, count in some for _ in range(count)]


@given(runs, runs)
def test_runs_of_versions_are_joined_without_losing_a_token(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    whole = version_runs.joined(left, right)
    assert flat(whole) == flat(left) + flat(right)
    assert all(a[0] != b[0] for a, b in pairwise(whole))
    assert all(count > 0 for _, count in whole)


@given(runs, st.data())
def test_a_part_of_an_output_keeps_its_versions(some: list[tuple[int, int]], data: st.DataObject) -> None:
    total = version_runs.total(some)
    start = data.draw(st.integers(0, total))
    length = data.draw(st.integers(0, total - start))
    assert flat(version_runs.cut(some, start, length)) == flat(some)[start : start + length]
    with pytest.raises(ValueError, match="not all among"):
        version_runs.cut(some, start, total - start + 1)


def test_versions_of_what_trains_are_counted() -> None:
    tree = TokenTree.from_calls([(0, [1], [2, 3, 4]), (1, [1, 2, 9], [5])])
    counts = version_runs.trained(tree.spans, trained_spans(tree.spans), {0: [[7, 1], [8, 2]], 1: [[8, 1]]})
    assert counts == {7: 1, 8: 3}
    with pytest.raises(ValueError, match="generated -1"):
        version_runs.joined([(1, -1)])
