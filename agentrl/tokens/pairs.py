"""Which tokens a Record trains, and where: (record, token) pairs.

Invariants: exactly one pair per generated token, whatever number of branches show it as context; tokens of prompts have
none. Log-prob, version and parameters of a pair are those of its call, at `Span.start + offset` of the call's output.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentrl.tokens import spans as span_lists
from agentrl.tokens.spans import Span
from agentrl.tokens.tree import TokenTree


class Pair(NamedTuple):
    span: int
    offset: int


@dataclass(frozen=True, slots=True)
class View:
    """One branch as a sequence of its own, for models that cannot read trees."""

    spans: tuple[int, ...]
    trains: tuple[bool, ...]
    """Per span: whether its tokens train in this view. A token trains in the first view that shows it."""


def trained_spans(tree: TokenTree | Sequence[Span], *, context: Container[int] = ()) -> list[int]:
    """The spans whose tokens train. Calls in `context` do not: the trunk that a fork began with."""
    return [index for index, span in enumerate(_spans(tree)) if span.kind == "model" and span.call not in context]


def pairs(tree: TokenTree | Sequence[Span], *, context: Container[int] = ()) -> list[Pair]:
    """One pair per generated token, in the order of the spans."""
    spans = _spans(tree)
    return [Pair(index, at) for index in trained_spans(spans, context=context) for at in range(spans[index].length)]


def views(tree: TokenTree | Sequence[Span], *, context: Container[int] = ()) -> list[View]:
    """The branches as sequences, with every pair in exactly one of them; a branch that trains nothing is left out."""
    spans = _spans(tree)
    left = set(trained_spans(spans, context=context))
    found: list[View] = []
    for way in span_lists.branches(spans):
        trains = tuple(index in left for index in way)
        left.difference_update(way)
        if any(trains):
            found.append(View(way, trains))
    return found


def _spans(tree: TokenTree | Sequence[Span]) -> Sequence[Span]:
    return tree.spans if isinstance(tree, TokenTree) else tree
