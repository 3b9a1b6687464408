"""Builds a small model for a run that names no model.

Invariant: the same texts and seed give the same directory, byte for byte, which Hugging Face libraries can read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from agentrl.engines.embedded.architecture import Architecture
from agentrl.engines.embedded.tiny_words import build_words
from agentrl.engines.safetensors_layout import ONE_FILE


def build_tiny(path: Path | str, texts: Iterable[str], seed: int, **changes: Any) -> None:
    """Writes a model of 0.44 M parameters with random weights and a tokenizer trained on `texts`.

    `changes` replace entries of `config.json`.
    """
    directory = Path(path)
    config = build_words(directory, texts, **changes)
    shapes = msgspec.convert(config, Architecture).shapes()
    save_file(_tensors(shapes, config["initializer_range"], seed), directory / ONE_FILE, {"format": "pt"})


def _tensors(shapes: dict[str, tuple[int, ...]], deviation: float, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors like those of transformers: matrices from a normal distribution, scales of norms one."""
    chance = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.empty(shape).normal_(0.0, deviation, generator=chance)
        for name, shape in sorted(shapes.items())
    }
