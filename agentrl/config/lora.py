"""Defines the section `training.lora`: adapters that are trained instead of all weights.

Invariant: settings that contradict adapters are refused when the file is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from agentrl.config.field_types import Natural, Number, Section, Words
from agentrl.config.server_arguments import ranks_of

if TYPE_CHECKING:
    from agentrl.config.engines import Engines
    from agentrl.config.training import Training


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


def refuses_adapters(engines: Engines) -> str:
    """Why engines of this kind cannot load adapters separately from their base; empty if they can."""
    if engines.kind == "sglang":
        return "" if ranks_of(engines.args) else "SGLang servers with --dp-size or --pp-size load whole weights only"
    return "" if engines.kind == "embedded" else f"engines of the kind {engines.kind} load whole weights only"


def problems_of_publication(training: Training, engines: Engines) -> Iterator[tuple[tuple[str, ...], str]]:
    if training.publication.adapters == "apart":
        path = ("training", "publication", "adapters")
        if not training.lora.rank:
            yield path, "is apart, and no adapters are trained: write training.lora, such as lora: {rank: 16}"
        elif why := refuses_adapters(engines):
            yield path, f"is apart, but {why}: use merged, or auto"


def problems_of(training: Training) -> Iterator[tuple[tuple[str, ...], str]]:
    lora = training.lora
    path = ("training", "lora")
    if not lora.rank:
        if lora.targets or lora.alpha:
            yield path, "has no rank: write one, such as rank: 16"
        return
    if training.advantage == "gae":
        yield (
            path,
            "cannot be combined with training.advantage: gae, because all weights of its critic would be trained",
        )
    if training.reference != "none" and training.warmup.steps:
        yield (
            path,
            "cannot be combined with training.warmup and training.reference: the reference would be the model before "
            "the warm-up, because it is the model without adapters",
        )
