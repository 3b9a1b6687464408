"""The precision of a step's computation, and the scale of the loss that float16 needs.

The smallest numbers of float16 are about 6e-8, and most gradients of single tokens are smaller. So the loss is
multiplied by a large number before the backward pass, and the gradient is divided by it before it is used.

Invariants:
- weights, their gradients and the optimizer state are float32 in each precision;
- the scale is a power of two, so it changes no bit of a gradient that neither overflows nor underflows;
- a gradient that overflowed moves no weight: it is computed again with half the scale, and that is counted;
- a batch whose gradient overflows with every scale does not change the scale for later batches;
- all ranks have the same scale, because they decide by a norm of the gradient that all of them know.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["float32", "bfloat16", "float16"]

FIRST_SCALE = 2.0**16
HIGHEST_SCALE = 2.0**24
STEPS_BEFORE_GROWTH = 1_000
"""Optimizer steps without an overflow, after which the scale is doubled."""


class LossScale:
    """The factor of the loss: 1 in every precision except float16."""

    def __init__(self, precision: Precision) -> None:
        self._moves = precision == "float16"
        self.value = FIRST_SCALE if self._moves else 1.0
        self.overflows = 0
        """Overflows since the trainer was started."""
        self._steps = 0
        """Optimizer steps since the last overflow or growth."""

    @property
    def can_fall(self) -> bool:
        return self._moves and self.value > 1

    def fall(self) -> None:
        """A gradient overflowed."""
        self.value /= 2
        self.overflows += 1
        self._steps = 0

    def stepped(self) -> None:
        """An optimizer step used a gradient that was finite."""
        self._steps += 1
        if self._moves and self._steps >= STEPS_BEFORE_GROWTH:
            self.value, self._steps = min(2 * self.value, HIGHEST_SCALE), 0

    def metrics(self) -> dict[str, float]:
        return {"loss_scale": self.value, "loss_scale_overflows": float(self.overflows)} if self._moves else {}


def finite(*lengths: float) -> bool:
    return all(map(math.isfinite, lengths))


def accelerated(precision: Precision) -> str:
    """The precision that accelerate applies. It supports float16 only on GPUs, with a scale of its own."""
    return "bf16" if precision == "bfloat16" else "no"


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """In this context matrix products and attention are computed in 16 bits, if the precision has 16 bits."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def apply(module: torch.nn.Module, device: torch.device, precision: Precision) -> None:
    """Makes the forward pass use float16, if that is the precision; accelerate does this for bfloat16."""
    if precision == "float16":
        inner = module.forward

        @functools.wraps(inner)
        def forward(*arguments: Any, **named: Any) -> Any:
            with autocast(device, precision):
                return inner(*arguments, **named)

        module.forward = forward
