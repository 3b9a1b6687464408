"""The settings of a learner, and the result of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentrl.training.activation_checkpoints import Recompute
from agentrl.training.lora import Adapters
from agentrl.training.mesh import Sizes
from agentrl.training.optimizers import AdamW, Kind
from agentrl.training.precision import Precision
from agentrl.training.sharding import Keeping

Gathered = Literal["weights", "trained weights", "optimizers", "critic"]
"""What ranks gather: all weights or only the trained ones, optimizer state, or everything of the critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    optimizer: Kind = "adamw"
    learning_rate: float = 1e-6
    adamw: AdamW = field(default_factory=AdamW)
    weight_decay: float = 0.0
    decay_all: bool = False
    """Whether the weights of norms, biases and embeddings decay too."""
    max_gradient_norm: float = 1.0
    tokens_per_batch: int = 16_384
    """Packed tokens of one forward pass, and the longest row unless a single trajectory is longer."""
    precision: Precision = "float32"
    """The precision of the computation. Weights, their gradients and the optimizer state stay in float32."""
    recompute: Recompute = "none"
    """What the backward pass computes again; see `activation_checkpoints`."""
    compiled: bool = False
    """On a GPU: compile the layers."""
    parallel: Sizes = field(default_factory=Sizes)
    """The ranks that train together."""
    critic_rate: float = 0.0
    """The learning rate of the critic; 0: there is none."""
    adapters: Adapters | None = None
    """The adapters that are trained instead of all weights."""
    keeping: Keeping = field(default_factory=Keeping)
    """How weights that are spread over ranks are stored and gathered."""


@dataclass(frozen=True, slots=True)
class StepResult:
    applied: bool
    """False if something was not finite; then nothing was changed."""
    metrics: dict[str, float] = field(default_factory=dict)
