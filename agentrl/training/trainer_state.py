"""The state of a trainer: steps, version, checkpoint. What is due follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import AgentrlError, ExitCode


class DivergedError(AgentrlError):
    """Several batches in a row gave a loss that is not finite; a restart would repeat it."""

    exit_code = ExitCode.CONFIG


@dataclass(slots=True)
class TrainerState:
    step: int
    """The last step number that was used."""
    trained_step: int = 0
    """The last step that the optimizer made. It may differ from `step`, because a released lease uses up a number."""
    version: int = 0
    trained: bool = False
    """Whether the weights differ from those of `version`."""
    steps_published: int = 0
    """Committed steps since the last publication."""
    checkpoint: int = 0
    """The step of the last checkpoint."""
    tried_checkpoint: int = -1
    unsaved: int = 0
    """Steps since the last checkpoint that trained a record: without any, the weights are those of the checkpoint."""
    committed: int = 0
    """Steps of the whole run that are committed."""
    effective: int = 0
    """Committed steps that trained at least one record."""
    since_evaluation: int = 0
    """Publications since the last evaluation."""
    not_finite: int = 0
    """Batches in a row whose loss was not finite."""

    @property
    def useless_steps(self) -> int:
        """The number of steps of the run if none of them trained anything; otherwise 0."""
        return 0 if self.effective else self.committed


def ending(why: str, state: TrainerState) -> str:
    """Why a run is complete; also states if no step trained anything."""
    if not state.useless_steps:
        return why
    return f"no step trained anything ({why}): groups whose records all have the same score have no signal"
