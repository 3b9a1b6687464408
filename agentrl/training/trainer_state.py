"""Where a trainer stands. What is due follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import AgentrlError, ExitCode


class DivergedError(AgentrlError):
    """Batch after batch gives a loss that is not finite; starting again would repeat it."""

    exit_code = ExitCode.CONFIG


@dataclass(slots=True)
class Standing:
    step: int
    """The last number that was used."""
    trained_step: int = 0
    """The last one that the optimizer saw: a lease that came to nothing uses up a number."""
    version: int = 0
    trained: bool = False
    """Whether the weights differ from those of `version`."""
    steps_published: int = 0
    """Committed Steps since the last publication."""
    checkpoint: int = 0
    """The step of the last checkpoint."""
    tried_checkpoint: int = -1
    committed: int = 0
    """Steps of the whole run that stand."""
    taught: int = 0
    """Those of them that trained something."""
    since_evaluation: int = 0
    """Publications since the last one was evaluated."""
    not_finite: int = 0
    """Batches in a row."""

    @property
    def for_nothing(self) -> int:
        """Steps of the run, as long as none of them trained anything."""
        return 0 if self.taught else self.committed


def ending(why: str, standing: Standing) -> str:
    """Why a run is complete, and whether it was worth anything: to end is not to have learned."""
    if not standing.for_nothing:
        return why
    return f"no step trained anything ({why}): groups whose records all score the same teach nothing"
