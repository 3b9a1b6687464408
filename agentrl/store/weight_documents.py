"""What the collections hold about weights: lineages of the trainer, their checkpoints and their publications.

Invariants: the same as in `agentrl.store.documents`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from agentrl.policies.status_tables import CheckpointStatus, PublicationStatus
from agentrl.protocol.knob import KnobValue
from agentrl.store.documents import Document, Named


class Lineage(Named):
    owner: str = ""
    parent_checkpoint: str = ""
    first_version: int | None = None
    first_step: int = 0
    opened_at: datetime | None = None
    closed: bool = False
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    """What admission must know of the trainer: bound, groups, publish_every, hold (a reason not to admit), trial
    (whether a few are admitted nevertheless)."""
    roll_back_to: str = ""
    """The checkpoint that an operator chose for the next lineage."""
    roll_back_why: str = ""
    roll_back_by: str = ""
    """The operation that chose it."""
    rolled_back_to: str = ""
    """The checkpoint that was chosen for this lineage, or for an earlier one of which no version was evaluated."""


OPENED = {"opened_at": {"$type": "date"}}
"""A filter that finds all lineages by an index."""


class CheckpointFile(msgspec.Struct):
    bytes: int = 0
    hash: str = ""
    pieces: list[str] = msgspec.field(default_factory=list)


class Checkpoint(Named):
    step: int = 0
    lineage: str = ""
    version: int = 0
    path: str = ""
    files: dict[str, CheckpointFile] = msgspec.field(default_factory=dict)
    reference: dict[str, CheckpointFile] = msgspec.field(default_factory=dict)
    """The model that losses compare with, in a directory of its own; a trainer on another host gets it from there."""
    status: str = CheckpointStatus.WRITING
    pinned: bool = False
    kept_for: str = ""
    """Why retention keeps it: `best evaluation`, or the change or rollback that followed it."""
    settings: dict[str, KnobValue] = msgspec.field(default_factory=dict)
    """The scientific settings of the last step before it."""
    damage: str = ""
    """Why a trainer could not start from it."""
    at: datetime | None = None


class CanaryReading(msgspec.Struct, frozen=True):
    """How much an engine's log-probs of the canary differed from the trainer's: |difference|."""

    engine: str
    largest: float
    mean: float
    limit: float
    """The mean above which the engine would have refused the version."""
    at: datetime | None = None
    """When it passed."""


class Publication(Document):
    id: int = msgspec.field(name="_id", default=0)
    """The version."""
    parent: int | None = None
    lineage: str = ""
    step: int = 0
    status: str = PublicationStatus.WRITING
    path: str = ""
    manifest: dict[str, Any] = msgspec.field(default_factory=dict)
    announced_at: datetime | None = None
    reasons: list[str] = msgspec.field(default_factory=list)
    served_by: list[str] = msgspec.field(default_factory=list)
    canary: list[CanaryReading] = msgspec.field(default_factory=list)
    """The readings of every engine that served it."""
    canary_largest: float | None = None
    """The largest of all readings."""
    evaluation: str = ""
    """`wanted`, `queued` or `done`; empty without an evaluation."""
    evaluated: dict[str, float] = msgspec.field(default_factory=dict)
    """The results of its evaluation, by the names of metrics."""
    evaluated_tasks: str = ""
    """A digest of the held-out tasks of its evaluation. Only results on the same tasks are compared."""
