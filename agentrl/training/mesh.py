"""The place of each rank: the dimensions along which ranks share the work, and the groups that they form.

Ranks along `replicate`, `shard` and `expert` train different groups of records; ranks along `tensor`, `context` and
`pipeline` compute the same groups together. Neighbours in the last dimension communicate the most.

Invariant: one process needs no groups; a process is alone in a dimension of size 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DIMENSIONS = ("pipeline", "replicate", "expert", "shard", "context", "tensor")
_DATA = ("replicate", "expert", "shard")
_SPREAD = ("expert", "shard", "context")
"""Ranks along these dimensions each keep a part of every weight."""
_SPREAD_EXPERTS = ("shard", "context")
"""The same for the weights of experts, which `expert` has already divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Ranks along each dimension of the mesh."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def ranks(self) -> int:
        return self._product(field.name for field in fields(self))

    @property
    def data(self) -> int:
        """The number of ranks that train different groups."""
        return self._product(_DATA)

    def _product(self, names: Iterable[str]) -> int:
        return math.prod(getattr(self, name) for name in names)


class Mesh:
    """The place of this rank among all."""

    def __init__(self, sizes: Sizes, device: torch.device, *, alone: bool = False) -> None:
        """`alone`: a single process that acts as a group of one."""
        self.sizes = sizes
        self._whole: DeviceMesh | None = None
        if sizes.ranks == 1 and not alone:
            return
        shape = tuple(getattr(sizes, name) for name in DIMENSIONS)
        self._whole = init_device_mesh(device.type, shape, mesh_dim_names=DIMENSIONS)
        self._data = self._joined(_DATA)
        self._spread = self._joined(_SPREAD)
        self._spread_experts = self._joined(_SPREAD_EXPERTS)

    def size(self, dimension: str) -> int:
        size: int = getattr(self.sizes, dimension)
        return size

    def along(self, dimension: str) -> DeviceMesh:
        """The ranks that differ from this one in this dimension only."""
        return self._all[dimension]

    def group(self, dimension: str) -> ProcessGroup:
        return self.along(dimension).get_group()

    def place(self, dimension: str) -> int:
        """The number of this rank in this dimension."""
        return 0 if self._whole is None else self._whole.get_local_rank(dimension)

    @property
    def data_group(self) -> ProcessGroup:
        """The ranks with other groups of records, which together have the whole batch."""
        return self._data.get_group()

    @property
    def data_place(self) -> int:
        return 0 if self._whole is None else self._data.get_local_rank()

    @property
    def spread(self) -> DeviceMesh | None:
        """The mesh [copies, parts of every weight], or only the parts; None if each rank has whole weights."""
        return self._with_copies("_spread", _SPREAD)

    @property
    def spread_experts(self) -> DeviceMesh | None:
        return self._with_copies("_spread_experts", _SPREAD_EXPERTS)

    @property
    def _all(self) -> DeviceMesh:
        if self._whole is None:
            raise RuntimeError("one process has no mesh")
        return self._whole

    def _joined(self, names: tuple[str, ...]) -> DeviceMesh:
        return self._all[names]._flatten("_".join(names))

    def _with_copies(self, attribute: str, names: tuple[str, ...]) -> DeviceMesh | None:
        if self._whole is None:
            return None
        parts: DeviceMesh = getattr(self, attribute)
        if self.sizes.replicate > 1:
            return DeviceMesh._concatenate([self._whole["replicate"], parts])
        return parts if parts.size() > 1 or self.sizes.ranks == 1 else None
