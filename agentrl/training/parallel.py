"""The plan of parallelism: how a model is spread over ranks, and how ranks share a batch.

`Parallelism.apply` is the whole plan, top to bottom: each kind is a function that changes the model in place.
Accelerate owns processes, device and precision. The mesh is made here, with all of its dimensions, because accelerate
knows FSDP2 on GPUs only, and no pipelines or experts.

Invariants:
- loss and gradient are those of one process, up to the order of sums;
- a group is on one rank along `replicate`, `shard` and `expert`, because losses compare its records;
- all ranks make the same number of forward passes, because each of them is a collective of all ranks;
- the output of the ranks (checkpoints, publications) does not depend on the plan.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from agentrl.errors import ConfigError
from agentrl.training import (
    activation_checkpoints,
    context_parallel,
    expert_parallel,
    pipeline,
    sharding,
    spread_tensors,
    tensor_parallel,
)
from agentrl.training.activation_checkpoints import Recompute
from agentrl.training.batch import Batch, Trajectory
from agentrl.training.mesh import Mesh, Sizes
from agentrl.training.packing import Pairs, Row
from agentrl.training.parallel_check import refuse_parallel
from agentrl.training.policy_model import compile_layers
from agentrl.training.precision import Precision, accelerated
from agentrl.training.scorers import Scorer
from agentrl.training.sharding import Keeping

AnyScorer = TypeVar("AnyScorer", bound=Scorer[Any])

_BACKEND = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
_NO_INDICES = np.empty(0, dtype=np.int64)
_NO_NUMBERS = np.empty(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is prepared before it trains."""

    sizes: Sizes = field(default_factory=Sizes)
    recompute: Recompute = "none"
    compiled: bool = False
    """On GPUs only."""
    keeping: Keeping = field(default_factory=Keeping)


def start(sizes: Sizes, precision: Precision) -> Accelerator:
    """Joins the other ranks, which the environment names with the variables of torch's launcher. Raises ConfigError if
    their number differs from the plan."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != sizes.ranks:
        raise ConfigError(
            f"training.parallel has {sizes.ranks} ranks, and {ranks} were started.",
            hint="Start as many processes as training.parallel has ranks.",
        )
    if ranks > 1 and not torch.distributed.is_initialized():
        _meet(ranks)
    # Without this flag accelerate does not start gloo on CPUs, because it looks for the collectives of a GPU.
    threads = torch.get_num_threads()
    accelerator = Accelerator(mixed_precision=accelerated(precision), cpu=ranks > 1 and not torch.cuda.is_available())
    # The default gives every rank the threads of the whole host, which then wait for each other.
    torch.set_num_threads(threads)
    return accelerator


def _meet(ranks: int) -> None:
    """Joins the other ranks at the address that the environment names. Rank 0 listens only there; torch's default would
    listen on all addresses of the host."""
    address, port, rank = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["RANK"])
    listener = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, port), family=family, backlog=ranks).detach()
    store = TCPStore(address, port, ranks, rank == 0, master_listen_fd=listener)
    torch.distributed.init_process_group(_BACKEND, store=store, rank=rank, world_size=ranks)


def lead_first(sizes: Sizes, precision: Precision) -> AbstractContextManager[None]:
    """In this context the rank that leads runs first; the others follow when it has left the context."""
    first: AbstractContextManager[None] = start(sizes, precision).main_process_first()
    return first


class Parallelism:
    """A plan, applied to the present ranks."""

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        self._plan = plan
        self._device: torch.device = accelerator.device
        alone = plan.keeping.on_host and plan.sizes.ranks == 1
        if alone and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(_BACKEND, store=HashStore(), rank=0, world_size=1)
        self._mesh = Mesh(plan.sizes, accelerator.device, alone=alone)
        self.rank: int = accelerator.process_index
        self.ranks = plan.sizes.ranks

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and knows the store."""
        return self.rank == 0

    @property
    def is_plain(self) -> bool:
        """Whether this process alone has the whole model, on processors."""
        return self.ranks == 1 and self._mesh.spread is None and self._device.type == "cpu"

    def apply(self, scorer: AnyScorer) -> AnyScorer:
        """Changes the scorer and its model in place. Raises ConfigError if the model does not allow the plan."""
        refuse_parallel(asdict(self._plan.sizes), scorer.model.config.to_dict())
        compiled = self._plan.compiled and self._device.type == "cuda"
        # The compiler itself recomputes cheap results.
        recompute = "none" if compiled and self._plan.recompute == "selective" else self._plan.recompute
        mesh = self._mesh
        if mesh.size("tensor") > 1:  # Each rank has some columns or rows of every matrix.
            tensor_parallel.apply(scorer, mesh)
        if mesh.size("expert") > 1:  # Each rank has some experts of every layer.
            expert_parallel.apply(scorer, mesh)
        if mesh.size("pipeline") > 1:  # Each rank has some layers.
            pipeline.apply(scorer, mesh)
        if mesh.size("context") > 1:  # Each rank has some tokens of every row. It wraps what the ranks above compute.
            context_parallel.apply(scorer, mesh)
        if recompute != "none":
            activation_checkpoints.apply(scorer.model, recompute)
        if compiled:
            compile_layers(scorer.model)
        # Last, because it divides the weights that all of these left on this rank, and moves them to their device.
        sharding.apply(scorer, mesh, self._plan.keeping, self._device)
        return scorer

    def together(self, micros: Sequence[list[Row]]) -> Iterable[Sequence[list[Row]]]:
        """How many micro-batches have all their forward passes before the first backward pass."""
        stages = self._mesh.size("pipeline")
        count = 1 if stages == 1 else stages * pipeline.AT_ONCE
        return (micros[start : start + count] for start in range(0, len(micros), count))

    def clip(self, scorer: Scorer[Any], longest: float, *, scale: float = 1.0) -> float:
        """Completes the gradient of a loss that was multiplied by `scale`, and clips it to a length; returns the length
        before that, the same on all ranks."""
        return spread_tensors.clip_gradient(scorer, self._mesh, longest, scale)

    # ---- what ranks share ----

    def share(self, batch: Batch) -> Batch:
        """The groups of this rank, chosen so that all ranks have about as many tokens."""
        if self._mesh.sizes.data == 1:
            return batch
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in batch.trajectories:
            groups.setdefault(trajectory.group_key, []).append(trajectory)
        loads = [0] * self._mesh.sizes.data
        mine: set[str] = set()
        for name, members in sorted(groups.items(), key=lambda item: -sum(one.tokens for one in item[1])):
            lightest = loads.index(min(loads))
            loads[lightest] += sum(member.tokens for member in members)
            if lightest == self._mesh.data_place:
                mine.add(name)
        return msgspec.structs.replace(
            batch, trajectories=[trajectory for trajectory in batch.trajectories if trajectory.group_key in mine]
        )

    def in_step(self, micros: list[list[Row]]) -> list[list[Row]]:
        """The micro-batches of this rank, padded with ones that train nothing up to the number of the other ranks."""
        if self._mesh.sizes.data == 1:
            return micros
        count = torch.tensor(len(micros), device=self._device)
        torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MAX, group=self._mesh.data_group)
        return micros + [[_idle_row()] for _ in range(int(count) - len(micros))]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the ranks with different records."""
        whole = values.to(self._device, copy=True)
        if self._mesh.sizes.data > 1:
            torch.distributed.all_reduce(whole, group=self._mesh.data_group)
        return whole

    def agreed(self, wish: bool) -> bool:
        count = torch.tensor(int(wish), device=self._device)
        if self.ranks > 1:
            torch.distributed.all_reduce(count)
        return int(count) == self.ranks

    def joined(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The concatenated columns of all ranks with different records; float64 on the processor."""
        ranks = self._mesh.sizes.data
        if ranks == 1:
            return dict(columns)
        table = torch.stack([columns[name] for name in sorted(columns)]).to(self._device)
        lengths = [torch.zeros((), dtype=torch.int64, device=self._device) for _ in range(ranks)]
        group = self._mesh.data_group
        torch.distributed.all_gather(lengths, torch.tensor(table.shape[1], device=self._device), group=group)
        # Collectives need equal shapes.
        longest = max(int(length) for length in lengths)
        padded = torch.nn.functional.pad(table, (0, longest - table.shape[1]))
        tables = [torch.empty_like(padded) for _ in range(ranks)]
        torch.distributed.all_gather(tables, padded, group=group)
        whole = torch.cat([one[:, :length] for one, length in zip(tables, lengths, strict=True)], dim=1).cpu()
        return dict(zip(sorted(columns), whole, strict=True))

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors on the rank that leads; the others get none."""
        return spread_tensors.whole(tensors, self._mesh, leads=self.leads)


def _idle_row() -> Row:
    """A row of one token without pairs."""
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
