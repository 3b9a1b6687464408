"""Defines the instructions of the supervisor. The coordinator executes them in order and reports the results as events.

Invariants:
- Each instruction names its stimulus: the event that caused it.
- A Persist is durable before any instruction after it in the list is executed.
"""

from __future__ import annotations

import msgspec

from agentrl.protocol.messages import CancelDrain, Drain, ExitStatus, ProcessInfo, SetPaused


class Instruction(msgspec.Struct, frozen=True, kw_only=True):
    stimulus: str = ""
    """The id of the event that caused it."""

    def __str__(self) -> str:
        words = (str(getattr(self, name)) for name in self.__struct_fields__ if name != "stimulus")
        return f"{type(self).__name__} {' '.join(words)} [{self.stimulus}]"


class Persist(Instruction, frozen=True):
    """Persist the run, a group or a slot as it is now; `gone` deletes it."""

    kind: str
    key: str
    gone: bool = False


class Publish(Instruction, frozen=True):
    """The row of this unit, group or host changed."""

    kind: str
    key: str


class Spawn(Instruction, frozen=True):
    host: str
    unit: str
    incarnation: int


class Signal(Instruction, frozen=True):
    host: str
    unit: str
    incarnation: int
    signal: int
    leader_only: bool = False


class KillTree(Instruction, frozen=True):
    host: str
    unit: str
    incarnation: int


class Forget(Instruction, frozen=True):
    """The host agent may remove this incarnation from its ledger."""

    host: str
    unit: str
    incarnation: int


class SendToUnit(Instruction, frozen=True):
    """Send a message to a unit that uses the unit runtime."""

    unit: str
    incarnation: int
    message: Drain | CancelDrain | SetPaused


class StartTimer(Instruction, frozen=True):
    unit: str
    at: float


class Report(Instruction, frozen=True):
    """An incident: the unplanned end of an incarnation."""

    unit: str
    incarnation: int
    host: str
    what: str
    done: str
    exit: ExitStatus | None = None
    swept: tuple[ProcessInfo, ...] = ()


class Died(Instruction, frozen=True):
    """This incarnation has ended, planned or not. Other units may take over its leases."""

    unit: str
    incarnation: int


class AllStopped(Instruction, frozen=True):
    """`down` is complete: no unit is left."""
