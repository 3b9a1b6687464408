"""Measures the peak memory of a step on one row of 32,768 tokens, next to the calculated memory of its parts.

The model has 100 million parameters and recomputes whole layers (`recompute: full`). The parts are: weights, gradients
and the state of AdamW, 16 bytes per parameter; the input of each layer; and, for the one layer in the backward pass,
the tensors that it keeps and its intermediate gradients. On a GPU the allocator counts the memory; on processors the
benchmark counts every tensor.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from tests.benchmarks.report import Outcome
from tests.training.test_memory import Peak

LENGTH = 32_768
MOST = 1.3
SHAPE: dict[str, Any] = {
    "vocab_size": 16_384,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": LENGTH,
}
"""98 million parameters, with attention narrower than the rest: its time grows with the square of the row."""


def measure() -> Outcome:
    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else "processors"
    outcome = Outcome(f"memory of a step on a row of {LENGTH:,} tokens, float32, on {where}")
    if not gpu:
        torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        torch.manual_seed(0)
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE))
        parameters = sum(one.numel() for one in model.parameters())
        model.save_pretrained(folder)
        del model
        learner = Learner(Path(folder), LearnerSettings(tokens_per_batch=LENGTH, recompute="full"))
    # A first step creates the state of the optimizer.
    assert learner.train(_row(256), PolicyLoss()).applied
    with _counted(gpu, learner) as peak:
        began = time.perf_counter()
        assert learner.train(_row(LENGTH), PolicyLoss()).applied
        took = time.perf_counter() - began
    known = _by_arithmetic(parameters)
    outcome.within("peak", peak() / 1e9, "GB", "arithmetic", sum(known.values()) / 1e9, MOST)
    for what, size in known.items():
        outcome.plain(f"by arithmetic: {what}", size / 1e9, "GB")
    outcome.plain("time of the step", took, "s")
    outcome.notes.append(f"{parameters / 1e6:.0f} million parameters")
    return outcome


def _by_arithmetic(parameters: int) -> dict[str, float]:
    """The calculated bytes of each part."""
    width, inner, layers = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_hidden_layers"]
    heads, shared, of_head = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], SHAPE["head_dim"]
    queries, keys = heads * of_head, shared * of_head
    token = 4.0 * LENGTH
    return {
        "weights, gradients and the state of AdamW": 16.0 * parameters,
        "the input of each layer": token * width * layers,
        # Attention keeps queries and keys before and after their norms and rotation, values, keys and values for each
        # head, and the result. The rest keeps both norms with their inputs, the sum between them, gate, its activation,
        # up, and their product.
        "what one layer keeps": token * (3 * queries + 3 * keys + keys + 2 * queries + queries + 5 * width + 4 * inner),
        "gradients under way in it": token * (3 * inner + 2 * width),
    }


@contextlib.contextmanager
def _counted(gpu: bool, learner: Learner) -> Iterator[Callable[[], float]]:
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        yield torch.cuda.max_memory_allocated
        return
    with Peak([*learner.model.parameters(), *learner.optimizers.tensors().values()]) as peak:
        yield lambda: peak.peak


def _row(length: int) -> Batch:
    chance = np.random.default_rng(length)
    words, asked = SHAPE["vocab_size"], length // 8
    answer = chance.integers(0, words, length - asked)
    trained = Segment(
        parent=0, ids=answer, trains=True, log_probs=np.full(len(answer), -9.0), versions=[(1, len(answer))]
    )
    one = Trajectory(record="r", segments=[Segment(parent=-1, ids=chance.integers(0, words, asked)), trained])
    return Batch(step=1, base_version=1, ages={1: 0}, trajectories=[one])
