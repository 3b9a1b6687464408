"""Defines the section `training.lora`: adapters that are trained instead of all weights.

Invariant: settings that contradict adapters are refused when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from agentrl.config.field_types import Natural, Number, Section, Words


class Lora(Section):
    """Low-rank adapters (LoRA): two small matrices beside each linear layer are trained, and the weights of the model
    stay as they are."""

    rank: Natural = 0
    """The rank of the adapters; 0: all weights are trained."""
    alpha: Annotated[Number, Field(ge=0, le=1_000_000)] = 0.0
    """An adapter's output is scaled by `alpha / rank`; 0: `alpha` is twice the rank."""
    targets: Words = ()
    """The names of the linear layers that get adapters, such as `q_proj`; empty: all within the decoder's layers."""

    @model_validator(mode="before")
    @classmethod
    def _no_dropout(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "dropout" not in value:
            return value
        if value["dropout"] == 0:
            return {name: one for name, one in value.items() if name != "dropout"}
        raise ValueError("must not have dropout: the trainer computes the model that engines sample from")
