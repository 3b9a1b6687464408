"""The canary of a version: the sequences that the trainer and its engines compute, and the trainer's log-probs for
them.

Invariants:
- the canary has the same sequences in all versions of a model, so its numbers can be compared over time;
- the canary is computed with the weights as they are published, so their rounding causes no difference; merged adapters
  are the exception, and their canary has the limits of 16 bits;
- if this process has the model on processors, training does not wait for the canary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from agentrl.engines.canary import Canary, CanaryImage, Noise
from agentrl.tokens import image_ids
from agentrl.training.learner import Learner
from agentrl.training.learner_images import CANARY
from agentrl.training.snapshots import Snapshot

PROBES = 8
PROBE_TOKENS = 48
MOST_OPERATIONS = 3e10
"""The most operations of a canary on processors: about half a second of one processor."""
LEAST_TOKENS, LEAST_PROBES = 24, 4
"""What a model of any size computes at least. With this many tokens the mean is far above the limit for other weights,
and half of a step is enough to distinguish a version from the one before."""
_MULTIPLIER, _INCREMENT, _MODULUS = 6_364_136_223_846_793_005, 1_442_695_040_888_963_407, 1 << 64


class Published(NamedTuple):
    """What is known of earlier versions."""

    before: Canary | None = None
    """The canary of the version before."""
    noise: Noise | None = None
    """How much engines differed at the first publication."""


NOTHING = Published()
IMAGE_PROBES = 2
"""The number of sequences that show an image, if the model reads images."""


def probe_set(vocabulary: int) -> list[list[int]]:
    """Sequences of ids that depend only on the size of the vocabulary. Arbitrary ids find differences that typical text
    would not show."""
    state, found = vocabulary, []
    for probe in range(PROBES):
        sequence: list[int] = []
        # Different lengths reveal mistakes in padding or in slots.
        for _ in range(PROBE_TOKENS // 2 + probe * PROBE_TOKENS // (2 * PROBES)):
            state = (state * _MULTIPLIER + _INCREMENT) % _MODULUS
            sequence.append((state >> 33) % vocabulary)
        found.append(sequence)
    return found


def cut(arbitrary: Sequence[list[int]], texts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """The sequences if they are short enough; otherwise beginnings, of different lengths, of a few of each kind, with
    about this many tokens."""
    if sum(map(len, (*arbitrary, *texts))) <= tokens:
        return [*arbitrary, *texts]
    own = texts[: LEAST_PROBES // 2]
    chosen = [*arbitrary[: LEAST_PROBES - len(own)], *own]
    each = tokens // len(chosen)
    return [one[: max(2, each + place - len(chosen) // 2)] for place, one in enumerate(chosen)]


def sequences_for(learner: Learner, texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """`texts` are typical sequences to probe as well."""
    arbitrary, own = probe_set(int(learner.model.config.get_text_config().vocab_size)), [list(text) for text in texts]
    if learner.accelerator.device.type != "cpu":
        return [*arbitrary, *own]
    weights = sum(parameter.numel() for parameter in learner.model.parameters())
    return cut(arbitrary, own, max(LEAST_TOKENS, int(MOST_OPERATIONS / (2 * weights))))


def with_image(sequences: list[list[int]], learner: Learner) -> tuple[list[list[int]], list[CanaryImage]]:
    """The first sequences with an image inside, so that tokens after an image are compared too, if the model reads
    images."""
    if learner.images.how is None:
        return sequences, []
    shown = [image_ids.id_of(CANARY)] * learner.images.patches[CANARY].tokens
    first = [
        [*sequence[: len(sequence) // 2], *shown, *sequence[len(sequence) // 2 :]]
        for sequence in sequences[:IMAGE_PROBES]
    ]
    return [*first, *sequences[IMAGE_PROBES:]], [CanaryImage(CANARY, learner.images.canary)]


def canary_of(
    learner: Learner,
    texts: Sequence[Sequence[int]],
    dtype: torch.dtype,
    published: Published = NOTHING,
    *,
    apart: bool = False,
) -> tuple[Snapshot, Callable[[], Canary]]:
    """The present weights, or adapters `apart`, and a function that computes their canary, once, in a thread beside the
    training. A call of all ranks."""
    ids, images = with_image(sequences_for(learner, texts), learner)
    precision, rounded = learner.settings.precision, dtype if learner.settings.adapters is None else None
    if rounded is None and dtype != torch.float32 and not apart:
        # Engines get weights with the adapters added, rounded together. Here adapters are computed separately.
        precision = "bfloat16"
    before = published.before.log_probs if published.before is not None and published.before.ids == ids else []

    def canary(log_probs: list[list[float]]) -> Canary:
        return Canary(ids, log_probs, precision, before, published.noise, images)

    if not learner.computes_beside:
        now = canary(learner.log_probs(ids, published=rounded))
        return learner.snapshot(dtype, apart=apart), lambda: now
    snapshot = learner.snapshot(dtype, apart=apart)
    log_probs = learner.log_probs_beside(snapshot)
    return snapshot, functools.cache(lambda: canary(log_probs(ids)))
