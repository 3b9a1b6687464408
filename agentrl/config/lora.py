"""Finds the settings that contradict adapters (`training.lora`).

Invariant: they are refused when the file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.engines import Engines
from agentrl.config.server_arguments import ranks_of
from agentrl.config.training import Training


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
