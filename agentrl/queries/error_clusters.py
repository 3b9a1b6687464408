"""Clusters error messages that differ only in a name, so that 192 failures become one line of a list. Pure.

Invariants: the differing part of a message is shown as `…`; words that all messages of a cluster share are never left
out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentrl.protocol.data_commands import VARIES

_NAMES = 3
"""At least this many different words in one place count as names; two may be two different errors."""
_MIN_SHARED_WORDS = 2
_MAX_WORDS = 60


def cluster(patterns: Iterable[str]) -> Mapping[str, str]:
    """The cluster of each message pattern (`pattern_of`).

    Messages form a cluster if several of them differ in a single word, or only after a colon: `no such item: …`.
    """
    unique = list(dict.fromkeys(patterns))
    candidates: dict[str, list[str]] = defaultdict(list)
    for pattern in unique:
        for wider in _wider(pattern):
            candidates[wider].append(pattern)
    found = {pattern: pattern for pattern in unique}
    # The largest cluster takes its members first; a message joins only one cluster.
    several = ((wider, members) for wider, members in candidates.items() if len(members) > 1)
    for wider, members in sorted(several, key=lambda one: (-len(one[1]), one[0])):
        left = [pattern for pattern in members if found[pattern] == pattern]
        if len(left) >= _min_members(wider, left):
            found |= dict.fromkeys(left, wider)
    return found


def _wider(pattern: str) -> Iterator[str]:
    """The pattern with each of its words left out in turn, and with what follows its last colon left out."""
    words = pattern.split(" ")
    if len(words) <= _MAX_WORDS:
        real = [_is_word(word) for word in words]
        many, start = sum(real), 0
        for word, is_real in zip(words, real, strict=True):
            if many - is_real >= _MIN_SHARED_WORDS:
                yield f"{pattern[:start]}{VARIES}{pattern[start + len(word) :]}"
            start += len(word) + 1
    head, colon, _ = pattern.rpartition(": ")
    # A single word before a colon is the name of an error class; what went wrong follows it.
    enough_words = colon and sum(_is_word(word) for word in head.split(" ")) >= _MIN_SHARED_WORDS
    if enough_words and (wider := f"{head}: {VARIES}") != " ".join([*words[:-1], VARIES]):
        yield wider


def _is_word(text: str) -> bool:
    return any(sign.isalpha() for sign in text)


def _min_members(wider: str, members: Sequence[str]) -> int:
    """Two if single words follow a colon, because those are names; otherwise three."""
    is_name = wider.endswith(f": {VARIES}") and all(" " not in member.removeprefix(wider[:-1]) for member in members)
    return 2 if is_name else _NAMES
