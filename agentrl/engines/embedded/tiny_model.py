"""Builds a small model for a run that names none.

Invariant: the same texts and seed give the same directory, byte for byte, as Hugging Face libraries read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file

from agentrl.chat.tokenizer_training import CONTROL_TOKENS, build_tokenizer
from agentrl.engines.embedded.architecture import Architecture
from agentrl.engines.embedded.tiny_config import TINY
from agentrl.engines.manifest import CONFIG_FILE
from agentrl.engines.safetensors_layout import ONE_FILE


def build_tiny(path: Path | str, texts: Iterable[str], seed: int, **changes: Any) -> None:
    """Writes a model of 0.44 M parameters with random weights and a tokenizer trained on `texts`.

    `changes` replace entries of `config.json`.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(texts)
    end = tokenizer.token_to_id("<|end|>")
    config = {**TINY, "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end, "pad_token_id": end, **changes}
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(config["max_position_embeddings"]))
    _write_json(directory / "generation_config.json", {"eos_token_id": end, "pad_token_id": end})
    _write_json(directory / CONFIG_FILE, config)
    shapes = msgspec.convert(config, Architecture).shapes()
    save_file(_tensors(shapes, config["initializer_range"], seed), directory / ONE_FILE, {"format": "pt"})


def _tensors(shapes: dict[str, tuple[int, ...]], deviation: float, seed: int) -> dict[str, torch.Tensor]:
    """As transformers would: matrices from a normal distribution, scales of norms one."""
    chance = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.empty(shape).normal_(0.0, deviation, generator=chance)
        for name, shape in sorted(shapes.items())
    }


def _tokenizer_config(longest: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "additional_special_tokens": [token for token in CONTROL_TOKENS if token != "<|end|>"],
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
