"""Any decoder of transformers whose layers are all softmax attention, over rows.

transformers calls this file's attention as the implementation `NAME`. The runs of a round are an argument of the
model's forward pass, which sees all of their tokens as one sequence. So norms, rotations, experts and the head are
those of transformers.

Invariant: a model with any other kind of layer is not computed here; see `state_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface

from agentrl.engines.embedded.decoder import Keys, scores_in_one_pass
from agentrl.engines.embedded.served_model import NO_IMAGES, Run
from agentrl.engines.embedded.slot_attention import SlotAttention
from agentrl.images.patches import Patches

NAME = "slots"
_SOFTMAX = {"full_attention", "sliding_attention"}


class Round:
    """The runs of one forward pass, and the place where each of their tokens is kept."""

    def __init__(self, kept: GrowingKeys, runs: Sequence[Run], device: torch.device) -> None:
        self.kept = kept
        self.rows = torch.tensor([run.row for run in runs for _ in range(run.size)], device=device)
        places = [at for run in runs for at in range(run.start, run.start + run.size)]
        self.positions = torch.tensor(places, device=device)
        self.attention = SlotAttention(runs, device)


class GrowingKeys(Keys):
    """Keys and values whose shape is taken from the first computed tokens."""

    def __init__(self, rows: int, positions: int) -> None:
        super().__init__([], [])
        self._rows, self._positions = rows, positions

    def of_layer(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        while len(self.keys) <= number:
            for store, like in ((self.keys, key), (self.values, value)):
                store.append(like.new_zeros(self._rows, like.shape[1], self._positions, like.shape[3]))
        return self.keys[number], self.values[number]


class AttentionModel:
    """Implements `ServedModel`."""

    processing = None

    def __init__(self, version: int, model: transformers.PreTrainedModel) -> None:
        model.set_attn_implementation(NAME)
        self.version = version
        self._model: Any = model

    @property
    def vocabulary(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    def fits(self, other: object) -> bool:
        return isinstance(other, AttentionModel) and shapes(self._model) == shapes(other._model)

    def new_rows(self, rows: int, positions: int) -> GrowingKeys:
        return GrowingKeys(rows, positions)

    def next_logits(self, kept: GrowingKeys, runs: Sequence[Run], ids: Tensor, wanted: Sequence[int]) -> Tensor:
        device: torch.device = self._model.device
        round_of = Round(kept, runs, device)
        found: Tensor = self._model(
            input_ids=ids[None].to(device),
            position_ids=round_of.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, dtype=torch.int64, device=device),
            slots=round_of,
        ).logits[0]
        return found

    def scores(
        self, sequences: Sequence[Sequence[int]], images: Mapping[int, Patches] = NO_IMAGES
    ) -> list[list[float]]:
        return scores_in_one_pass(self, sequences)


def is_attention_only(model: transformers.PreTrainedModel) -> bool:
    """Whether each layer is softmax attention that transformers computes by a replaceable function."""
    kinds = set(getattr(model.config, "layer_types", None) or _SOFTMAX)
    cache = transformers.DynamicCache(config=model.config)
    known = (transformers.cache_utils.DynamicLayer, transformers.cache_utils.DynamicSlidingWindowLayer)
    plain = all(type(layer) in known for layer in cache.layers)
    return bool(kinds <= _SOFTMAX and plain and getattr(model, "_supports_attention_backend", False))


def shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: one.shape for name, one in model.named_parameters()}


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slots: Round,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Inputs are [1, heads, tokens, width]."""
    keys, values = slots.kept.of_layer(module.layer_idx, key, value)
    keys[slots.rows, :, slots.positions] = key[0].transpose(0, 1)
    values[slots.rows, :, slots.positions] = value[0].transpose(0, 1)
    found = slots.attention(
        query[0].transpose(0, 1),
        keys,
        values,
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return found.view(1, query.shape[2], query.shape[1], -1), None


AttentionInterface.register(NAME, _attention)
