"""The model that is trained: loaded from a directory in the layout of Hugging Face, asked for log-probs of pairs.

Invariants: no dropout, ever (the trainer computes the model that engines sample from); log-probs are those of
log softmax(logits / temperature) in float32 at least; an architecture that a packed tree would corrupt is computed
branch by branch, and one that nobody has looked at is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.training.packing import Layout, Row

TREE_MODELS = frozenset({"llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Full softmax attention in every layer (unless their configuration says otherwise), logits straight from the head."""
LINEAR_MODELS = frozenset({"falcon_h1", "gemma2", "gemma3_text", "gpt_oss", "lfm2", "mamba2", "minimax", "qwen3_next"})
"""A state, a convolution or a window runs along the row: only whole branches are right."""
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
"""What belongs to a model beside its configuration and weights; copied as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Rows as tensors, padded to the longest. Pairs of all rows stand one after another."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    """[rows, 1, length, length]: which keys each query sees."""
    asked_row: Tensor
    asked_at: Tensor
    temperatures: Tensor
    asked: Tensor
    """Of each pair: which of the asked positions is its own."""
    target: Tensor
    record: Tensor
    behaviour: Tensor
    version: Tensor

    @property
    def pairs(self) -> int:
        return int(self.target.numel())


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """What the model says of each pair."""

    log_probs: Tensor
    entropy: Tensor
    """Of the distribution that the token was drawn from; no gradient."""


def load_model(directory: Path, *, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Raises ConfigError if there is no model there that can be trained."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory} holds no model: it has no config.json.")
    with _quietly():
        try:
            # safetensors only: nothing that is read is ever unpickled.
            model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation="sdpa", use_safetensors=True, local_files_only=True
            )
        except (OSError, ValueError, KeyError) as broken:
            raise ConfigError(f"The model in {directory} cannot be loaded: {broken}.") from broken
    layout_of(model)
    model.train(False)
    return cast(transformers.PreTrainedModel, model)


def layout_of(model: transformers.PreTrainedModel) -> Layout:
    """How rows for this model may be packed. Raises ConfigError for an architecture that is in neither list."""
    kind = str(model.config.model_type)
    layers = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kind in TREE_MODELS:
        windows = getattr(model.config, "use_sliding_window", True) and getattr(model.config, "sliding_window", None)
        return "linear" if windows or layers != {"full_attention"} else "tree"
    if kind in LINEAR_MODELS:
        return "linear"
    raise ConfigError(
        f"Nobody has said yet how trajectories are packed for models of the type {kind!r}.",
        hint=f"Known are: {', '.join(sorted(TREE_MODELS | LINEAR_MODELS))}.",
    )


def read_companions(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files, by name."""
    return {name: (directory / name).read_bytes() for name in COMPANIONS if (directory / name).is_file()}


def save_model(model: transformers.PreTrainedModel, directory: Path, *, companions: Mapping[str, bytes]) -> list[str]:
    """Write configuration and weights, beside the tokenizer's files; the names of all files."""
    directory.mkdir(parents=True, exist_ok=True)
    with _quietly():
        # One file, whatever the size: a manifest names it, and engines load it whole.
        model.save_pretrained(directory, max_shard_size="1TB")
    for name, content in companions.items():
        (directory / name).write_bytes(content)
    return sorted(file.name for file in directory.iterdir() if file.is_file())


def collate(rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """`dtype` is that of log-probs: float32, or float64 where exactness is tested."""
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    positions = torch.zeros(len(rows), length, dtype=torch.int64)
    # A token of the padding sees itself only: a query that sees nothing would be not a number.
    ends = torch.arange(1, length + 1).repeat(len(rows), 1)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row.ids)
        positions[index, : len(row)] = torch.tensor(row.positions)
        ends[index, : len(row)] = torch.tensor(row.ends)
    at = torch.arange(length)
    mask = (at[None, :] <= at[:, None]) & (at[:, None] < ends[:, None, :])
    first_asked = [0]
    for row in rows:
        first_asked.append(first_asked[-1] + len(row.asked))
    asked = [first + at for first, row in zip(first_asked, rows, strict=False) for at in row.pairs.asked]
    wanted = [(index, at, heat) for index, row in enumerate(rows) for at, heat in row.asked]
    pairs = [row.pairs for row in rows]
    return MicroBatch(
        ids=ids.to(device),
        positions=positions.to(device),
        mask=mask[:, None].to(device),
        asked_row=torch.tensor([index for index, _, _ in wanted], device=device),
        asked_at=torch.tensor([at for _, at, _ in wanted], device=device),
        temperatures=torch.tensor([heat for _, _, heat in wanted], dtype=dtype, device=device),
        asked=torch.tensor(asked, device=device),
        target=torch.tensor([token for one in pairs for token in one.target], device=device),
        record=torch.tensor([record for one in pairs for record in one.record], device=device),
        behaviour=torch.tensor([value for one in pairs for value in one.behaviour], dtype=dtype, device=device),
        version=torch.tensor([version for one in pairs for version in one.version], device=device),
    )


def score(model: torch.nn.Module, batch: MicroBatch, layout: Layout) -> Scored:
    """The log-prob of each pair's token under its own ancestors."""
    logits = _asked_logits(model, batch, layout)
    spread = torch.log_softmax(logits / batch.temperatures[:, None], dim=-1)
    with torch.no_grad():
        entropy = -(spread.exp() * spread).sum(dim=-1)
    return Scored(spread[batch.asked, batch.target], entropy[batch.asked])


def _asked_logits(model: torch.nn.Module, batch: MicroBatch, layout: Layout) -> Tensor:
    inner: Any = getattr(model, "module", model)  # as wrapped by data parallelism
    if layout == "linear":
        # Such models make their own masks, and some bend their logits after the head. Padding stands at the end,
        # where nothing that comes before can see it.
        whole = model(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits
        return _at_least_float32(whole[batch.asked_row, batch.asked_at])
    hidden = inner.get_decoder()(
        input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    # The head is the widest matrix: only what is asked for goes through it.
    return _at_least_float32(inner.get_output_embeddings()(hidden[batch.asked_row, batch.asked_at]))


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without progress bars: they are for people who wait, and this goes into logs."""
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
