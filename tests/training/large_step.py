"""`python -m tests.training.large_step TOKENS MEMBERS`: trains one long row; prints the growth of memory in MB."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner, LearnerSettings

PROMPT = 64
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1 << 17,
}


def main(tokens: int, members: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build_tiny(folder, ("what do 3 apples and 12 pears cost?",), seed=3, **SHAPE)
        learner = Learner(Path(folder), LearnerSettings(tokens_per_batch=tokens))
    chance = np.random.default_rng(0)
    prompt = chance.integers(0, 100, PROMPT)

    def trajectory(index: int) -> Trajectory:
        output = chance.integers(0, 100, tokens // members - PROMPT)
        segments = [
            Segment(parent=-1, ids=prompt),
            Segment(
                parent=0, ids=output, trains=True, log_probs=np.full(len(output), -4.6), versions=[(1, len(output))]
            ),
        ]
        return Trajectory(record=str(index), group="g", segments=segments, advantage=(-1.0) ** index)

    batch = Batch(step=1, base_version=1, ages={1: 0}, trajectories=[trajectory(index) for index in range(members)])
    # The highest memory so far, which may be that of the process that started this one, is forgotten.
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak_mb()
    result = learner.train(batch, PolicyLoss())
    assert result.applied
    assert result.metrics["packed_tokens"] > 0.9 * tokens
    print(_peak_mb() - before)


def _peak_mb() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
