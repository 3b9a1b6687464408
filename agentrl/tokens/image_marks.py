"""Marks that stand for images within text.

Messages, results of tools and what is stored of them are texts. An image within a text is a mark: the name of the image
between two characters that stand for an object in Unicode. So everything that keeps, compares or passes on texts does
so with images.

Invariants:
- text from outside is `plain`, so only this program writes marks;
- a mark names an image that the run has stored by the hash of its bytes, before that where the image is from, or why
  there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

CHARACTER = "\ufffc"
REPLACED = "\ufffd"
REFUSED = "refused: "
"""Before the reason why there is no image."""
Replacement = Callable[[str], str]
"""What stands in place of an image of this name."""
_MARK = re.compile(f"{CHARACTER}([^{CHARACTER}]+){CHARACTER}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Piece(NamedTuple):
    kind: Literal["text", "image"]
    value: str
    """The text, or the name of the image."""


def plain(text: str) -> str:
    """Text from outside, in which no mark is."""
    return text.replace(CHARACTER, REPLACED) if CHARACTER in text else text


def mark(name: str) -> str:
    return f"{CHARACTER}{plain(name)}{CHARACTER}"


def refused(why: str) -> str:
    """Instead of an image that cannot be shown."""
    return mark(f"{REFUSED}{why}")


def is_stored(name: str) -> bool:
    """Whether it is the hash of a stored image."""
    return _HASH.fullmatch(name) is not None


def names_in(*texts: str) -> list[str]:
    """The images of these texts, in order; the same one as often as it is there."""
    return [name for text in texts if CHARACTER in text for name in _MARK.findall(text)]


def pieces(text: str) -> Iterator[Piece]:
    at = 0
    for found in _MARK.finditer(text):
        if found.start() > at:
            yield Piece("text", plain(text[at : found.start()]))
        yield Piece("image", found[1])
        at = found.end()
    if at < len(text):
        yield Piece("text", plain(text[at:]))


def replaced(text: str, by: Replacement) -> str:
    """With something else in place of every image."""
    return _MARK.sub(lambda found: by(found[1]), text) if CHARACTER in text else text


def shown(text: str) -> str:
    """For people who see no images."""
    return replaced(text, words)


def words(name: str) -> str:
    if name.startswith(REFUSED):
        return f"[no image: {name.removeprefix(REFUSED)}]"
    return f"[image {name[:12] if is_stored(name) else name[:60]}]"
