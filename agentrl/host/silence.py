"""How long the coordinator has said nothing.

Invariants: silence is counted in looks of the agent's own loop, at most one pace for each, so an agent that was stopped
itself, or a host that slept, holds nothing against anybody; a coordinator that was not heard yet has at least the time
of a slow start.
"""

from __future__ import annotations

START_WITHIN_S = 60.0
"""A new coordinator reads its journal before it says a word."""
_LOOKS = 20
_PACE_S = (0.05, 1.0)


class SilenceTimer:
    """Of one coordinator process after the other: `begin` for each, `heard` for each message, `look` in between."""

    def __init__(self) -> None:
        self.patience_s = START_WITHIN_S
        """How long a silence may last; a coordinator's welcome says."""
        self.lasted_s = 0.0
        self._heard = False
        self._looked_at = 0.0

    @property
    def pace_s(self) -> float:
        """How far apart looks are."""
        least, most = _PACE_S
        return min(max(self.patience_s / _LOOKS, least), most)

    @property
    def too_long(self) -> bool:
        return self.lasted_s >= (self.patience_s if self._heard else max(self.patience_s, START_WITHIN_S))

    def begin(self, now: float) -> None:
        """There is a new process."""
        self._heard, self._looked_at, self.lasted_s = False, now, 0.0

    def heard(self) -> None:
        self._heard, self.lasted_s = True, 0.0

    def once_more(self) -> None:
        """It gets another chance to speak."""
        self.lasted_s = 0.0

    def look(self, now: float) -> None:
        # Twice the pace: a loop that is a little late is no loop that was stopped.
        self.lasted_s += min(now - self._looked_at, 2 * self.pace_s)
        self._looked_at = now
