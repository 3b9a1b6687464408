"""Formats tokens in their order, coloured by version, probability or training, and the tree of their spans.

Invariants:
- Every colour has a sign with the same meaning, so the lines can be read without colours and in ASCII.
- A token is never cut in two, unless it is wider than the screen.
- Every token is shown once.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from agentrl.formatting import token_tree_text
from agentrl.protocol.data_commands import TokenStretch
from tui.model.styled_text import Line, Span, Tone, fitted, span
from tui.model.table import Column

LINE_END = "↵"
LIKELY, UNLIKELY = 0.5, 0.1
"""Below the first probability a token gets one mark, below the second two."""
_IN_TURNS = (Tone.BUSY, Tone.GOOD, Tone.ACCENT, Tone.WARN)


class Colouring(enum.Enum):
    """The property of tokens that colours show."""

    NONE = "texts"
    VERSION = "weights"
    CHANCE = "log-prob"
    TRAINS = "training"

    def next(self) -> Colouring:
        every = list(Colouring)
        return every[(every.index(self) + 1) % len(every)]


def legend(colouring: Colouring) -> Line:
    match colouring:
        case Colouring.VERSION:
            meaning: Line = (Span("⟨v4⟩", Tone.ACCENT), Span(" from here on the weights are of version 4"))
        case Colouring.CHANCE:
            rare, rarer = f"‹below {LIKELY:g}›", f"«below {UNLIKELY:g}»"
            meaning = (Span("chance "), Span(rare, Tone.WARN), Span(" "), Span(rarer, Tone.BAD))
        case _:
            meaning = (Span("⟨trained⟩", Tone.GOOD), Span(" ⟨not trained⟩ "), Span("⟨context⟩", Tone.DIM))
    return (Span(f"tokens by {colouring.value}: ", Tone.ACCENT), *meaning, Span(", c goes on", Tone.DIM))


def of_turn(segments: Iterable[TokenStretch], turn: int) -> list[TokenStretch]:
    """The new prompt tokens and the generated tokens of a turn, in the order of the call."""
    return sorted((each for each in segments if each.turn == turn), key=lambda each: each.kind == "model")


def lines(segment: TokenStretch, colouring: Colouring, width: int) -> Iterator[Line]:
    """The tokens of one segment, flowing."""
    line, taken = list[Span](), 0
    for part in _parts(segment, colouring):
        wide = cell_len(part.text)
        if wide > width:
            part, wide = Span(fitted(part.text, width), part.tone), width
        if line and taken + wide > width:
            yield tuple(line)
            line, taken = [], 0
        line.append(part)
        taken += wide
        if part.text.endswith(LINE_END):
            yield tuple(line)
            line, taken = [], 0
    if line:
        yield tuple(line)


def _parts(segment: TokenStretch, colouring: Colouring) -> Iterator[Span]:
    """Marks and tokens; a line break within a token breaks the line."""
    texts, versions = token_tree_text.texts(segment), list(token_tree_text.versions(segment))
    chances = [math.exp(min(0.0, each)) for each in segment.log_probs]
    before: int | None = None
    if segment.kind != "model":
        yield Span("⟨context⟩", Tone.DIM)
    elif colouring is Colouring.TRAINS:
        yield Span("⟨trained⟩", Tone.GOOD) if segment.trains else Span("⟨not trained⟩")
    for at, text in enumerate(texts):
        tone = _tone(segment, colouring, versions[at], chances[at] if chances else None)
        if colouring is Colouring.VERSION and versions[at] != before:
            yield Span(f"⟨v{versions[at]}⟩", Tone.ACCENT)
            before = versions[at]
        shown = text.replace("\r", "").split("\n")
        for number, piece in enumerate(shown):
            ending = LINE_END if number + 1 < len(shown) else ""
            if piece or ending:
                yield Span(_marked(span(piece).text, colouring, tone) + ending, tone)


def _tone(segment: TokenStretch, colouring: Colouring, version: int | None, chance: float | None) -> Tone:
    if segment.kind != "model":
        return Tone.DIM
    if colouring is Colouring.VERSION and version is not None:
        return _IN_TURNS[version % len(_IN_TURNS)]
    if colouring is Colouring.CHANCE and chance is not None:
        return Tone.BAD if chance < UNLIKELY else Tone.WARN if chance < LIKELY else Tone.PLAIN
    return Tone.GOOD if colouring is Colouring.TRAINS and segment.trains else Tone.PLAIN


def _marked(text: str, colouring: Colouring, tone: Tone) -> str:
    if colouring is not Colouring.CHANCE or not text:
        return text
    return f"«{text}»" if tone is Tone.BAD else f"‹{text}›" if tone is Tone.WARN else text


# ---- the tree ----


class Node:
    """A segment with the lines of the tree before it."""

    __slots__ = ("head", "segment")

    def __init__(self, head: str, segment: TokenStretch) -> None:
        self.head = head
        self.segment = segment


def tree(segments: Sequence[TokenStretch]) -> dict[str, Node]:
    """Rows of a table, by the place of their segment."""
    places = {segment.segment: place for place, segment in enumerate(segments)}
    heads = token_tree_text.heads([places.get(segment.parent, token_tree_text.ROOT) for segment in segments])
    return {str(each.segment): Node(head, each) for head, each in zip(heads, segments, strict=True)}


def tree_columns() -> tuple[Column[Node], ...]:
    return (
        Column("order", "TREE", 24, _where, lambda node: node.segment.segment),
        Column("tokens", "TOKENS", 6, lambda node, now: span(len(node.segment.ids)), _length, True),
        Column("trains", "TRAINS", 6, _trains, lambda node: node.segment.trains, rank=2),
        Column("weights", "WEIGHTS", 14, _weights, lambda node: node.segment.versions[:1], rank=3),
        Column("chance", "LOG-PROB", 8, _chance, _mean, True, 4),
        Column("text", "TEXT", 16, _text, lambda node: "".join(token_tree_text.texts(node.segment)), stretches=True),
    )


def searched_text(node: Node) -> str:
    return f"{turn_name(node.segment)} {node.segment.kind} {''.join(token_tree_text.texts(node.segment))}"


def turn_name(segment: TokenStretch) -> str:
    return f"turn {segment.turn}" if segment.turn >= 0 else "no turn"


def _where(node: Node, now: float) -> Span:
    kind = "says" if node.segment.kind == "model" else "gets"
    return Span(f"{node.head}{turn_name(node.segment)} {kind}", Tone.STRONG if kind == "says" else Tone.PLAIN)


def _length(node: Node) -> int:
    return len(node.segment.ids)


def _trains(node: Node, now: float) -> Span:
    return Span("✓ yes", Tone.GOOD) if node.segment.trains else Span("no" if node.segment.kind == "model" else "")


def _weights(node: Node, now: float) -> Span:
    return span(" ".join(f"v{version}×{count}" for version, count in node.segment.versions))


def _mean(node: Node) -> float:
    found = node.segment.log_probs
    return sum(found) / len(found) if found else 1.0


def _chance(node: Node, now: float) -> Span:
    return Span(f"{_mean(node):.3g}" if node.segment.log_probs else "")


def _text(node: Node, now: float) -> Span:
    return span("".join(token_tree_text.texts(node.segment)), Tone.PLAIN if node.segment.kind == "model" else Tone.DIM)
