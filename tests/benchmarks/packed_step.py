"""Measures a training step on packed trees, compared with the same calls one by one, each with its whole context.

The ideal is the ratio of counted operations: matrices for each token, attention for each pair of tokens that see each
other, the head for each token whose logits are needed. The difference to the ideal is the loss of packing.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.packing import rows
from tests.benchmarks.report import Outcome, median
from tests.training.trees import Call, batch_of, trajectory_of_calls

WIDTH, LAYERS, HEADS, HEAD_WIDTH, INNER = 256, 4, 4, 64, 768
TURNS, PROMPT, OUTPUT, RESULT, MEMBERS = 10, 150, 60, 40, 8
WORDS = 200
REPEATS = 3


def measure() -> Outcome:
    outcome = Outcome(f"a step of packed trees; {LAYERS} layers of width {WIDTH}, float32, one thread")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shape = {
            "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "head_dim": HEAD_WIDTH,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": 1 << 15,
        }  # fmt: skip
        build_tiny(folder, ("what do 3 apples and 12 pears cost?",), seed=3, **shape)
        learner = Learner(Path(folder), LearnerSettings(tokens_per_batch=8192))
    for what, make, least in (
        (f"{TURNS}-turn chains", chain, 0.8),
        ("edited trees", edited, 0.8),
        (f"groups of {MEMBERS}", siblings, 0.7),
    ):
        groups = [make(random.Random(number), str(number)) for number in range(2)]
        merged = [trajectory for members in groups for trajectory in members]
        alone = [call for trajectory in merged for call in one_by_one(trajectory)]
        ideal = operations(alone) / operations(merged)
        faster = seconds(learner, alone) / seconds(learner, merged)
        outcome.share(f"{what}: times as fast", faster, "×", "ratio of operations", ideal, least)
    return outcome


def tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(WORDS) for _ in range(count)]


def calls_of(chance: random.Random, prompt: Sequence[int], turns: int) -> list[Call]:
    calls: list[Call] = []
    whole = list(prompt)
    for turn in range(turns):
        output = tokens(chance, OUTPUT)
        calls.append((turn, list(whole), output))
        whole += output + tokens(chance, RESULT)
    return calls


def chain(chance: random.Random, name: str) -> list[Trajectory]:
    calls = calls_of(chance, tokens(chance, PROMPT), TURNS)
    return [trajectory_of_calls(calls, name, group=name)]


def edited(chance: random.Random, name: str) -> list[Trajectory]:
    """A record whose context is cut back to its first turn after half of the turns."""
    before = calls_of(chance, tokens(chance, PROMPT), TURNS // 2)
    kept = before[1][1]
    after = [(TURNS // 2 + at, ids, output) for at, ids, output in calls_of(chance, kept, TURNS // 2)]
    return [trajectory_of_calls([*before, *after], name, group=name)]


def siblings(chance: random.Random, name: str) -> list[Trajectory]:
    prompt = tokens(chance, PROMPT)
    return [
        trajectory_of_calls(calls_of(chance, prompt, 2), f"{name}.{seat}", group=name, advantage=(-1.0) ** seat)
        for seat in range(MEMBERS)
    ]


def one_by_one(trajectory: Trajectory) -> list[Trajectory]:
    """Each call as a trajectory of its own."""
    found = []
    for index, segment in enumerate(trajectory.segments):
        if not segment.trains:
            continue
        context: list[np.ndarray] = []
        at = segment.parent
        while at >= 0:
            context.insert(0, trajectory.segments[at].ids)
            at = trajectory.segments[at].parent
        before = Segment(parent=-1, ids=np.concatenate(context))
        name = f"{trajectory.record}.{index}"
        alone = Segment(parent=0, ids=segment.ids, trains=True, log_probs=segment.log_probs, versions=segment.versions)
        found.append(Trajectory(record=name, segments=[before, alone], advantage=trajectory.advantage))
    return found


def operations(trajectories: Sequence[Trajectory]) -> float:
    """The operations of a forward pass. The backward pass has twice as many."""
    total = 0.0
    for row in rows(trajectories):
        seen = float((row.ends - np.arange(len(row))).sum())
        matrices = LAYERS * (4 * WIDTH * HEADS * HEAD_WIDTH + 3 * WIDTH * INNER)
        total += len(row) * matrices + seen * 2 * LAYERS * HEADS * HEAD_WIDTH + len(row.asked_at) * WIDTH * WORDS
    return total


def seconds(learner: Learner, trajectories: Sequence[Trajectory], repeats: int = REPEATS) -> float:
    batch: Batch = batch_of(trajectories)
    train: Callable[[], object] = lambda: learner.train(batch, PolicyLoss())  # noqa: E731
    train()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        train()
        times.append(time.perf_counter() - began)
    return median(times)
