"""The exceptions that end an episode below its loop: limits, deadlines, failures, and the loss of the claim.

Invariants: they do not derive from `Exception`, so no `except Exception` of a loop can catch them; each has all that is
needed to end the episode.
"""

from __future__ import annotations

from agentrl.policies.outcomes import Outcome


class EpisodeExit(BaseException):
    """Ends an episode. No `except Exception` of a loop can catch it."""


class EndedError(EpisodeExit):
    """The episode is over for a reason that the loop does not decide."""

    def __init__(self, outcome: Outcome, error: str = "", *, free: bool = False) -> None:
        super().__init__(f"{outcome}: {error}" if error else str(outcome))
        self.outcome = outcome
        self.error = error
        self.free = free
        """It met an open breaker, which is not counted against the seat."""


class HandedOverError(EpisodeExit):
    """This sampler leaves; another one continues the episode from what is stored."""


class DroppedError(EpisodeExit):
    """The claim is lost: another owner has the Record, so this episode stops without a write."""
