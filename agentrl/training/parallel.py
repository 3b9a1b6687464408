"""The plan of parallelism: how a model is spread over ranks, and how ranks share a batch.

`apply` reads top to bottom: each kind is a function that changes the model in place, and leaves it alone if the plan
does not have that kind. accelerate owns processes, device and precision. The mesh is made here, with all of its
dimensions, because accelerate knows FSDP2 on GPUs only.

Invariants:
- loss and gradient are those of one process, up to the order of sums;
- a group is on one rank, because losses compare its records;
- all ranks make the same number of forward passes, because each of them is a collective of all ranks;
- what leaves the ranks (checkpoints, publications) does not depend on the plan.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.errors import ConfigError
from agentrl.training import activation_checkpoints
from agentrl.training.activation_checkpoints import Recompute
from agentrl.training.batch import Batch, Trajectory
from agentrl.training.packing import Pairs, Row
from agentrl.training.policy_model import compile_layers, layers_of

if TYPE_CHECKING:
    from agentrl.training.critic import ValueScorer
    from agentrl.training.pair_scores import PairScorer

    Scorer = TypeVar("Scorer", PairScorer, ValueScorer)

Precision = Literal["float32", "bfloat16"]

MESH = ("replicate", "shard")
_NO_INDICES = np.empty(0, dtype=np.int64)
_NO_NUMBERS = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Ranks along each dimension of the mesh."""

    replicate: int = 1
    shard: int = 1

    @property
    def ranks(self) -> int:
        return self.replicate * self.shard


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to a model before it trains."""

    sizes: Sizes = Sizes()
    recompute: Recompute = "none"
    compiled: bool = False
    """On GPUs only."""


def start(sizes: Sizes, precision: Precision) -> Accelerator:
    """Joins the other ranks, which the environment names as torch's launcher does. Raises ConfigError if their number
    is not that of the plan."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != sizes.ranks:
        raise ConfigError(
            f"training.parallel has {sizes.ranks} ranks ({sizes.replicate} x {sizes.shard}), and {ranks} were started.",
            hint="Start as many processes as training.parallel has ranks.",
        )
    if ranks > 1 and not torch.distributed.is_initialized():
        _meet(ranks)
    # Without the flag, accelerate starts gloo on no processor: it looks for the collectives of a GPU.
    mixed = "bf16" if precision == "bfloat16" else "no"
    return Accelerator(mixed_precision=mixed, cpu=ranks > 1 and not torch.cuda.is_available())


def _meet(ranks: int) -> None:
    """Joins the other ranks at the address that the environment names. Only there rank 0 listens: torch by itself would
    listen on all addresses of the host."""
    address, port, rank = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["RANK"])
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=ranks).detach()
    store = TCPStore(address, port, ranks, rank == 0, master_listen_fd=listener)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def lead_first(sizes: Sizes, precision: Precision) -> AbstractContextManager[None]:
    """Within it, the rank that leads is alone; the others follow when it is through."""
    first: AbstractContextManager[None] = start(sizes, precision).main_process_first()
    return first


class Parallelism:
    """A plan on the ranks that are there."""

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        self._plan = plan
        self._device: torch.device = accelerator.device
        self._mesh = _mesh(plan.sizes, accelerator.device)
        self.rank: int = accelerator.process_index
        self.ranks = plan.sizes.ranks

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and knows the store."""
        return self.rank == 0

    def apply(self, scorer: Scorer) -> Scorer:
        """Changes the scorer and its model in place."""
        compiled = self._plan.compiled and self._device.type == "cuda"
        # The compiler itself computes again what is cheap.
        recompute = "none" if compiled and self._plan.recompute == "selective" else self._plan.recompute
        _compile(scorer, wanted=compiled)
        activation_checkpoints.apply(scorer.model, recompute)
        _shard(scorer, self._mesh)
        return scorer

    # ---- what ranks share ----

    def share(self, batch: Batch) -> Batch:
        """The groups of this rank, so that all ranks have about as many tokens."""
        if self.ranks == 1:
            return batch
        groups: dict[str, list[Trajectory]] = {}
        for one in batch.trajectories:
            groups.setdefault(one.group_key, []).append(one)
        loads = [0] * self.ranks
        mine: set[str] = set()
        for name, members in sorted(groups.items(), key=lambda item: -sum(one.tokens for one in item[1])):
            lightest = loads.index(min(loads))
            loads[lightest] += sum(one.tokens for one in members)
            if lightest == self.rank:
                mine.add(name)
        return msgspec.structs.replace(batch, trajectories=[one for one in batch.trajectories if one.group_key in mine])

    def in_step(self, micros: list[list[Row]]) -> list[list[Row]]:
        """The micro-batches of this rank, and as many that train nothing as other ranks have more."""
        if self.ranks == 1:
            return micros
        count = torch.tensor(len(micros), device=self._device)
        torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MAX)
        return micros + [[_idle_row()] for _ in range(int(count) - len(micros))]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the ranks, each of which has other records."""
        whole = values.to(self._device, copy=True)
        if self.ranks > 1:
            torch.distributed.all_reduce(whole)
        return whole

    def joined(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns of all ranks, one after another; float64 on the processor."""
        if self.ranks == 1:
            return dict(columns)
        table = torch.stack([columns[name] for name in sorted(columns)]).to(self._device)
        lengths = [torch.zeros((), dtype=torch.int64, device=self._device) for _ in range(self.ranks)]
        torch.distributed.all_gather(lengths, torch.tensor(table.shape[1], device=self._device))
        # Collectives want equal shapes.
        longest = max(int(length) for length in lengths)
        padded = torch.nn.functional.pad(table, (0, longest - table.shape[1]))
        tables = [torch.empty_like(padded) for _ in range(self.ranks)]
        torch.distributed.all_gather(tables, padded)
        whole = torch.cat([one[:, :length] for one, length in zip(tables, lengths, strict=True)], dim=1).cpu()
        return dict(zip(sorted(columns), whole, strict=True))

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors without their distribution, on the rank that leads; the others get none. One at a time is
        gathered, because a device has no room for all."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.leads:
                found[name] = full if full is tensor else full.to("cpu")
        return found


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor, spread as a parameter of the same shape is. Each rank takes its part of what it has read."""
    if not isinstance(parameter, DTensor) or parameter.shape != whole.shape or isinstance(whole, DTensor):
        return whole
    mesh = parameter.device_mesh
    return distribute_tensor(whole.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)


def as_number(norm: Tensor) -> float:
    """Of a norm over all ranks."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _mesh(sizes: Sizes, device: torch.device) -> DeviceMesh | None:
    if sizes.ranks == 1:
        return None
    return init_device_mesh(device.type, (sizes.replicate, sizes.shard), mesh_dim_names=MESH)


def _compile(scorer: PairScorer | ValueScorer, *, wanted: bool) -> None:
    if wanted:
        compile_layers(scorer.model)


def _shard(scorer: PairScorer | ValueScorer, mesh: DeviceMesh | None) -> None:
    """FSDP2: each rank of a row of the mesh keeps a part of every parameter; rows are replicas of each other."""
    if mesh is None:
        return
    for layer in layers_of(scorer.model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    # What is outside of the layers is gathered again for the backward pass as well: between two forward passes, nothing
    # may be left that an optimizer step does not reach.
    fully_shard(scorer, mesh=mesh, reshard_after_forward=True)


def _idle_row() -> Row:
    """One token, of which nothing is wanted."""
    one = np.zeros(1, dtype=np.int64)
    pairs = Pairs(
        asked=_NO_INDICES,
        target=_NO_INDICES,
        record=_NO_INDICES,
        behaviour=_NO_NUMBERS,
        version=_NO_INDICES,
        order=_NO_INDICES,
    )
    return Row(ids=one, positions=one, ends=one + 1, asked_at=_NO_INDICES, temperatures=_NO_NUMBERS, pairs=pairs)
