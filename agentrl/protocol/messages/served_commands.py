"""Messages by which a unit serves commands for its group, and hears of the deaths of others."""

from __future__ import annotations

import msgspec

from agentrl.protocol.message_base import Message


class AskUnit(Message, tag="ask_unit", frozen=True):
    """A command that this unit's group serves; whoever asks may do so, and the arguments fit."""

    ask: str
    id: str
    """Of the request. What changes something does so once per id, however often it is asked."""
    name: str
    args: msgspec.Raw = msgspec.Raw(b"\x80")
    who: str = ""
    dry_run: bool = False
    """Answer the Effect, and do nothing."""
    within_s: float = 10.0


class UnitDied(Message, tag="unit_died", frozen=True):
    """This life has ended for certain: nothing of its leader runs any more. It may be lost; leases are the fallback."""

    unit: str
    incarnation: int


class UnitAnswer(Message, tag="unit_answer", frozen=True):
    """Answer of a unit to an AskUnit of the same number; `body` is msgpack of what the command's table promises."""

    ask: str
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    code: int = 0
    """The exit code of the error's kind."""
    hint: str = ""


ToServingUnit = AskUnit | UnitDied
