"""Builds the words of a small model: its tokenizer and its configuration, without weights. It imports no torch.

Invariant: the same texts give the same files, byte for byte, which Hugging Face libraries can read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.chat.tokenizer_training import CONTROL_TOKENS, build_tokenizer
from agentrl.engines.embedded.tiny_config import TINY
from agentrl.engines.manifest import CONFIG_FILE


def build_words(directory: Path, texts: Iterable[str], **changes: Any) -> dict[str, Any]:
    """Writes the files and returns the configuration. `changes` replace entries of `config.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(texts)
    end = tokenizer.token_to_id("<|end|>")
    config = {**TINY, "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end, "pad_token_id": end, **changes}
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(config["max_position_embeddings"]))
    _write_json(directory / "generation_config.json", {"eos_token_id": end, "pad_token_id": end})
    _write_json(directory / CONFIG_FILE, config)
    return config


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
