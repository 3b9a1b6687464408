"""What leads out of an episode from below: limits, deadlines, failures, and the loss of the claim.

Invariants: none of them is an `Exception`, so that no loop can take one for its own; each has all that is needed
to end the episode.
"""

from __future__ import annotations

from agentrl.policies.outcomes import Outcome


class EpisodeExit(BaseException):
    """Leads out of an episode. No `except Exception` of a loop can take it for its own."""


class EndedError(EpisodeExit):
    """The episode is over for a reason that is not the loop's to decide."""

    def __init__(self, outcome: Outcome, error: str = "", *, free: bool = False) -> None:
        super().__init__(f"{outcome}: {error}" if error else str(outcome))
        self.outcome = outcome
        self.error = error
        self.free = free
        """It met an open breaker, which is not counted against the seat."""


class HandedOverError(EpisodeExit):
    """This sampler leaves; another one goes on with the episode from what is stored."""


class DroppedError(EpisodeExit):
    """The claim is lost: another owner has the Record, so this episode stops without a write."""
