"""Marks that stand for images within text.

Messages and results of tools are stored as texts. An image within a text is a mark: the name of the image between two
Unicode object replacement characters. So all code that stores, compares or passes on texts also handles images.

Invariants:
- text from outside is `plain`, so only this program writes marks;
- a mark names a stored image by the hash of its bytes; before the image is stored, it names the image's source; if
  there is no image, it gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

CHARACTER = "\ufffc"
REPLACED = "\ufffd"
REFUSED = "refused: "
"""The prefix of the reason why there is no image."""
Replacement = Callable[[str], str]
"""Returns the text that replaces an image of this name."""
_MARK = re.compile(f"{CHARACTER}([^{CHARACTER}]+){CHARACTER}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Piece(NamedTuple):
    kind: Literal["text", "image"]
    value: str
    """The text, or the name of the image."""


def plain(text: str) -> str:
    """Text from outside, made free of marks."""
    return text.replace(CHARACTER, REPLACED) if CHARACTER in text else text


def mark(name: str) -> str:
    return f"{CHARACTER}{plain(name)}{CHARACTER}"


def refused(why: str) -> str:
    """The mark for an image that cannot be shown."""
    return mark(f"{REFUSED}{why}")


def is_stored(name: str) -> bool:
    """Whether the name is the hash of a stored image."""
    return _HASH.fullmatch(name) is not None


def names_in(*texts: str) -> list[str]:
    """The names of the images in these texts, in order, with repetitions."""
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
    return _MARK.sub(lambda found: by(found[1]), text) if CHARACTER in text else text


def shown(text: str) -> str:
    """The text for people, with words in place of images."""
    return replaced(text, words)


def words(name: str) -> str:
    if name.startswith(REFUSED):
        return f"[no image: {name.removeprefix(REFUSED)}]"
    return f"[image {name[:12] if is_stored(name) else name[:60]}]"
