"""Defines how the trainer is spread over processes: the section `training.parallel`.

Invariant: a kind of parallelism that cannot be had in this run is refused when the file is read, with what can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentrl.config.field_types import Positive, Section


class Parallel(Section):
    """Ranks of the trainer along each dimension. Their product is the number of its processes."""

    shard: Positive = 1
    """Ranks of which each keeps a part of every weight and of its optimizer state (FSDP2)."""
    replicate: Positive = 1
    """Copies of these shards, which train other groups."""
    tensor: Positive = 1
    """Ranks of which each computes a part of every layer: some heads, columns, experts and words."""
    context: Positive = 1
    """Ranks of which each has a part of every packed sequence."""
    pipeline: Positive = 1
    """Stages that have some of the layers each, and pass results on to the next."""
    expert: Positive = 1
    """Ranks that have some of the experts each, and train other groups."""

    @property
    def ranks(self) -> int:
        return math.prod(self.model_dump().values())

    @property
    def with_other_groups(self) -> int:
        """Ranks that train other groups."""
        return self.shard * self.replicate * self.expert


Problem = tuple[tuple[str, ...], str]


def problems_of(parallel: Parallel, *, groups: int, gpus: float = 0, compiled: bool = False) -> Iterator[Problem]:
    """What this run cannot do. `groups`: of one step; 0 if it has none. `gpus`: of all ranks together. `compiled`: its
    layers are. What its model cannot do is found when that is read."""
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
