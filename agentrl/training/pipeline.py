"""Each rank along `pipeline` is a stage: it has some of the layers, and passes hidden states on to the next stage.

All stages compute the forward passes of several micro-batches before the first backward pass, so that they work at the
same time. The last stage sends the columns of pairs to all stages, and each stage computes the same loss from them.

Invariants:
- modules of other stages are on the device `meta`, under the same names as on their stage;
- a stage passes micro-batches on in the same order in both directions;
- a weight that the first and the last stage share has one gradient: the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from agentrl.training.mesh import Mesh
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.policy_model import layers_of
from agentrl.training.scorers import Incomplete, Scorer

AT_ONCE = 2
"""Micro-batches under way per stage. More of them keep stages busier and need more memory."""


def apply(scorer: Scorer[Any], mesh: Mesh) -> None:
    link = _Link(mesh.group("pipeline"))
    untyped: Any = scorer.model
    embedding, head, norm = untyped.get_input_embeddings(), untyped.get_output_embeddings(), untyped.get_decoder().norm
    first, last = link.stage == 0, link.stage == link.stages - 1
    left_out = _other_layers(scorer, link)
    for layer in left_out:
        layer.forward = _passed_on
    if not first:
        embedding.forward = _entering(link, untyped.get_decoder().config.hidden_size, untyped.dtype)
    if not last:
        norm.forward = _passed_on
        left_out.append(norm)
    scorer.forward = _scoring(scorer, link) if last else _sending(scorer, link)  # type: ignore[method-assign]
    if embedding.weight is head.weight and (first or last):
        name = next(name for name, one in scorer.model.named_parameters() if one is embedding.weight)
        scorer.incomplete.append(Incomplete([name], link.add_at_ends, counts=first))
    else:
        left_out += [module for module, here in ((embedding, first), (head, last)) if not here]
    _leave_out(left_out)


def _other_layers(scorer: Scorer[Any], link: _Link) -> list[Any]:
    layers = list(layers_of(scorer.model))
    bounds = [len(layers) * stage // link.stages for stage in (link.stage, link.stage + 1)]
    return [layer for at, layer in enumerate(layers) if not bounds[0] <= at < bounds[1]]


def _passed_on(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states


def _leave_out(modules: Sequence[torch.nn.Module]) -> None:
    known: dict[int, torch.nn.Parameter] = {}
    for module in (part for whole in modules for part in whole.modules()):
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                nothing = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                empty = torch.nn.Parameter(nothing, requires_grad=parameter.requires_grad)
                module.register_parameter(name, known.setdefault(id(parameter), empty))


class _Link:
    """The connection to the other stages."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.stage, self.stages = group.rank(), group.size()
        self._under_way: list[tuple[Any, Tensor]] = []

    def send(self, value: Tensor, to: int) -> None:
        """Sends without waiting for the other stage."""
        value = value.contiguous()
        self._under_way.append((torch.distributed.isend(value, group=self.group, group_dst=to), value))

    def settle(self) -> None:
        """Waits until all that was sent has arrived."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()

    def receive(self, like: Tensor, source: int) -> Tensor:
        torch.distributed.recv(like, group=self.group, group_src=source)
        return like

    def announced(self, table: Tensor) -> Tensor:
        """Broadcasts the result of the last stage to all stages."""
        torch.distributed.broadcast(table, group=self.group, group_src=self.stages - 1)
        self.settle()
        return table

    def add_at_ends(self, gradient: Tensor) -> None:
        """Gives the first and the last stage the sum of their gradients."""
        self.settle()
        other = self.stages - 1 - self.stage
        if self.stage:
            self.send(gradient, other)
            self.settle()
            self.receive(gradient, other)
        else:
            gradient += self.receive(torch.empty_like(gradient), other)
            self.send(gradient, other)
            self.settle()


def _entering(link: _Link, width: int, dtype: torch.dtype) -> Any:
    def forward(ids: Tensor) -> Tensor:
        anchor = torch.zeros((), dtype=dtype, device=ids.device, requires_grad=torch.is_grad_enabled())
        tensor: Tensor = _Enter.apply(anchor, (*ids.shape, width), link)  # type: ignore[no-untyped-call]
        return tensor

    return forward


def _sending(scorer: Scorer[Any], link: _Link) -> Any:
    def forward(batches: Sequence[MicroBatch]) -> list[Any]:
        passed: list[Tensor] = []
        for batch in batches:
            # Received as float32, whatever the precision of the computation.
            hidden = scorer.decoded(batch).to(scorer.model.dtype)
            link.send(hidden.detach(), link.stage + 1)
            passed.append(hidden)
        sizes = [len(batch.asked) for batch in batches]
        shape = len(scorer.columns._fields), sum(sizes)
        dtype = torch.promote_types(scorer.model.dtype, torch.float32)
        table = link.announced(torch.empty(shape, dtype=dtype, device=passed[0].device))
        return [
            scorer.columns(_Leave.apply(hidden, first, link), *others)  # type: ignore[no-untyped-call]
            for hidden, first, *others in zip(passed, *(row.split(sizes) for row in table), strict=True)
        ]

    return forward


def _scoring(scorer: Scorer[Any], link: _Link) -> Any:
    def forward(batches: Sequence[MicroBatch]) -> list[Any]:
        found = [scorer.scored(batch) for batch in batches]
        columns = [torch.cat([one.detach() for one in column]) for column in zip(*found, strict=True)]
        dtype = torch.promote_types(scorer.model.dtype, torch.float32)
        link.announced(torch.stack(columns).to(dtype))
        return found

    return forward


class _Enter(torch.autograd.Function):
    """Receives hidden states from the stage before, which gets their gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, shape: tuple[int, ...], link: _Link) -> Tensor:
        ctx.link = link
        return link.receive(anchor.new_empty(shape), link.stage - 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.link.send(gradients[0], ctx.link.stage - 1)
        return torch.zeros((), dtype=gradients[0].dtype, device=gradients[0].device), None, None


class _Leave(torch.autograd.Function):
    """A column that later stages computed from hidden states of this stage."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, column: Tensor, link: _Link) -> Tensor:
        ctx.link, ctx.shape = link, hidden.shape
        return column.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.link.receive(gradients[0].new_empty(ctx.shape), ctx.link.stage + 1), None, None
