"""Ids of the tokens that show an image.

A model has one placeholder token for all images, so its ids alone do not say which image a prompt shows. Here every
token of an image has the id of that image instead, beyond all vocabularies. So all code that compares ids (the token
tree, a cache, the packing of a batch) distinguishes images, and stored tokens name the images that they show.

Invariants:
- an id of an image is `FIRST` plus the number of the image in its run, and fits into 32 bits;
- the tokens of an image are contiguous, all with one id; only an engine or a trainer turns them into the placeholder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

FIRST = 1 << 31
NUMBERS = 1 << 28
"""How many images a run may have. A number is written as seven digits, like the beginning of a hash."""


def id_of(number: int) -> int:
    return FIRST + number


def is_image(token: int) -> bool:
    return token >= FIRST


def number_of(token: int) -> int:
    return token - FIRST


def label(number: int) -> str:
    """The number in a form for people; nearly always the beginning of the hash of the image's bytes."""
    return f"{number:07x}"


def first_number(sha256: str) -> int:
    """The number that an image gets unless another image of the run already has it."""
    return int(sha256[:7], 16)


def numbers_in(ids: Iterable[int]) -> list[int]:
    """The images that these tokens show, each once, in their order."""
    return list(dict.fromkeys(token - FIRST for token in ids if token >= FIRST))


def runs(ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Pieces of these ids, in order: the number of an image with its tokens, or -1 with ids that are text."""
    begin = 0
    for at in range(1, len(ids) + 1):
        if at < len(ids) and (ids[at] == ids[begin] if is_image(ids[begin]) else not is_image(ids[at])):
            continue
        yield (number_of(ids[begin]) if is_image(ids[begin]) else -1), list(ids[begin:at])
        begin = at
