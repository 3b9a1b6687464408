"""Chooses which piece to request from which host next, so that the host that wrote a file sends each piece about once.

Hosts that get the same file divide it: each takes its own share from hosts that have the whole file, and the other
shares from the hosts that took them. There is no leader: every host computes the same shares from the reports of the
others.

Invariants:
- A piece is requested only from a host that has it, and from one host at a time.
- A host that has the whole file is asked only for pieces that no unfinished host has.
- The origin, which wrote the file, is asked only for pieces that no other host has.
- A host that has its own share takes over the pieces of others that they have not asked for yet.

A bitmap is an int: bit N stands for piece N.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Source(NamedTuple):
    """The report of another host about a file, and how many more requests it may get from this host now."""

    have: int = 0
    asked: int = 0
    """The pieces that it has requested itself."""
    whole: bool = False
    origin: bool = False
    free: int = 1


class Request(NamedTuple):
    piece: int
    source: str


def next_requests(here: str, have: int, asked: int, count: int, sources: Mapping[str, Source]) -> list[Request]:
    """The requests to send now. `have` and `asked` describe this host. `sources` must not contain sources that
    failed."""
    needed = ((1 << count) - 1) & ~have & ~asked
    getting = sorted({here} | {name for name, source in sources.items() if not source.whole})
    position = getting.index(here)
    partial = {name: source for name, source in sources.items() if not source.whole}
    passed_on = _union(source.have for source in partial.values())
    elsewhere = _union(source.have for source in sources.values() if not source.origin)
    theirs = _union(source.asked for source in partial.values())
    requests: list[Request] = []
    for group, allowed in (
        (partial, -1),
        ({name: source for name, source in sources.items() if source.whole and not source.origin}, ~passed_on),
        ({name: source for name, source in sources.items() if source.whole and source.origin}, ~elsewhere),
    ):
        free = {name: source.free for name, source in group.items()}
        while turn := [name for name, left in sorted(free.items()) if left > 0]:
            # Each host begins with a different source, so that they do not all ask the same one first.
            for name in turn[position % len(turn) :] + turn[: position % len(turn)]:
                piece = _choose(needed & group[name].have & allowed, theirs, count, position, len(getting), group[name])
                if piece is None:
                    free[name] = 0
                    continue
                free[name] -= 1
                needed &= ~(1 << piece)
                requests.append(Request(piece, name))
    return requests


def _choose(candidates: int, theirs: int, count: int, position: int, hosts: int, source: Source) -> int | None:
    first = position * count // hosts
    if not source.whole:
        return next(_rotated(candidates, count, first), None)
    own = next((piece for piece in _bits(candidates) if piece % hosts == position), None)
    if own is not None:
        return own
    # The owner of a share requests its lowest piece next, so each other host takes over a different piece.
    left = list(_bits(candidates & ~theirs))
    return left[-1 - position * len(left) // (2 * hosts)] if left else None


def _rotated(bitmap: int, count: int, first: int) -> Iterator[int]:
    """The pieces of the bitmap from `first` on, then those before it."""
    yield from (first + piece for piece in _bits(bitmap >> first))
    yield from _bits(bitmap & ((1 << first) - 1))


def _bits(bitmap: int) -> Iterator[int]:
    while bitmap:
        lowest = bitmap & -bitmap
        yield lowest.bit_length() - 1
        bitmap ^= lowest


def _union(bitmaps: Iterator[int]) -> int:
    found = 0
    for bitmap in bitmaps:
        found |= bitmap
    return found
