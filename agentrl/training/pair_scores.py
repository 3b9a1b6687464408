"""Log-probs and entropies from hidden states, without a tensor of all logits.

Some architectures change logits after their head, by a factor and by a smooth cap. The configuration of each model has
its own keys for this. Log-probs without it would belong to another policy than the one that engines sample from.

Invariants:
- at most `CHUNK_LOGITS` logits exist at a time (`TIMES_ON_GPU` times as many on a GPU), also in the backward pass,
  which computes them again;
- log-probs are log softmax(logits / temperature), computed in at least float32, even if each rank has only a part of
  the vocabulary.
- `slope` is the derivative of `applied`, so a backward pass in chunks is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.tensor import DTensor

from agentrl.training import collectives
from agentrl.training.micro_batch import MicroBatch
from agentrl.training.scorers import Scorer

FACTORS = {"logit_scale": ("cohere", "cohere2"), "lm_head_multiplier": ("falcon_h1",)}
"""Keys whose value multiplies logits, with the types of models that have them."""
DIVISORS = {"logits_scaling": ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid")}
CAPS = {"final_logit_softcapping": ("gemma2", "gemma3_text")}
DIRECT = frozenset(
    {
        "deepseek_v3",
        "gpt_oss",
        "lfm2",
        "llama",
        "mistral",
        "phi3",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
    }
)
"""Types of models that do not change the logits of the head."""


class LogitShape(NamedTuple):
    """logits → cap · tanh(factor · logits / cap); without a cap: factor · logits."""

    factor: float = 1.0
    cap: float = 0.0
    """0: none."""

    def applied(self, logits: Tensor) -> Tensor:
        scaled = logits if self.factor == 1 else logits * self.factor
        return self.cap * torch.tanh(scaled / self.cap) if self.cap else scaled

    def slope(self, shaped: Tensor) -> Tensor | float:
        """The derivative, from what `applied` returned."""
        return self.factor * (1 - (shaped / self.cap) ** 2) if self.cap else self.factor


PLAIN = LogitShape()


def shape_of(config: Any) -> LogitShape | None:
    """The shape for a model with this configuration; None if it is unknown how its type changes logits."""
    kind = str(config.model_type)
    if kind in DIRECT:
        return PLAIN
    known = [table for table in (FACTORS, DIVISORS, CAPS) if any(kind in kinds for kinds in table.values())]
    if not known:
        return None
    factor = _value(config, FACTORS, kind, 1.0) / _value(config, DIVISORS, kind, 1.0)
    return LogitShape(factor, _value(config, CAPS, kind, 0.0))


def _value(config: Any, table: Mapping[str, tuple[str, ...]], kind: str, default: float) -> float:
    for key, kinds in table.items():
        if kind in kinds:
            return float(getattr(config, key, None) or default)
    return default


CHUNK_LOGITS = 1 << 26
"""A quarter of a gigabyte in float32."""
TIMES_ON_GPU = 4
"""Each chunk adds to the gradient of the whole head, which on a GPU costs as much as the rest of a small chunk."""


class Scored(NamedTuple):
    """The model's output for each pair. It is a tuple, because wrappers of a model look for tensors in tuples."""

    log_probs: Tensor
    entropy: Tensor
    """Entropy of the distribution of the token; without gradient."""


class Vocabulary:
    """The whole vocabulary, for a head that has the weights of all words."""

    first = 0
    """The first word of the head."""

    def log_softmax(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, dim=-1)

    def total(self, value: Tensor) -> Tensor:
        """The sum over the parts of the vocabulary."""
        return value


ALL_WORDS = Vocabulary()


class PartOfVocabulary(Vocabulary):
    """The words of one rank. Other ranks of its group have the other words, and all have the same hidden states."""

    def __init__(self, first: int, group: ProcessGroup) -> None:
        self.first = first
        self._group = group

    def log_softmax(self, logits: Tensor) -> Tensor:
        highest = collectives.total(logits.amax(dim=-1, keepdim=True), self._group, ReduceOp.MAX)
        logits = logits - highest
        return logits - self.total(logits.exp().sum(dim=-1, keepdim=True)).log()

    def total(self, value: Tensor) -> Tensor:
        return collectives.total(value, self._group)


class PairScorer(Scorer[Scored]):
    """The log-prob of each pair's token after its own ancestors."""

    columns = Scored

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__(model)
        self.vocabulary = ALL_WORDS
        self.shape = shape_of(model.config)
        """How the model changes logits; None if that is unknown."""

    def scored(self, batch: MicroBatch) -> Scored:
        if self.shape is None:
            return self._of_logits(batch)
        model: Any = self.model
        hidden = self.decoded(batch)[batch.asked_row, batch.asked_at]
        head = model.get_output_embeddings()
        kind = hidden.device.type
        narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        bias = getattr(head, "bias", None)
        with torch.autocast(kind, enabled=False):
            log_probs, entropies = pair_scores(
                hidden.to(narrow),
                _own(head.weight).to(narrow),
                None if bias is None else _own(bias).to(narrow),
                batch.temperatures,
                batch.asked,
                batch.target,
                self.shape,
                self.vocabulary,
            )
        return Scored(log_probs, entropies[batch.asked])

    def _of_logits(self, batch: MicroBatch) -> Scored:
        """For architectures for which it is unknown how they change logits after the head."""
        whole = self.model(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits
        logits = whole[batch.asked_row, batch.asked_at]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        spread = torch.log_softmax(wide / batch.temperatures[:, None], dim=-1)
        with torch.no_grad():
            entropy = -(spread.exp() * spread).sum(dim=-1)
        return Scored(spread[batch.asked, batch.target], entropy[batch.asked])


def _own(weight: Tensor) -> Tensor:
    """The part of this rank."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        temperatures: Tensor,
        asked: Tensor,
        target: Tensor,
        shape: LogitShape,
        words: Vocabulary,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        scores = torch.zeros(len(asked), dtype=dtype, device=hidden.device)
        entropies = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        order = torch.argsort(asked, stable=True)
        target = target - words.first
        for places, pairs in _chunks(asked[order], len(hidden), len(head)):
            spread = words.log_softmax(_logits(hidden[places], head, bias, shape, temperatures[places]))
            which = order[pairs]
            which = which[(target[which] >= 0) & (target[which] < len(head))]
            scores[which] = spread[asked[which] - places.start, target[which]]
            entropies[places] = -(spread.exp() * spread).sum(dim=-1)
        scores, entropies = words.total(scores), words.total(entropies)
        ctx.save_for_backward(hidden, head, bias, temperatures, asked, target, order)
        ctx.words, ctx.shape = words, shape
        ctx.mark_non_differentiable(entropies)
        return scores, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        hidden, head, bias, temperatures, asked, target, order = ctx.saved_tensors
        of_scores = gradients[0]
        of_hidden = torch.empty_like(hidden)
        of_head = torch.zeros_like(head, dtype=of_scores.dtype)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=of_scores.dtype)
        for places, pairs in _chunks(asked[order], len(hidden), len(head)):
            chunk = hidden[places]
            which = order[pairs]
            rows, given = asked[which] - places.start, of_scores[which]
            # d log p(target) / d logits = one at the target - p
            logits = ctx.words.log_softmax(_logits(chunk, head, bias, ctx.shape, temperatures[places])).exp_()
            logits *= -torch.zeros(len(chunk), dtype=given.dtype, device=given.device).index_add_(0, rows, given)[
                :, None
            ]
            own = (target[which] >= 0) & (target[which] < len(head))
            logits.index_put_((rows[own], target[which][own]), given[own], accumulate=True)
            logits /= temperatures[places, None]
            if ctx.shape.cap:
                logits *= ctx.shape.slope(_shaped(chunk, head, bias, ctx.shape))
            elif ctx.shape.factor != 1:
                logits *= ctx.shape.factor
            narrow = logits.to(head.dtype)
            of_hidden[places] = narrow @ head
            of_head += narrow.T @ chunk
            if of_bias is not None:
                of_bias += logits.sum(dim=0)
        of_bias = None if of_bias is None else of_bias.to(bias.dtype)
        return ctx.words.total(of_hidden), of_head.to(head.dtype), of_bias, None, None, None, None, None


def pair_scores(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    temperatures: Tensor,
    asked: Tensor,
    target: Tensor,
    shape: LogitShape = PLAIN,
    words: Vocabulary = ALL_WORDS,
) -> tuple[Tensor, Tensor]:
    """The log-prob of each pair, and the entropy of each hidden state, which has no gradient.

    `asked` has the index of each pair's hidden state, `target` its token. `words`: the words that the head has.
    """
    found: tuple[Tensor, Tensor] = _PairScores.apply(hidden, head, bias, temperatures, asked, target, shape, words)  # type: ignore[no-untyped-call]
    return found


def _chunks(asked: Tensor, places: int, words: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of hidden states, each with the range of pairs that use it; `asked` is in ascending order."""
    size = max(1, CHUNK_LOGITS * (TIMES_ON_GPU if asked.is_cuda else 1) // words)
    starts = list(range(0, places, size))
    bounds = torch.searchsorted(asked, torch.tensor([*starts, places], device=asked.device)).tolist()
    for number, start in enumerate(starts):
        yield slice(start, min(start + size, places)), slice(bounds[number], bounds[number + 1])


def _logits(hidden: Tensor, head: Tensor, bias: Tensor | None, shape: LogitShape, temperatures: Tensor) -> Tensor:
    return _shaped(hidden, head, bias, shape) / temperatures[:, None]


def _shaped(hidden: Tensor, head: Tensor, bias: Tensor | None, shape: LogitShape) -> Tensor:
    logits = torch.nn.functional.linear(hidden, head, bias)
    return shape.applied(logits.to(torch.promote_types(logits.dtype, torch.float32)))
