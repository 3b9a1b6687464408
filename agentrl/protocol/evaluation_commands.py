"""Arguments and results of the queries on a run's own evaluations.

Invariants:
- An attempt that failed for infrastructure is in no figure; it is counted as failed.
- A task has the same name in the evaluations of all versions.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from agentrl.protocol.message_base import Args
from agentrl.protocol.words import option


class ListEvaluations(Args, frozen=True):
    """-> list[EvaluationRow], the newest version first."""

    limit: Annotated[int, option("--limit", "-n", metavar="N")] = 20
    """Versions."""


class EvaluationRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One environment at one version."""

    version: int
    environment: str
    """Empty before the steward has queued the tasks."""
    state: str
    """`wanted`, `queued` (under way) or `done`."""
    step: int = 0
    at: float = 0.0
    """When the version was announced."""
    tasks: int = 0
    ended: int = 0
    """Tasks that are closed, or dead."""
    attempts: int = 0
    """Attempts with a score."""
    failed: int = 0
    """Attempts that ended without a score."""
    mean: float | None = None
    """The mean of the tasks' means."""
    margin: float | None = None
    """Half of the 95 % interval of the mean."""
    passed: dict[str, float] = {}
    """pass@k by k."""
    turns: float = 0.0
    """The mean per attempt; so is the next field."""
    tokens: float = 0.0
    on: str = ""
    """A digest of the held-out tasks. Only results on the same tasks are compared. Empty until it is done."""
    checkpoint: str = ""
    """The complete checkpoint with these weights, if there is one."""
    is_best: bool = False
    """Among the versions evaluated on the same tasks as the newest result, the mean of this one over all environments
    is significantly the highest."""


class ShowEvaluation(Args, frozen=True):
    """-> EvaluationStory"""

    typed: ClassVar[bool] = False
    version: int
    after: str = ""
    """The key of the last attempt of the answer before this one."""
    limit: int = 0
    """The most attempts in the answer; 0 means all."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a task by a model: in `agentrl eval run`, or at a seat of a held-out task of a run."""

    key: str
    model: str
    """Its name, for people."""
    environment: str
    setup: str = ""
    """A digest of what the model, the environment and the rule of sampling are, since their names may stay."""
    task: str
    """The row's own id, or its digest."""
    attempt: int
    query: str = ""
    answer: str = ""
    """The right one."""
    score: float | None = None
    parts: dict[str, float] = {}
    outcome: str = ""
    error: str = ""
    tags: tuple[str, ...] = ()
    difficulty: str = ""
    tokens: int = 0
    took_s: float = 0.0
    at: str = ""
    """When it ended; in UTC."""
    turns: tuple[dict[str, Any], ...] = ()
    """What the model wrote and what tools returned."""
    record: str = ""
    """For an attempt within a run: its record, which has the turns."""
    turn_count: int = 0
    """With `record`: how many turns it has."""
    content: str = ""
    """With `record`: `content_of` its query and answer, which are not included here in full."""

    @property
    def number_of_turns(self) -> int:
        return len(self.turns) or self.turn_count

    @property
    def is_result(self) -> bool:
        return self.score is not None


class EvaluationStory(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version with the attempts of its evaluation."""

    rows: tuple[EvaluationRow, ...]
    attempts: tuple[Attempt, ...] = ()
    """By key."""
    more: bool = False
    """There are further attempts after the last one."""


QUERIES: tuple[tuple[str, type[Args], Any, str, str], ...] = (
    (
        "list_evaluations",
        ListEvaluations,
        list[EvaluationRow],
        "eval list",
        "Evaluations of the run's own versions, with progress and results.",
    ),
    ("show_evaluation", ShowEvaluation, EvaluationStory, "eval show", "The attempts of one evaluation of the run."),
)
"""The queries of the table of commands that are about evaluations."""
