"""The forward pass over slots: many sequences at different places in one call, keys and values kept.

Invariants: the result for a token depends on its own sequence only, not on its slot, on other sequences of the batch,
or on how the sequence was cut into pieces; everything is computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.engines.embedded.architecture import Architecture

DENSE_SHARE = 0.5
"""From this share of busy rows, attention runs over all rows in place instead of over gathered copies."""


class Layer(NamedTuple):
    """One decoder layer, with the matrices that are applied to the same input in one."""

    input_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor
    """Scale of every query and key head, [heads + kv_heads, head_dim]."""
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Model:
    """One version of the weights; immutable."""

    version: int
    architecture: Architecture
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor


class Run(NamedTuple):
    """A piece of one sequence: `size` tokens of row `row` from position `start` on."""

    row: int
    start: int
    size: int


@dataclass(slots=True)
class Cache:
    """Keys and values of every row, [rows, kv_heads, positions, head_dim] for each layer."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, architecture: Architecture, rows: int, positions: int) -> Cache:
        shape = (rows, architecture.num_key_value_heads, positions, architecture.head_dim)
        layers = range(architecture.num_hidden_layers)
        return cls([torch.zeros(shape) for _ in layers], [torch.zeros(shape) for _ in layers])

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        for store in (*self.keys, *self.values):
            store[target, :, :count] = store[source, :, :count]


class Rotation(NamedTuple):
    """The rotary embedding of every position, [positions, 1, head_dim]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, architecture: Architecture, positions: int) -> Rotation:
        wide = architecture.head_dim
        frequencies = 1.0 / (architecture.theta ** (torch.arange(0, wide, 2, dtype=torch.int64).float() / wide))
        angles = torch.outer(torch.arange(positions).float(), frequencies)
        both = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return cls(both.cos(), both.sin())

    def apply(self, heads: Tensor, positions: Tensor) -> Tensor:
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return heads * self.cos[positions] + turned * self.sin[positions]


def assemble(tensors: Mapping[str, Tensor], architecture: Architecture, version: int) -> Model:
    """A model from tensors by their Hugging Face names; names and shapes were checked before."""

    def get(name: str) -> Tensor:
        return tensors[f"{name}.weight"].to(torch.float32)

    layers = []
    for number in range(architecture.num_hidden_layers):
        at = f"model.layers.{number}"
        scales = [get(f"{at}.self_attn.q_norm").expand(architecture.num_attention_heads, -1)]
        scales.append(get(f"{at}.self_attn.k_norm").expand(architecture.num_key_value_heads, -1))
        layers.append(
            Layer(
                input_norm=get(f"{at}.input_layernorm"),
                qkv=torch.cat([get(f"{at}.self_attn.{part}_proj") for part in ("q", "k", "v")]),
                qk_norm=torch.cat(scales),
                o=get(f"{at}.self_attn.o_proj"),
                post_norm=get(f"{at}.post_attention_layernorm"),
                gate_up=torch.cat([get(f"{at}.mlp.{part}_proj") for part in ("gate", "up")]),
                down=get(f"{at}.mlp.down_proj"),
            )
        )
    embedding = get("model.embed_tokens")
    head = embedding if architecture.tie_word_embeddings else get("lm_head")
    return Model(version, architecture, embedding, tuple(layers), get("model.norm"), head)


class Batch:
    """The runs of one forward pass, and where each of their tokens is."""

    def __init__(self, architecture: Architecture, runs: Sequence[Run]) -> None:
        """Runs of one token come first: they share one call of attention."""
        self.rows = torch.tensor([run.row for run in runs for _ in range(run.size)])
        self.positions = torch.tensor([at for run in runs for at in range(run.start, run.start + run.size)])
        self.attention = _Attention(architecture, runs)


def forward(model: Model, cache: Cache, rotation: Rotation, tokens: Tensor, batch: Batch) -> Tensor:
    """The last hidden state of every token of the batch, [tokens, hidden]; the cache is extended on the way."""
    shape, rows, positions = model.architecture, batch.rows, batch.positions
    heads, kv_heads, eps = shape.num_attention_heads, shape.num_key_value_heads, shape.rms_norm_eps
    x = model.embedding[tokens]
    for number, layer in enumerate(model.layers):
        qkv = functional.linear(_norm(x, layer.input_norm, eps), layer.qkv)
        qkv = qkv.view(-1, heads + 2 * kv_heads, shape.head_dim)
        turned = functional.rms_norm(qkv[:, : heads + kv_heads], (shape.head_dim,), None, eps) * layer.qk_norm
        turned = rotation.apply(turned, positions)
        keys, values = cache.keys[number], cache.values[number]
        keys[rows, :, positions] = turned[:, heads:]
        values[rows, :, positions] = qkv[:, heads + kv_heads :]
        x = x + functional.linear(batch.attention(turned[:, :heads], keys, values), layer.o)
        gate, up = functional.linear(_norm(x, layer.post_norm, eps), layer.gate_up).chunk(2, dim=-1)
        x = x + functional.linear(functional.silu(gate) * up, layer.down)
    return x


def logits(model: Model, hidden: Tensor) -> Tensor:
    """[tokens, vocabulary]"""
    return functional.linear(_norm(hidden, model.norm, model.architecture.rms_norm_eps), model.head)


def score(model: Model, ids: Sequence[int]) -> list[float]:
    """Log-probs at temperature 1 of all ids but the first, in one pass with a cache of its own."""
    if len(ids) < 2:
        return []
    cache, rotation = Cache.empty(model.architecture, 1, len(ids)), Rotation.of(model.architecture, len(ids))
    batch = Batch(model.architecture, [Run(0, 0, len(ids))])
    hidden = forward(model, cache, rotation, torch.tensor(ids), batch)
    spread = torch.log_softmax(logits(model, hidden[:-1]), dim=-1)
    found: list[float] = spread.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1).tolist()
    return found


def _norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, scale.shape, scale, eps)


class _Attention:
    """The attention of one forward pass; what does not depend on the layer is prepared once."""

    def __init__(self, shape: Architecture, runs: Sequence[Run]) -> None:
        self._shape = shape
        single = [run for run in runs if run.size == 1]
        self._longer = [run for run in runs if run.size > 1]
        if list(runs[: len(single)]) != single:
            raise ValueError("runs of one token must come first")
        self._count = len(single)
        if single:
            self._prepare_single(single)
        self._masks = [_causal(run) for run in self._longer]

    def _prepare_single(self, single: Sequence[Run]) -> None:
        """Over all rows between the first and the last, in place, if most of them are busy; else over copies."""
        self._length = 1 + max(run.start for run in single)
        busy = [run.row for run in single]
        self._low, high = min(busy), max(busy) + 1
        self._dense = len(single) >= DENSE_SHARE * (high - self._low)
        starts = torch.tensor([run.start for run in single])
        if self._dense:
            self._rows = torch.tensor(busy) - self._low
            self._span = high - self._low
            # An idle row sees its first position: a row that sees no key would give not-a-number.
            ends = torch.zeros(self._span, dtype=torch.int64).index_copy(0, self._rows, starts)
        else:
            self._rows = torch.tensor(busy)
            ends = starts
        seen = torch.arange(self._length) <= ends.unsqueeze(1)
        self._mask = torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None, None]

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[tokens, heads * head_dim] from queries [tokens, heads, head_dim]."""
        parts = [self._of_single(queries[: self._count], keys, values)] if self._count else []
        at = self._count
        for run, mask in zip(self._longer, self._masks, strict=True):
            parts.append(self._of_longer(queries[at : at + run.size], keys, values, run, mask))
            at += run.size
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _of_single(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        shape = self._shape
        # Heads that share keys are treated as queries of one head, so keys are not copied.
        grouped = queries.reshape(-1, shape.num_key_value_heads, shape.groups, shape.head_dim)
        if self._dense:
            part = slice(self._low, self._low + self._span)
            seen_keys, seen_values = keys[part, :, : self._length], values[part, :, : self._length]
            grouped = torch.zeros(self._span, *grouped.shape[1:]).index_copy_(0, self._rows, grouped)
        else:
            seen_keys, seen_values = (of[:, :, : self._length].index_select(0, self._rows) for of in (keys, values))
        out = functional.scaled_dot_product_attention(grouped, seen_keys, seen_values, attn_mask=self._mask)
        if self._dense:
            out = out[self._rows]
        return out.reshape(self._count, -1)

    def _of_longer(self, queries: Tensor, keys: Tensor, values: Tensor, run: Run, mask: Tensor | None) -> Tensor:
        end = run.start + run.size
        out = functional.scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            keys[run.row : run.row + 1, :, :end],
            values[run.row : run.row + 1, :, :end],
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).reshape(run.size, -1)


def _causal(run: Run) -> Tensor | None:
    """Which positions each token of the run sees; None for a run that starts its sequence, where torch knows."""
    if run.start == 0:
        return None
    end = run.start + run.size
    return torch.ones(run.size, end, dtype=torch.bool).tril_(diagonal=run.start)
