"""Tensors that are spread over ranks: their norm, and how they are gathered.

Invariants:
- a gathered tensor has the same bits, however it was spread;
- one tensor at a time is gathered, because a device has no room for all;
- names and shapes travel as JSON, and nothing is ever unpickled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from agentrl.training.mesh import Mesh
from agentrl.training.scorers import Scorer

# The library warns about tensors that are gathered in several exchanges, which is intended here.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """Spreads a whole tensor like a parameter of the same shape. Each rank takes its part of the tensor that it has
    read."""
    if not isinstance(parameter, DTensor) or parameter.shape != whole.shape or isinstance(whole, DTensor):
        return whole
    spread = distribute_tensor(
        whole.to(parameter.device_mesh.device_type), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    return spread.to(parameter.device)


def own(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensors: Mapping[str, Tensor], mesh: Mesh, *, leads: bool) -> dict[str, Tensor]:
    """Whole tensors on the rank that leads; the others get none. A call of all ranks."""
    found: dict[str, Tensor] = {}
    # Only the first rank of a stage keeps the gathered tensor, and sends it to the rank that leads.
    first = all(mesh.place(name) == 0 for name in ("replicate", "expert", "shard", "context", "tensor"))
    for name, tensor in tensors.items():
        if tensor.is_meta:
            continue
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if first:
            found[name] = full if full is tensor and leads else full.to("cpu")
    if mesh.size("pipeline") > 1 and first:
        _gather_stages(found, mesh.group("pipeline"))
    return found if leads else {}


def _gather_stages(found: dict[str, Tensor], stages: ProcessGroup) -> None:
    """Sends tensors of other stages to the rank that leads, unless it has them."""
    device = torch.device("cuda" if torch.distributed.get_backend(stages) == "nccl" else "cpu")
    for stage in range(1, stages.size()):
        if stages.rank() == stage:
            _send(found, stages, device)
        elif stages.rank() == 0:
            for name, tensor in _received(stage, stages, device).items():
                found.setdefault(name, tensor)


def _send(tensors: Mapping[str, Tensor], stages: ProcessGroup, device: torch.device) -> None:
    shapes = {name: (list(one.shape), str(one.dtype).removeprefix("torch.")) for name, one in tensors.items()}
    content = bytearray(msgspec.json.encode(shapes))
    for value in (torch.tensor(len(content)), torch.frombuffer(content, dtype=torch.uint8), *tensors.values()):
        torch.distributed.send(value.detach().to(device).contiguous(), group=stages, group_dst=0)


def _received(stage: int, stages: ProcessGroup, device: torch.device) -> dict[str, Tensor]:
    def receive(tensor: Tensor) -> Tensor:
        torch.distributed.recv(tensor, group=stages, group_src=stage)
        return tensor.to("cpu")

    length = int(receive(torch.zeros((), dtype=torch.int64, device=device)))
    content = receive(torch.empty(length, dtype=torch.uint8, device=device)).numpy().tobytes()
    shapes = msgspec.json.decode(content, type=dict[str, tuple[list[int], str]])
    return {
        name: receive(torch.empty(shape, dtype=getattr(torch, dtype), device=device))
        for name, (shape, dtype) in shapes.items()
    }


def clip_gradient(scorer: Scorer[Any], mesh: Mesh, longest: float, scale: float) -> float:
    """Completes the gradient, divides it by `scale`, and clips it to a length; returns the length before that."""
    named = {name: one.grad for name, one in scorer.model.named_parameters() if one.grad is not None}
    for incomplete in scorer.incomplete:
        _complete([own(named[name]) for name in incomplete.names if name in named], incomplete.complete)
    if not named:
        return _length(torch.zeros(()), mesh) / scale
    elsewhere = {name for incomplete in scorer.incomplete if not incomplete.counts for name in incomplete.names}
    parts = [own(gradient) for gradient in named.values()]
    lengths = torch.stack([one.to(parts[0].device) for one in torch._foreach_norm(parts)]).double()
    copies = [0.0 if name in elsewhere else 1 / _copies(one, mesh) for name, one in named.items()]
    shares = torch.tensor(copies, dtype=lengths.dtype, device=lengths.device)
    length = _length((lengths**2 * shares).sum(), mesh) / scale
    torch._foreach_mul_(parts, min(1.0, longest / (length + 1e-6)) / scale)
    return length


def _complete(parts: list[Tensor], complete: Callable[[Tensor], object]) -> None:
    if not parts:
        return
    row = torch.cat([part.reshape(-1) for part in parts])
    complete(row)
    for part, values in zip(parts, torch.split(row, [part.numel() for part in parts]), strict=True):
        part.copy_(values.view_as(part))


def _copies(gradient: Tensor, mesh: Mesh) -> int:
    """How many ranks of a stage have the same part."""
    ranks = mesh.sizes.ranks // mesh.size("pipeline")
    if not isinstance(gradient, DTensor):
        return ranks
    parts = 1
    for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
        parts *= 1 if isinstance(placement, Replicate) else size
    return ranks // parts


def _length(squared: Tensor, mesh: Mesh) -> float:
    if mesh.sizes.ranks > 1:
        torch.distributed.all_reduce(squared)
    return float(squared.sqrt())
