"""Defines the stages of a curriculum, and which rows of a dataset are worth sampling again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from agentrl.config.field_types import OF_GROUPS, Number, Positive, Section, named, read_by


class Difficulty(Section):
    """Rows that an epoch leaves out because of their mean score in the epoch before. They come back in the next one."""

    least: Annotated[Number, named("difficulty_least", OF_GROUPS)] = 0.0
    """Rows with a lower mean score are too hard."""
    most: Annotated[Number, named("difficulty_most", OF_GROUPS)] = 1.0
    """Rows with a higher mean score are too easy."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Difficulty:
        if self.least >= self.most:
            raise ValueError("least must be below most")
        return self


class StageEnd(Section):
    """What ends a stage."""

    environment: str
    """The environment that is measured."""
    score: Annotated[Number, OF_GROUPS]
    """The mean score of its newest groups."""
    groups: Positive = 32
    """How many of the newest groups are measured, all of them admitted within the stage."""


class CurriculumStage(Section):
    """A mix of environments for a while."""

    mix: dict[str, Annotated[Number, Field(ge=0, le=1_000)]]
    """Weights by environment, instead of `environments.NAME.weight`. An environment that is left out is sampled only if
    the others have no tasks left."""
    scorers: Annotated[dict[str, str], read_by("steward", "sampler")] = Field(default_factory=dict)
    """Scorers by environment, instead of `environments.NAME.scorer`; a task that names one keeps it."""
    until: StageEnd | None = None
    """When the next stage begins. The last stage has none."""

    @model_validator(mode="after")
    def _mixes_something(self) -> CurriculumStage:
        if not any(self.mix.values()):
            raise ValueError("mix needs at least one environment with a weight above 0")
        return self
