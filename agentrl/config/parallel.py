"""Defines the section `training.parallel`: how the trainer is spread over processes.

Invariant: a kind of parallelism that this run does not support is refused when the file is read, and the message names
what is supported.
"""

from __future__ import annotations

import math

from agentrl.config.field_types import Positive, Section


class Parallel(Section):
    """Ranks of the trainer along each dimension. Their product is the number of its processes."""

    shard: Positive = 1
    """The number of ranks that divide every weight and its optimizer state among them (FSDP2)."""
    replicate: Positive = 1
    """The number of copies of these shards; each trains other groups."""
    tensor: Positive = 1
    """The number of ranks that each compute a part of every layer: some heads, columns, experts and words."""
    context: Positive = 1
    """The number of ranks that each have a part of every packed sequence."""
    pipeline: Positive = 1
    """The number of stages; each has some of the layers and passes its results to the next."""
    expert: Positive = 1
    """The number of ranks that each have some of the experts and train other groups."""

    @property
    def ranks(self) -> int:
        return math.prod(self.model_dump().values())

    @property
    def with_other_groups(self) -> int:
        """The number of ranks that train different groups."""
        return self.shard * self.replicate * self.expert
