"""Messages to units that serve commands for their group, and about the deaths of other units."""

from __future__ import annotations

import msgspec

from agentrl.protocol.message_base import Message


class AskUnit(Message, tag="ask_unit", frozen=True):
    """A command for the group of this unit. The coordinator has checked permission and arguments."""

    ask: str
    id: str
    """The id of the request. A command that changes something is executed once per id."""
    name: str
    args: msgspec.Raw = msgspec.Raw(b"\x80")
    who: str = ""
    dry_run: bool = False
    """Only answer with the Effect."""
    within_s: float = 10.0


class UnitDied(Message, tag="unit_died", frozen=True):
    """This incarnation has certainly ended. The message may be lost; the expiry of leases is the fallback."""

    unit: str
    incarnation: int


class UnitAnswer(Message, tag="unit_answer", frozen=True):
    """The answer to the AskUnit with the same `ask`; `body` is msgpack of the result type in the table."""

    ask: str
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    code: int = 0
    """The exit code of the kind of error."""
    hint: str = ""


ToServingUnit = AskUnit | UnitDied
