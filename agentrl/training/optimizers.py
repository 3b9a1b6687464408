"""Optimizers, and their state as plain tensors and numbers.

Invariants: every parameter is updated by exactly one optimizer; state is named after the parameter that it belongs to,
never after its place in a list, so a checkpoint survives another order of parameters; state is tensors and JSON, and
nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.errors import ConfigError
from agentrl.training.spread_tensors import like

Kind = Literal["adamw", "muon"]
_SEPARATOR = "::"
"""Between the name of a parameter and that of its state; neither contains it."""

Named = tuple[str, torch.nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """The settings of the moving averages of gradients and their squares."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8


USUAL = AdamW()


class OptimizerSet:
    """One or two optimizers that act as one."""

    def __init__(
        self, parts: dict[str, tuple[torch.optim.Optimizer, list[str]]], elsewhere: dict[str, list[str]]
    ) -> None:
        """Optimizers by name, each with the names of its parameters in its own order, including parameters on other
        stages of a pipeline."""
        self._parts = parts
        self._elsewhere = elsewhere

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for optimizer, _ in self._parts.values()]

    @property
    def names(self) -> dict[str, list[str]]:
        """Which parameters each optimizer has, on all ranks together."""
        return {name: parameters + self._elsewhere[name] for name, (_, parameters) in self._parts.items()}

    def replace(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Replaces the optimizers by their wrapped versions from accelerate."""
        together = zip(self._parts.items(), optimizers, strict=True)
        self._parts = {name: (wrapped, names) for (name, (_, names)), wrapped in together}

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    @property
    def learning_rate(self) -> float:
        return float(self.optimizers[0].param_groups[0]["lr"])

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def tensors(self) -> dict[str, Tensor]:
        """The part of the state that is tensors."""
        tensors: dict[str, Tensor] = {}
        for optimizer, names in self._parts.values():
            state = optimizer.state_dict()["state"]
            for index, kept in state.items():
                for key, value in kept.items():
                    tensors[f"{names[index]}{_SEPARATOR}{key}"] = _as_tensor(value).detach().contiguous()
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Raises ConfigError if the state belongs to other parameters."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            parameter, _, key = name.rpartition(_SEPARATOR)
            by_parameter.setdefault(parameter, {})[key] = value
        strange = by_parameter.keys() - {name for names in self.names.values() for name in names}
        if strange:
            raise ConfigError(f"The optimizer's state has parameters that the model has not: {min(strange)}, ...")
        for optimizer, names in self._parts.values():
            whole = optimizer.state_dict()
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            whole["state"] = {
                index: {key: like(parameters[index], value) for key, value in by_parameter[name].items()}
                for index, name in enumerate(names)
                if name in by_parameter
            }
            optimizer.load_state_dict(whole)


def optimizers_for(
    model: transformers.PreTrainedModel,
    kind: Kind,
    *,
    learning_rate: float,
    adamw: AdamW,
    weight_decay: float,
    decay_all: bool,
) -> OptimizerSet:
    untyped: Any = model
    ends = (untyped.get_input_embeddings(), untyped.get_output_embeddings())
    return make_optimizers(
        model.named_parameters(),
        kind,
        learning_rate=learning_rate,
        adamw=adamw,
        weight_decay=weight_decay,
        decay_all=decay_all,
        embeddings={id(parameter) for module in ends for parameter in module.parameters()},
    )


def make_optimizers(
    parameters: Iterable[Named],
    kind: Kind,
    *,
    learning_rate: float,
    embeddings: set[int],
    adamw: AdamW = USUAL,
    weight_decay: float = 0.0,
    decay_all: bool = False,
) -> OptimizerSet:
    """`embeddings` are the ids (`id(...)`) of the parameters of input and output embeddings. Embeddings, norms and
    biases decay only with `decay_all`, because their size does not measure complexity."""
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    inner = {name for name, parameter in named if parameter.ndim >= 2 and id(parameter) not in embeddings}
    decays = {name for name, _ in named} if decay_all else inner
    hidden = {name for name, one in named if kind == "muon" and name in inner and one.ndim == 2}
    here = [(name, parameter) for name, parameter in named if not parameter.is_meta]
    rest = [(name, parameter) for name, parameter in here if name not in hidden]
    parts = {"adamw": _adamw(rest, adamw, learning_rate, weight_decay, decays)}
    elsewhere = {"adamw": [name for name, one in named if one.is_meta and name not in hidden]}
    if kind == "muon":
        parts = {"muon": _muon([one for one in here if one[0] in hidden], learning_rate, weight_decay), **parts}
        elsewhere["muon"] = [name for name, one in named if one.is_meta and name in hidden]
    return OptimizerSet(parts, elsewhere)


def _muon(named: Sequence[Named], rate: float, decay: float) -> tuple[torch.optim.Optimizer, list[str]]:
    optimizer = torch.optim.Muon(
        [parameter for _, parameter in named],
        lr=rate,
        weight_decay=decay,
        # Updates as large as AdamW's, so that one learning rate serves both.
        adjust_lr_fn="match_rms_adamw",
    )
    return optimizer, [name for name, _ in named]


def _adamw(
    named: Sequence[Named], settings: AdamW, rate: float, decay: float, decays: set[str]
) -> tuple[torch.optim.Optimizer, list[str]]:
    # One call can update only weights that are spread over the same ranks.
    groups: dict[tuple[bool, object], list[Named]] = {}
    for name, parameter in named:
        spread = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
        groups.setdefault((bool(decay) and name in decays, spread), []).append((name, parameter))
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameter for _, parameter in group], "weight_decay": decay if shrinks else 0.0}
            for (shrinks, _), group in groups.items()
        ],
        lr=rate,
        betas=settings.betas,
        eps=settings.eps,
        # The other implementations make temporary copies of all weights, or start a kernel for each tensor.
        fused=True,
    )
    return optimizer, [name for group in groups.values() for name, _ in group]


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)
