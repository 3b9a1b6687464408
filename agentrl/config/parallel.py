"""Defines how the trainer is spread over processes: the section `training.parallel`.

Invariant: a kind of parallelism that cannot be had in this run is refused when the file is read, with what can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentrl.config.field_types import Positive, Section

_UNBUILT = ("tensor", "context", "pipeline", "expert")


class Parallel(Section):
    """Ranks of the trainer along each dimension. Their product is the number of its processes."""

    shard: Positive = 1
    """Ranks of which each keeps a part of every weight and of its optimizer state (FSDP2)."""
    replicate: Positive = 1
    """Copies of these shards, which train other groups."""
    tensor: Positive = 1
    """Ranks that compute a part of each layer: not available yet."""
    context: Positive = 1
    """Ranks that have a part of each sequence: not available yet."""
    pipeline: Positive = 1
    """Ranks that have some of the layers: not available yet."""
    expert: Positive = 1
    """Ranks that have some of the experts: not available yet."""

    @property
    def ranks(self) -> int:
        return math.prod(self.model_dump().values())


def problems_of(parallel: Parallel, *, groups: int, gpus: float = 0) -> Iterator[tuple[tuple[str, ...], str]]:
    """What this run cannot do. `groups`: of one step; 0 if it has none. `gpus`: of all ranks together."""
    path = ("training", "parallel")
    for kind in _UNBUILT:
        if getattr(parallel, kind) > 1:
            yield (*path, kind), "is not available yet; shard and replicate are, for models of every architecture"
    if 0 < groups < parallel.ranks:
        yield path, f"has {parallel.ranks} ranks, more than training.groups ({groups}): each group is on one rank"
    if parallel.ranks > 1 and gpus % parallel.ranks:
        yield ("training", "gpus"), f"is {gpus:g}: its {parallel.ranks} ranks need as many whole GPUs each, or none"
