"""Trained tokens a second of a step next to those of a step of TRL's GRPOTrainer: same weights, float32, same threads.

The calls are those of agents that cut back their context once, so TRL must train each call with its whole context. TRL
does not sample here; it gets the log-probs of its rows. Each program has the size of micro-batch that is fastest for
it. There are two models, with half a million and with 107 million parameters.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.training.batch import Trajectory
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from tests.benchmarks.packed_step import edited, one_by_one, seconds
from tests.benchmarks.report import Outcome

THREADS = 2
TOKENS_PER_BATCH = (2048, 16_384)
UNMERGED, MERGED = 1.0, 3.0
"""The aims: the least ratios to the tokens per second of TRL."""
PEER_WITHIN_S = 3600.0
LARGE: dict[str, Any] = {
    "vocab_size": 32_768,
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


def measure() -> Outcome:
    outcome = Outcome(f"trained tokens of a step against TRL, float32, {THREADS} threads")
    torch.set_num_threads(THREADS)
    # One row of the large model is enough to keep the processors busy.
    for size, shape, groups, repeats, at_once in (("0.5 M", {}, 4, 3, (1, 4, 8)), ("107 M", LARGE, 1, 1, (1,))):
        merged = [one for number in range(groups) for one in edited(random.Random(number), str(number))]
        _one_model(outcome, size, shape, merged, repeats, at_once)
    return outcome


def _one_model(
    outcome: Outcome,
    size: str,
    shape: dict[str, Any],
    merged: Sequence[Trajectory],
    repeats: int,
    at_once: Sequence[int],
) -> None:
    alone = [call for trajectory in merged for call in one_by_one(trajectory)]
    trained = sum(len(segment.ids) for one in alone for segment in one.segments if segment.trains)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        model = Path(folder) / "model"
        build_tiny(model, ("what do 3 apples and 12 pears cost?",), seed=3, max_position_embeddings=1 << 15, **shape)
        trl, rows = _trl(model, alone, repeats, at_once)
        learners = [Learner(model, LearnerSettings(tokens_per_batch=most)) for most in TOKENS_PER_BATCH]
        unmerged = min(seconds(learner, alone, repeats) for learner in learners)
        as_trees = min(seconds(learner, merged, repeats) for learner in learners)
    outcome.share(f"{size} parameters, unmerged", trained / unmerged, "tokens/s", "TRL", trained / trl, UNMERGED)
    outcome.share(f"{size} parameters, merged", trained / as_trees, "tokens/s", "TRL", trained / trl, MERGED)
    outcome.notes.append(f"{size}: {len(alone)} calls, {trained:,} trained tokens; rows of TRL at once: {rows}")


def _trl(model: Path, calls: Sequence[Trajectory], repeats: int, at_once: Sequence[int]) -> tuple[float, str]:
    """Seconds of a step of TRL with the fastest number of rows at once, and a text with the seconds of all numbers."""
    rows = [
        {
            "context": call.segments[0].ids.tolist(),
            "output": call.segments[1].ids.tolist(),
            "log_probs": list(call.segments[1].log_probs),
            "advantage": call.advantage,
        }
        for call in calls
    ]
    file = model.parent / "calls.json"
    file.write_text(json.dumps(rows, default=float))
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.trl_step_peer", str(model), str(file)]
    command += ["--threads", str(THREADS), "--repeats", str(repeats)]
    command += ["--at-once", *map(str, at_once)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PEER_WITHIN_S)
    if done.returncode:
        raise RuntimeError(f"TRL failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    fastest = min(found, key=lambda rows: float(found[rows]))
    return float(found[fastest]), str(fastest)
