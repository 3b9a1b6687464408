"""Decides what the notice line shows: the last message, or the state of the last command with its undo.

Invariants:
- A message of a view ends with the view; the result of a command stays for a fixed time.
- A command with an undo offers it for `UNDO_S`, also while another message is shown.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from agentrl.formatting.amounts import age, duration
from agentrl.protocol.rows import OperationRow, OperationState
from tui.model import cell_text
from tui.model.mirror import Mirror
from tui.model.pending_commands import PendingCommand
from tui.model.styled_text import Line, Span, Tone, span

UNDO_S = 10.0
SHOWN_S = 12.0


class Lasts(enum.Enum):
    """How long a message stays, at most `SHOWN_S`."""

    FLEETING = enum.auto()
    """Until the next key."""
    HERE = enum.auto()
    """Until the view changes."""
    ITS_TIME = enum.auto()
    """For some time in every view: the result of a command."""


@dataclass(slots=True)
class _Done:
    what: str
    operation: str
    at: float
    undo: PendingCommand | None
    exact: bool
    """True if the undo restores everything; otherwise its hint names its effect."""
    ended_at: float = 0.0


class Notices:
    """All messages of the notice line. All times come from one monotonic clock."""

    def __init__(self) -> None:
        self._text: Span | None = None
        self._till = 0.0
        self._lasts = Lasts.HERE
        self._done: _Done | None = None

    def say(self, text: str, clock: float, tone: Tone = Tone.PLAIN, lasts: Lasts = Lasts.HERE) -> None:
        self._text, self._till, self._lasts = span(text, tone), clock + SHOWN_S, lasts

    def pass_by(self) -> None:
        """Another action begins."""
        if self._lasts is Lasts.FLEETING:
            self._text = None

    def leave(self) -> None:
        """Another view is shown."""
        if self._lasts is not Lasts.ITS_TIME:
            self._text = None

    def accepted(self, what: str, operation: str, clock: float, undo: PendingCommand | None, *, exact: bool) -> None:
        """A command was accepted; from now on the state of its operation is shown."""
        self._text = None
        self._done = _Done(what, operation, clock, undo, exact)

    def take_undo(self, clock: float) -> PendingCommand | None:
        """The undo of the last command, once, if there is still time."""
        done = self._done
        if done is None or done.undo is None or clock - done.at > UNDO_S:
            return None
        undo, done.undo = done.undo, None
        return undo

    def line(self, mirror: Mirror, clock: float) -> Line:
        if self._text is not None and clock < self._till:
            return (self._text, *self._undo_hint(clock, named=True))
        if self._done is None:
            return ()
        row = mirror.get(f"op/{self._done.operation}")
        if not isinstance(row, OperationRow):
            state = (span(f"◐ {self._done.what}: accepted", Tone.BUSY),)
        elif not row.state.ended:
            waiting = cell_text.waited_for(row.waiting_for[:3]) if row.waiting_for else "is under way"
            state = (span(f"◐ {self._done.what}: {waiting} · {age(clock - self._done.at)}", Tone.BUSY),)
        else:
            state = (self._ended(row, clock),)
            self._done.ended_at = self._done.ended_at or clock
            if clock - self._done.ended_at > SHOWN_S and clock - self._done.at > UNDO_S:
                self._done = None
                return ()
        return (*state, *self._undo_hint(clock))

    def _ended(self, row: OperationRow, clock: float) -> Span:
        what = self._done.what if self._done else row.summary
        took = duration(row.ended_at - row.accepted_at)
        if row.state is OperationState.SUCCEEDED:
            last_line = f": {row.lines[-1]}" if row.lines else ""
            results = "".join(f" · {name} {value}" for name, value in row.result.items())
            return span(f"✓ {what}: done in {took}{last_line}{results}", Tone.GOOD)
        return span(f"✖ {what}: {row.state.value} after {took}. {row.reason}", Tone.BAD)

    def _undo_hint(self, clock: float, *, named: bool = False) -> Line:
        """`named`: the hint names the command, because another sentence precedes it."""
        done = self._done
        if done is None or done.undo is None or clock - done.at > UNDO_S:
            return ()
        does = "takes it back" if done.exact and not named else done.undo.what
        return (Span("  u", Tone.ACCENT), span(f" {does} ({UNDO_S - (clock - done.at):.0f} s)", Tone.DIM))
