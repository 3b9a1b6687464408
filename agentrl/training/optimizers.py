"""Optimizers, and their state as plain tensors and numbers.

Invariants: every parameter is updated by exactly one optimizer; state is named after the parameter that it belongs to,
never after its place in a list, so a checkpoint survives another order of parameters; state is tensors and JSON, and
nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from agentrl.errors import ConfigError

Kind = Literal["adamw", "muon"]
ADAM_BETAS = (0.9, 0.95)
_SEPARATOR = "::"
"""Between the name of a parameter and that of its state; neither contains it."""

Named = tuple[str, torch.nn.Parameter]


class OptimizerSet:
    """One or two optimizers that act as one."""

    def __init__(self, parts: dict[str, tuple[torch.optim.Optimizer, list[str]]]) -> None:
        """Optimizers by name, each with the names of its parameters in its own order."""
        self._parts = parts

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for optimizer, _ in self._parts.values()]

    @property
    def names(self) -> dict[str, list[str]]:
        """Which parameters each optimizer has."""
        return {name: list(parameters) for name, (_, parameters) in self._parts.items()}

    def replace(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """By the same ones as accelerate wrapped them."""
        together = zip(self._parts.items(), optimizers, strict=True)
        self._parts = {name: (wrapped, names) for (name, (_, names)), wrapped in together}

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def tensors(self) -> dict[str, Tensor]:
        """All state that is tensors."""
        found: dict[str, Tensor] = {}
        for optimizer, names in self._parts.values():
            state = optimizer.state_dict()["state"]
            for index, kept in state.items():
                for key, value in kept.items():
                    found[f"{names[index]}{_SEPARATOR}{key}"] = _as_tensor(value).detach().contiguous()
        return found

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Raises ConfigError if the state belongs to other parameters."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            parameter, _, key = name.rpartition(_SEPARATOR)
            by_parameter.setdefault(parameter, {})[key] = value
        strange = by_parameter.keys() - {name for _, names in self._parts.values() for name in names}
        if strange:
            raise ConfigError(f"The optimizer's state has parameters that the model has not: {min(strange)}, ...")
        for optimizer, names in self._parts.values():
            whole = optimizer.state_dict()
            whole["state"] = {index: by_parameter[name] for index, name in enumerate(names) if name in by_parameter}
            optimizer.load_state_dict(whole)


def make_optimizers(
    parameters: Iterable[Named], kind: Kind, *, learning_rate: float, weight_decay: float = 0.0, embeddings: set[int]
) -> OptimizerSet:
    """`embeddings` are the ids (`id(...)`) of the parameters of input and output embeddings."""
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    if kind == "adamw":
        return OptimizerSet({"adamw": _adamw(named, learning_rate, weight_decay)})
    hidden = [one for one in named if one[1].ndim == 2 and id(one[1]) not in embeddings]
    rest = [one for one in named if not (one[1].ndim == 2 and id(one[1]) not in embeddings)]
    muon = torch.optim.Muon(
        [parameter for _, parameter in hidden],
        lr=learning_rate,
        weight_decay=weight_decay,
        # Updates as large as AdamW's, so that one learning rate serves both.
        adjust_lr_fn="match_rms_adamw",
    )
    return OptimizerSet(
        {"muon": (muon, [name for name, _ in hidden]), "adamw": _adamw(rest, learning_rate, weight_decay)}
    )


def _adamw(named: Sequence[Named], rate: float, decay: float) -> tuple[torch.optim.Optimizer, list[str]]:
    parameters = [parameter for _, parameter in named]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=ADAM_BETAS, weight_decay=decay)
    return optimizer, [name for name, _ in named]


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)
