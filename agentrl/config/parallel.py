"""Defines the section `training.parallel`: how the trainer is spread over processes.

Invariant: a kind of parallelism that this run does not support is refused when the file is read, and the message names
what is supported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

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


Problem = tuple[tuple[str, ...], str]


def problems_of(parallel: Parallel, *, groups: int, gpus: float = 0, compiled: bool = False) -> Iterator[Problem]:
    """Settings that this run does not support. `groups`: the groups of one step; 0 if it has none. `gpus`: those of all
    ranks together. `compiled`: whether layers are compiled. Limits of the model are checked when the model is read."""
    path = ("training", "parallel")
    if 0 < groups < parallel.with_other_groups:
        yield (
            path,
            f"has {parallel.with_other_groups} ranks (shard x replicate x expert) with groups of their own, more than "
            f"training.groups ({groups})",
        )
    if parallel.expert > 1 and parallel.tensor > 1:
        yield (*path, "expert"), "and tensor both divide the experts: have one of them"
    exchanging = [name for name in ("tensor", "context", "pipeline", "expert") if getattr(parallel, name) > 1]
    if compiled and exchanging:
        yield (
            ("training", "compile"),
            f"cannot be combined with training.parallel.{exchanging[0]}, whose ranks exchange tensors within layers; "
            "shard and replicate can",
        )
    if parallel.ranks > 1 and gpus % parallel.ranks:
        yield ("training", "gpus"), f"is {gpus:g}: its {parallel.ranks} ranks need as many whole GPUs each, or none"
