"""Which tokens a Record trains, and where: (record, token) pairs.

Invariants: exactly one pair per generated token, whatever number of branches show it as context; tokens of prompts have
none. Log-prob, version and parameters of a pair are those of its call, at `Span.start + offset` of the call's output.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from agentrl.tokens.spans import Span
from agentrl.tokens.tree import TokenTree


class Pair(NamedTuple):
    span: int
    offset: int


def trained_spans(tree: TokenTree | Sequence[Span], *, context: Container[int] = ()) -> list[int]:
    """The spans whose tokens train. Calls in `context` do not: the trunk that a fork began with."""
    return [index for index, span in enumerate(_spans(tree)) if span.kind == "model" and span.call not in context]


def pairs(tree: TokenTree | Sequence[Span], *, context: Container[int] = ()) -> list[Pair]:
    """One pair per generated token, in the order of the spans."""
    spans = _spans(tree)
    return [Pair(index, at) for index in trained_spans(spans, context=context) for at in range(spans[index].length)]


def _spans(tree: TokenTree | Sequence[Span]) -> Sequence[Span]:
    return tree.spans if isinstance(tree, TokenTree) else tree
