"""The line that says what became of what was done last, and how long it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.protocol.rows import OperationRow, OperationState
from agentrl.words.amounts import age, duration
from tui.model.ink import Line, Span, Tone, span
from tui.model.intents import Intent
from tui.model.mirror import Mirror

UNDO_S = 10.0
SHOWN_S = 12.0


@dataclass(slots=True)
class _Done:
    what: str
    operation: str
    at: float
    undo: Intent | None
    ended_at: float = 0.0


class Notices:
    """Times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._text: Span | None = None
        self._till = 0.0
        self._fleeting = False
        self._done: _Done | None = None

    def say(self, text: str, clock: float, tone: Tone = Tone.PLAIN, *, fleeting: bool = False) -> None:
        self._text, self._till, self._fleeting = span(text, tone), clock + SHOWN_S, fleeting

    def pass_by(self) -> None:
        """Somebody does something else."""
        if self._fleeting:
            self._text = None

    def accepted(self, what: str, operation: str, clock: float, undo: Intent | None) -> None:
        """A command was accepted; from now on its operation is told of."""
        self._text = None
        self._done = _Done(what, operation, clock, undo)

    def take_undo(self, clock: float) -> Intent | None:
        """What takes the last act back, once, if there is still time."""
        done = self._done
        if done is None or done.undo is None or clock - done.at > UNDO_S:
            return None
        undo, done.undo = done.undo, None
        return undo

    def line(self, mirror: Mirror, clock: float) -> Line:
        if self._text is not None and clock < self._till:
            return (self._text,)
        if self._done is None:
            return ()
        row = mirror.get(f"op/{self._done.operation}")
        if not isinstance(row, OperationRow):
            told = (span(f"◐ {self._done.what}: accepted", Tone.BUSY),)
        elif not row.state.ended:
            waiting = f" waits for {', '.join(row.waiting_for[:3])}" if row.waiting_for else " is under way"
            told = (span(f"◐ {self._done.what}:{waiting} · {age(clock - self._done.at)}", Tone.BUSY),)
        else:
            told = (self._ended(row, clock),)
            self._done.ended_at = self._done.ended_at or clock
            if clock - self._done.ended_at > SHOWN_S and clock - self._done.at > UNDO_S:
                self._done = None
                return ()
        return (*told, *self._undo_hint(clock))

    def _ended(self, row: OperationRow, clock: float) -> Span:
        what = self._done.what if self._done else row.summary
        took = duration(row.ended_at - row.accepted_at)
        if row.state is OperationState.SUCCEEDED:
            said = f": {row.lines[-1]}" if row.lines else ""
            results = "".join(f" · {name} {value}" for name, value in row.result.items())
            return span(f"✓ {what}: done in {took}{said}{results}", Tone.GOOD)
        return span(f"✖ {what}: {row.state.value} after {took}. {row.reason}", Tone.BAD)

    def _undo_hint(self, clock: float) -> Line:
        if self._done is None or self._done.undo is None or clock - self._done.at > UNDO_S:
            return ()
        left = UNDO_S - (clock - self._done.at)
        return (Span("  u", Tone.ACCENT), Span(f" takes it back ({left:.0f} s)", Tone.DIM))
