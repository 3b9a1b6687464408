"""The model that is trained: loading, saving, and log-probs of pairs.

Invariants:
- there is no dropout: the trainer computes the model that engines sample from;
- log-probs are those of log softmax(logits / temperature) in at least float32;
- an architecture that a packed tree would corrupt is computed branch by branch; an unknown one is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.training.batch import Array
from agentrl.training.model_check import TREE_MODELS, trainable
from agentrl.training.packing import Layout, Row

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a model besides its configuration and weights; they are copied unchanged."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Rows as tensors, padded to the longest; pairs of all rows one after another."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    """[rows, 1, length, length]: the keys that each query sees."""
    asked_row: Tensor
    asked_at: Tensor
    temperatures: Tensor
    asked: Tensor
    """For each pair: index into the asked positions."""
    target: Tensor
    record: Tensor
    behaviour: Tensor
    version: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The model's output for each pair."""

    log_probs: Tensor
    entropy: Tensor
    """Entropy of the distribution of the token; without gradient."""


def load_model(directory: Path, *, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Raises ConfigError if the directory has no model that can be trained."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} is not a model: it has no config.json.")
    with _quietly():
        try:
            # safetensors only: reading never unpickles.
            model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation="sdpa", use_safetensors=True, local_files_only=True
            )
        except (OSError, ValueError, KeyError) as broken:
            raise ConfigError(f"The model in {directory} cannot be loaded: {broken}.") from broken
    layout_of(model)
    model.train(False)
    return cast(transformers.PreTrainedModel, model)


def layout_of(model: transformers.PreTrainedModel) -> Layout:
    """How rows of this model may be packed. Raises ConfigError for an architecture in neither list."""
    kind = str(model.config.model_type)
    trainable(kind)
    layers = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kind in TREE_MODELS:
        windows = getattr(model.config, "use_sliding_window", True) and getattr(model.config, "sliding_window", None)
        return "linear" if windows or layers != {"full_attention"} else "tree"
    return "linear"


def read_companions(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files by name."""
    return {name: (directory / name).read_bytes() for name in COMPANIONS if (directory / name).is_file()}


def save_model(model: transformers.PreTrainedModel, directory: Path, *, companions: Mapping[str, bytes]) -> list[str]:
    """Writes configuration, weights and the tokenizer's files; returns the names of all files."""
    directory.mkdir(parents=True, exist_ok=True)
    with _quietly():
        # One file of any size, because engines load it whole.
        model.save_pretrained(directory, max_shard_size="1TB")
    for name, content in companions.items():
        (directory / name).write_bytes(content)
    return sorted(file.name for file in directory.iterdir() if file.is_file())


def collate(rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """`dtype` is that of log-probs: float32, or float64 where exactness is tested."""
    length = max(map(len, rows))
    ids = np.zeros((len(rows), length), dtype=np.int64)
    positions = np.zeros((len(rows), length), dtype=np.int64)
    # A padding token sees only itself: a query that sees no key would give not-a-number.
    ends = np.tile(np.arange(1, length + 1), (len(rows), 1))
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row.ids
        positions[index, : len(row)] = row.positions
        ends[index, : len(row)] = row.ends
    at = np.arange(length)
    mask = (at[None, :] <= at[:, None]) & (at[:, None] < ends[:, None, :])
    asked = [len(row.asked_at) for row in rows]
    first_asked = np.cumsum([0, *asked[:-1]])

    def joined(arrays: Iterable[Array], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(np.concatenate(list(arrays))).to(device=device, dtype=dtype)

    return MicroBatch(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        mask=torch.from_numpy(mask[:, None]).to(device),
        asked_row=torch.from_numpy(np.repeat(np.arange(len(rows)), asked)).to(device),
        asked_at=joined(row.asked_at for row in rows),
        temperatures=joined((row.temperatures for row in rows), dtype),
        asked=joined(row.pairs.asked + first for row, first in zip(rows, first_asked, strict=True)),
        target=joined(row.pairs.target for row in rows),
        record=joined(row.pairs.record for row in rows),
        behaviour=joined((row.pairs.behaviour for row in rows), dtype),
        version=joined(row.pairs.version for row in rows),
    )


def score(model: torch.nn.Module, batch: MicroBatch, layout: Layout) -> Scored:
    """The log-prob of each pair's token after its own ancestors."""
    logits = _asked_logits(model, batch, layout)
    spread = torch.log_softmax(logits / batch.temperatures[:, None], dim=-1)
    with torch.no_grad():
        entropy = -(spread.exp() * spread).sum(dim=-1)
    return Scored(spread[batch.asked, batch.target], entropy[batch.asked])


def _asked_logits(model: torch.nn.Module, batch: MicroBatch, layout: Layout) -> Tensor:
    inner: Any = getattr(model, "module", model)  # data parallelism wraps it
    if layout == "linear":
        # Such models build their own masks, and some transform logits after the head. Padding is at the end, where no
        # earlier token sees it.
        whole = model(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits
        return _at_least_float32(whole[batch.asked_row, batch.asked_at])
    hidden = inner.get_decoder()(
        input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    # The head is the widest matrix, so only the asked positions go through it.
    return _at_least_float32(inner.get_output_embeddings()(hidden[batch.asked_row, batch.asked_at]))


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars, which would fill the logs."""
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
