"""Builds HTML in which text of a run cannot become markup.

Invariants:
- Text that is not `Markup` is escaped when it is put into an element or an attribute.
- Control characters and invisible characters are removed from text of a run before that.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

from agentrl.formatting.safe_text import sanitise_lines


class Markup(str):
    """HTML that this program wrote."""

    __slots__ = ()


Content: TypeAlias = "str | int | float | Iterable[Content] | None"
_VOID = ("img", "meta")


def element(name: str, /, *inside: Content, **attributes: object) -> Markup:
    """`element("p", text, class_="note")`. Attributes that are None or False are left out."""
    given = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Content) -> Markup:
    """All parts, one after the other; a part that is None is left out."""
    match parts:
        case None:
            return Markup("")
        case Markup():
            return parts
        case str() | int() | float():
            return escaped(str(parts))
    return Markup("".join(joined(part) for part in parts))


def escaped(text: str) -> Markup:
    """Text of any number of lines, escaped for display."""
    return Markup(html.escape(sanitise_lines(text), quote=True))


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
