"""The forward pass of a Qwen3 decoder over rows, written for processors: few and large products.

Other architectures are computed by the modules of transformers (`attention_model`, `state_model`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.engines.embedded.architecture import Architecture
from agentrl.engines.embedded.served_model import Run
from agentrl.engines.embedded.slot_attention import SlotAttention


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

    @property
    def vocabulary(self) -> int:
        return self.architecture.vocab_size

    def fits(self, other: object) -> bool:
        return isinstance(other, Model) and self.architecture.shapes() == other.architecture.shapes()

    def new_rows(self, rows: int, positions: int) -> Cache:
        return Cache.empty(self.architecture, rows, positions)

    def next_logits(self, kept: Cache, runs: Sequence[Run], ids: Tensor, wanted: Sequence[int]) -> Tensor:
        return logits(self, forward(self, kept, ids, Batch(runs))[wanted])

    def score(self, ids: Sequence[int]) -> list[float]:
        """In one pass with rows of its own."""
        if len(ids) < 2:
            return []
        hidden = forward(self, self.new_rows(1, len(ids)), torch.tensor(ids), Batch([Run(0, 0, len(ids))]))
        spread = torch.log_softmax(logits(self, hidden[:-1]), dim=-1)
        found: list[float] = spread.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1).tolist()
        return found


class Keys:
    """Keys and values of every row, [rows, kv_heads, positions, width] for each layer."""

    shares_prefixes = True

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        self.keys = keys
        self.values = values

    def reusable(self, shared: int, cached: int) -> int:
        return min(shared, cached)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        for store in (*self.keys, *self.values):
            store[target, :, :count] = store[source, :, :count]


class Cache(Keys):
    """With the rotary embedding of every position."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], rotation: Rotation) -> None:
        super().__init__(keys, values)
        self.rotation = rotation

    @classmethod
    def empty(cls, architecture: Architecture, rows: int, positions: int) -> Cache:
        shape = (rows, architecture.num_key_value_heads, positions, architecture.head_dim)
        layers = range(architecture.num_hidden_layers)
        rotation = Rotation.of(architecture, positions)
        return cls([torch.zeros(shape) for _ in layers], [torch.zeros(shape) for _ in layers], rotation)


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

    def __init__(self, runs: Sequence[Run]) -> None:
        """Runs of one token come first: they share one call of attention."""
        self.rows = torch.tensor([run.row for run in runs for _ in range(run.size)])
        self.positions = torch.tensor([at for run in runs for at in range(run.start, run.start + run.size)])
        self.attention = SlotAttention(runs)


def forward(model: Model, cache: Cache, tokens: Tensor, batch: Batch) -> Tensor:
    """The last hidden state of every token of the batch, [tokens, hidden]; the cache is extended on the way."""
    shape, rows, positions = model.architecture, batch.rows, batch.positions
    heads, kv_heads, eps = shape.num_attention_heads, shape.num_key_value_heads, shape.rms_norm_eps
    x = model.embedding[tokens]
    for number, layer in enumerate(model.layers):
        qkv = functional.linear(_norm(x, layer.input_norm, eps), layer.qkv)
        qkv = qkv.view(-1, heads + 2 * kv_heads, shape.head_dim)
        turned = functional.rms_norm(qkv[:, : heads + kv_heads], (shape.head_dim,), None, eps) * layer.qk_norm
        turned = cache.rotation.apply(turned, positions)
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


def _norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, scale.shape, scale, eps)
