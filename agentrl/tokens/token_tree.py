"""The token tree of one Record, grown call by call.

Invariants: every call can be rebuilt exactly from the tree; the part of a prompt that equals earlier tokens is stored
once; every generated token is stored once, as generated, even if two calls generated the same ids (they differ in
log-probs and versions). A prompt that does not extend a path of the tree branches at the first different token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentrl.tokens.spans import ROOT, Span, SpanKind


@dataclass(slots=True, eq=False)
class _Node:
    """A span that can still be split. The root has no tokens."""

    parent: _Node | None
    kind: SpanKind = "environment"
    call: int = -1
    start: int = 0
    length: int = 0
    children: list[_Node] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    prompt: Sequence[int]
    output: Sequence[int]
    end: _Node
    """The last node of its prompt and output."""


@dataclass(frozen=True, slots=True)
class _Match:
    """How far a prompt matches: to the middle of a node, or to its end."""

    node: _Node
    inside: int
    tokens: int


class TokenTree:
    def __init__(self) -> None:
        self._root = _Node(None)
        self._calls: dict[int, _Call] = {}
        self._spans: list[Span] | None = None
        self._place: dict[_Node, int] = {}

    @classmethod
    def from_calls(cls, calls: Iterable[tuple[int, Sequence[int], Sequence[int]]]) -> TokenTree:
        """`calls`: index, whole prompt and output of each call, in the order in which they were made."""
        tree = cls()
        for index, prompt, output in calls:
            tree.insert(index, prompt, output)
        return tree

    def insert(self, call_index: int, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[Span, ...]:
        """Adds a call; returns its path from the root, its output last. Indices may change with later calls."""
        if call_index in self._calls:
            raise ValueError(f"call {call_index} is in the tree already")
        if not prompt_ids:
            raise ValueError(f"call {call_index} has no prompt, so nothing could have been sampled")
        prompt, output = list(prompt_ids), list(output_ids)
        match = self._follow(prompt)
        node = match.node if match.inside == match.node.length else _split(match.node, match.inside)
        if match.tokens < len(prompt):
            node = _append(node, "environment", call_index, match.tokens, len(prompt) - match.tokens)
        if output:
            node = _append(node, "model", call_index, 0, len(output))
        self._calls[call_index] = _Call(prompt, output, node)
        self._spans = None
        spans = self.spans
        return tuple(spans[index] for index in self.path(call_index))

    def base(self, prompt_ids: Sequence[int]) -> tuple[int | None, int]:
        """The call that shares the longest prefix with this prompt, and the number of shared tokens."""
        match = self._follow(list(prompt_ids))
        return (match.node.call, match.tokens) if match.tokens else (None, 0)

    @property
    def spans(self) -> list[Span]:
        """The stored form of the tree, depth first."""
        if self._spans is None:
            self._spans = self._numbered()
        return list(self._spans)

    def path(self, call_index: int) -> tuple[int, ...]:
        """The spans of a call's prompt and output, from the root."""
        if self._spans is None:
            self._spans = self._numbered()
        way: list[int] = []
        node: _Node | None = self._calls[call_index].end
        while node is not None and node is not self._root:
            way.append(self._place[node])
            node = node.parent
        return tuple(reversed(way))

    def prompt(self, call_index: int) -> Sequence[int]:
        """The whole prompt of a call."""
        return self._calls[call_index].prompt

    def output(self, call_index: int) -> Sequence[int]:
        return self._calls[call_index].output

    def ids(self, span: Span) -> list[int]:
        call = self._calls[span.call]
        return list((call.output if span.kind == "model" else call.prompt)[span.start : span.start + span.length])

    def _numbered(self) -> list[Span]:
        spans: list[Span] = []
        self._place = {self._root: ROOT}
        todo = list(reversed(self._root.children))
        while todo:
            node = todo.pop()
            assert node.parent is not None
            self._place[node] = len(spans)
            spans.append(Span(self._place[node.parent], node.kind, node.call, node.start, node.length))
            todo.extend(reversed(node.children))
        return spans

    def _follow(self, prompt: list[int]) -> _Match:
        """The longest path that the prompt shares with the tree.

        Two calls may have generated the same ids, so all matching paths are followed. Of equally long ones the path of
        the latest call is taken, because an agent continues from that call.
        """
        best = _Match(self._root, 0, 0)
        todo = [best]
        while todo:
            match = todo.pop()
            if (match.tokens, match.node.call) > (best.tokens, best.node.call):
                best = match
            if match.inside < match.node.length:
                continue
            todo.extend(self._onward(match, prompt))
        return best

    def _onward(self, match: _Match, prompt: list[int]) -> Iterator[_Match]:
        for child in match.node.children:
            if shared := self._shared(child, prompt, match.tokens):
                yield _Match(child, shared, match.tokens + shared)

    def _shared(self, node: _Node, prompt: list[int], at: int) -> int:
        """How many tokens of the node match the prompt from `at`."""
        call = self._calls[node.call]
        ids = call.output if node.kind == "model" else call.prompt
        return _common(ids, node.start, prompt, at, min(node.length, len(prompt) - at))


def _append(parent: _Node, kind: SpanKind, call: int, start: int, length: int) -> _Node:
    node = _Node(parent, kind, call, start, length)
    parent.children.append(node)
    return node


def _split(node: _Node, at: int) -> _Node:
    """Splits a node and returns the upper part. The lower part stays the same object, because calls end there."""
    assert node.parent is not None
    upper = _Node(node.parent, node.kind, node.call, node.start, at, [node])
    siblings = node.parent.children
    siblings[siblings.index(node)] = upper
    node.parent = upper
    node.start += at
    node.length -= at
    return upper


def _common(left: Sequence[int], left_at: int, right: Sequence[int], right_at: int, most: int) -> int:
    """Length of the common prefix of two slices. Compares slices instead of tokens, because prompts are long."""
    if left[left_at : left_at + most] == right[right_at : right_at + most]:
        return most
    low, high = 0, most  # the first `low` agree, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if left[left_at + low : left_at + middle] == right[right_at + low : right_at + middle]:
            low = middle
        else:
            high = middle
    return low
