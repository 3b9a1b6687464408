"""Base classes of all messages and of all arguments of commands."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of everything on the wire."""


class Args(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all arguments. An argument that the coordinator does not know is refused, not ignored."""

    typed: ClassVar[bool] = True
    """Whether a command line can express them; otherwise only a program sends them."""

    def problem(self) -> str:
        """Empty, or why these arguments contradict each other. Client and coordinator refuse them with it."""
        return ""

    def title(self, seen: object = None) -> str:
        """What a command with these arguments does, in few words: `restart web-0.7`. Empty for a query.

        `seen` is the row of the target that a person saw, if there is one.
        """
        return ""

    def undo(self, seen: object = None) -> Args | None:
        """The arguments of the command that takes this one back, if they are known beforehand."""
        return None

    def incarnation_named(self) -> str:
        """The only incarnation that can carry out this command, such as `toolbox-0.4`; empty if the arguments name
        none."""
        return ""
