"""What a conversation that is too long for its context leaves out. Pure: segments of tokens in, segments out.

Invariants: the first prompt stays, and so do the last turn and its results. A turn that the model sampled stays
unchanged or is removed as a whole, together with the results of its calls, so the template could have written the
conversation that is left. What was removed is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["first", "model", "results", "user"]
REMOVED = "(removed: the conversation was too long)"
"""What the model reads instead of a result."""


@dataclass(frozen=True)
class Segment:
    """A part of a prompt, in its tokens."""

    kind: Kind
    ids: Sequence[int]
    texts: Sequence[str] = ()
    """The results of tools, or the message of the user."""
    calls: Sequence[Any] = ()
    """The calls of the turn before it."""
    ended: bool = True
    """False if that turn was cut off."""
    shortened: bool = False


@dataclass(frozen=True)
class Edited:
    segments: Sequence[Segment]
    removed: Mapping[str, int]
    """`tokens`, and `results` or `turns`; empty if nothing could be removed."""


Shorten = Callable[[Segment], Segment]
"""The results of a turn in a few tokens."""
Strategy = Callable[[Sequence[Segment], int, int, Shorten], Edited]
"""Arguments: the segments, the most tokens that they should have, the turns to keep, and a function that shortens
results."""
_strategies: dict[str, Strategy] = {}


def register_strategy(name: str) -> Callable[[Strategy], Strategy]:
    def register(strategy: Strategy) -> Strategy:
        assert _strategies.setdefault(name, strategy) is strategy, f"there are two strategies {name}"
        return strategy

    return register


def strategy_named(name: str) -> Strategy:
    return _strategies[name]


def length(segments: Sequence[Segment]) -> int:
    return sum(len(segment.ids) for segment in segments)


@register_strategy("discard_tool_results")
def discard_tool_results(segments: Sequence[Segment], most: int, keep: int, shorten: Shorten) -> Edited:
    """Removes all results except those of the last `keep` turns that have any. It removes them together, because each
    edit is a branch."""
    places = [number for number, segment in enumerate(segments) if segment.kind == "results"]
    found, removed = list(segments), 0
    for place in places[: max(len(places) - keep, 0)]:
        if not found[place].shortened and len((short := shorten(found[place])).ids) < len(found[place].ids):
            removed += len(found[place].texts)
            found[place] = short
    return _edited(segments, found, {"results": removed})


@register_strategy("sliding_window")
def sliding_window(segments: Sequence[Segment], most: int, keep: int, shorten: Shorten) -> Edited:
    """Removes the oldest turns until the rest has half of the tokens that fit, so that the next edit is not needed
    soon."""
    turns = [number for number, segment in enumerate(segments) if segment.kind == "model"]
    found, gone = list(segments), 0
    while len(turns) - gone > keep and length(found) > most // 2:
        gone += 1
        # What comes before the first turn is the first prompt.
        until = turns[gone] if gone < len(turns) else len(segments)
        found = [*segments[: turns[0]], *segments[until:]]
    return _edited(segments, found, {"turns": gone})


def _edited(before: Sequence[Segment], after: Sequence[Segment], removed: Mapping[str, int]) -> Edited:
    fewer = length(before) - length(after)
    return Edited(after, dict(Counter(removed) + Counter({"tokens": fewer}))) if fewer > 0 else Edited(before, {})
