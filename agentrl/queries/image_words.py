"""Images within texts, in words for people: `[image 224x224 png 3 KB 1a2b3c4d5e6f]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from agentrl.formatting.amounts import size
from agentrl.store import images
from agentrl.store.database import Database
from agentrl.store.documents import Image
from agentrl.tokens import image_marks

V = TypeVar("V")


async def described(database: Database, value: V) -> V:
    """The same lists, mappings and texts with words in place of images."""
    names = {name for text in _texts(value) for name in image_marks.names_in(text)}
    if not names:
        return value
    known = {one.id: one for one in await images.described(database, filter(image_marks.is_stored, names))}

    def words(name: str) -> str:
        return _words(known[name]) if name in known else image_marks.words(name)

    found: V = _replaced(value, words)
    return found


def _words(image: Image) -> str:
    seen = f"{image.width}x{image.height} {image.format} " if image.width else ""
    return f"[image {seen}{size(image.length)} {image.id[:12]}]"


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            if image_marks.CHARACTER in value:
                yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _replaced(value: Any, by: image_marks.Replacement) -> Any:
    match value:
        case str():
            return image_marks.replaced(value, by)
        case Mapping():
            return {name: _replaced(item, by) for name, item in value.items()}
        case list():
            return [_replaced(item, by) for item in value]
        case tuple():
            return tuple(_replaced(item, by) for item in value)
    return value
