"""The forward pass of a Qwen3 decoder over rows, in a few large matrix products.

Other architectures are computed by the modules of transformers (`attention_model`, `state_model`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.engines.embedded.architecture import Architecture
from agentrl.engines.embedded.served_model import NO_IMAGES, Run, ServedModel
from agentrl.engines.embedded.slot_attention import SlotAttention
from agentrl.images.patches import Patches
from agentrl.tokens.image_ids import is_image


class Layer(NamedTuple):
    """One decoder layer. Matrices that are applied to the same input are joined into one."""

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
    processing = None

    @property
    def vocabulary(self) -> int:
        return self.architecture.vocab_size

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def fits(self, other: object) -> bool:
        return isinstance(other, Model) and self.architecture.shapes() == other.architecture.shapes()

    def new_rows(self, rows: int, positions: int) -> Cache:
        return Cache.empty(self.architecture, rows, positions, self.device)

    def next_logits(self, kept: Cache, runs: Sequence[Run], ids: Tensor, wanted: Sequence[int]) -> Tensor:
        return logits(self, forward(self, kept, ids, Batch(runs, self.device))[wanted])

    def scores(
        self, sequences: Sequence[Sequence[int]], images: Mapping[int, Patches] = NO_IMAGES
    ) -> list[list[float]]:
        return scores_in_one_pass(self, sequences)


class Keys:
    """Keys and values of every row, [rows, kv_heads, positions, width] for each layer."""

    shares_prefixes = True

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        self.keys = keys
        self.values = values

    def reusable(self, shared: int, cached: int) -> int:
        return min(shared, cached)

    def show(self, images: Mapping[int, Patches]) -> None:
        """Does nothing, because this model reads only text."""

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        for store in (*self.keys, *self.values):
            store[target, :, :count] = store[source, :, :count]


class Cache(Keys):
    """Keys and values, with the rotary embedding of every position."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], rotation: Rotation) -> None:
        super().__init__(keys, values)
        self.rotation = rotation

    @classmethod
    def empty(cls, architecture: Architecture, rows: int, positions: int, device: torch.device) -> Cache:
        shape = (rows, architecture.num_key_value_heads, positions, architecture.head_dim)
        layers = range(architecture.num_hidden_layers)
        keys, values = ([torch.zeros(shape, device=device) for _ in layers] for _ in range(2))
        return cls(keys, values, Rotation.of(architecture, positions, device))


class Rotation(NamedTuple):
    """The rotary embedding of every position, [positions, 1, head_dim]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, architecture: Architecture, positions: int, device: torch.device) -> Rotation:
        wide = architecture.head_dim
        frequencies = 1.0 / (architecture.theta ** (torch.arange(0, wide, 2, dtype=torch.int64).float() / wide))
        angles = torch.outer(torch.arange(positions).float(), frequencies)
        both = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return cls(both.cos().to(device), both.sin().to(device))

    def apply(self, heads: Tensor, positions: Tensor) -> Tensor:
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return heads * self.cos[positions] + turned * self.sin[positions]


def room_of(architecture: Architecture) -> dict[str, Tensor]:
    """Empty tensors for all weights, by their Hugging Face names. Matrices that are applied to the same input are
    adjacent in memory, so `assemble` need not copy them."""
    shapes = architecture.shapes()
    found: dict[str, Tensor] = {}
    for number in range(architecture.num_hidden_layers):
        for names in _joined(number):
            rows = [shapes[name][0] for name in names]
            whole = torch.empty(sum(rows), shapes[names[0]][1])
            found |= dict(zip(names, torch.split(whole, rows), strict=True))
    return {name: found[name] if name in found else torch.empty(shape) for name, shape in shapes.items()}


def assemble(tensors: Mapping[str, Tensor], architecture: Architecture, version: int) -> Model:
    """A model from float32 tensors by their Hugging Face names; names and shapes were checked before."""

    def get(name: str) -> Tensor:
        return tensors[f"{name}.weight"]

    layers = []
    for number in range(architecture.num_hidden_layers):
        at = f"model.layers.{number}"
        scales = [get(f"{at}.self_attn.q_norm").expand(architecture.num_attention_heads, -1)]
        scales.append(get(f"{at}.self_attn.k_norm").expand(architecture.num_key_value_heads, -1))
        qkv, gate_up = (_in_one([tensors[name] for name in names]) for names in _joined(number))
        layers.append(
            Layer(
                input_norm=get(f"{at}.input_layernorm"),
                qkv=qkv,
                qk_norm=torch.cat(scales),
                o=get(f"{at}.self_attn.o_proj"),
                post_norm=get(f"{at}.post_attention_layernorm"),
                gate_up=gate_up,
                down=get(f"{at}.mlp.down_proj"),
            )
        )
    embedding = get("model.embed_tokens")
    head = embedding if architecture.tie_word_embeddings else get("lm_head")
    return Model(version, architecture, embedding, tuple(layers), get("model.norm"), head)


def moved(model: Model, device: torch.device | str) -> Model:
    """A model with the same weights on another device."""
    embedding = model.embedding.to(device)
    return replace(
        model,
        embedding=embedding,
        layers=tuple(Layer(*(one.to(device) for one in layer)) for layer in model.layers),
        norm=model.norm.to(device),
        head=embedding if model.head is model.embedding else model.head.to(device),
    )


def _joined(layer: int) -> tuple[list[str], list[str]]:
    """The matrices of a layer that are applied to the same input."""
    at = f"model.layers.{layer}"
    qkv = [f"{at}.self_attn.{part}_proj.weight" for part in ("q", "k", "v")]
    return qkv, [f"{at}.mlp.{part}_proj.weight" for part in ("gate", "up")]


def _in_one(parts: Sequence[Tensor]) -> Tensor:
    """Matrices stacked in rows; without a copy if they are adjacent in memory."""
    ends = [one.data_ptr() + one.numel() * one.element_size() for one in parts]
    together = all(end == later.data_ptr() for end, later in zip(ends, parts[1:], strict=False))
    first = parts[0]
    if together and len({one.untyped_storage().data_ptr() for one in parts}) == 1:
        return first.as_strided((sum(map(len, parts)), first.shape[1]), (first.shape[1], 1))
    return torch.cat(list(parts))


class Batch:
    """The runs of one forward pass, and the place of each of their tokens."""

    def __init__(self, runs: Sequence[Run], device: torch.device) -> None:
        """Runs of one token come first: they share one call of attention."""
        self.rows = torch.tensor([run.row for run in runs for _ in range(run.size)], device=device)
        places = [at for run in runs for at in range(run.start, run.start + run.size)]
        self.positions = torch.tensor(places, device=device)
        self.attention = SlotAttention(runs, device)


def forward(model: Model, cache: Cache, tokens: Tensor, batch: Batch) -> Tensor:
    """The last hidden state of every token of the batch, [tokens, hidden]. Also extends the cache."""
    shape, rows, positions = model.architecture, batch.rows, batch.positions
    heads, kv_heads, eps = shape.num_attention_heads, shape.num_key_value_heads, shape.rms_norm_eps
    x = model.embedding[tokens.to(model.device)]
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


def scores_in_one_pass(
    model: ServedModel, sequences: Sequence[Sequence[int]], images: Mapping[int, Patches] = NO_IMAGES
) -> list[list[float]]:
    """Log-probs of all ids except the first, computed in separate rows. One pass reads the weights once."""
    longer = [ids for ids in sequences if len(ids) > 1]
    if not longer:
        return [[] for _ in sequences]
    ends = list(itertools.accumulate(map(len, longer)))
    runs = [Run(row, 0, len(ids)) for row, ids in enumerate(longer)]
    # Nothing follows the last id of a sequence.
    wanted = sorted(set(range(ends[-1])) - {end - 1 for end in ends})
    rows = model.new_rows(len(longer), max(map(len, longer)))
    rows.show(images)
    found = model.next_logits(rows, runs, torch.tensor([token for ids in longer for token in ids]), wanted)
    of_each = iter(torch.split(found, [len(ids) - 1 for ids in longer]))
    return [scores_of(next(of_each), ids) if len(ids) > 1 else [] for ids in sequences]


def scores_of(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """Log-probs of all ids except the first, each from the logits of the preceding token; 0 for ids of images, which no
    model predicts."""
    spread = torch.log_softmax(logits.float(), dim=-1)
    words = torch.tensor([0 if is_image(token) else token for token in ids[1:]], device=spread.device)
    found: list[float] = spread.gather(1, words.unsqueeze(1)).squeeze(1).tolist()
    return [0.0 if is_image(token) else value for value, token in zip(found, ids[1:], strict=True)]


def logits(model: Model, hidden: Tensor) -> Tensor:
    """[tokens, vocabulary]"""
    return functional.linear(_norm(hidden, model.norm, model.architecture.rms_norm_eps), model.head)


def _norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, scale.shape, scale, eps)
