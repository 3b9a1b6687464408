"""Trained tokens a second, share of the peak, and memory of a step on a GPU: `python -m tests.benchmarks.gpu_step`.

Models have random weights and the shapes of Qwen3, made on the fly. A row is a group of trajectories of one chain each,
so its useful work equals that of ordinary causal attention. Each case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.training.activation_checkpoints import Recompute

SHAPES: dict[str, dict[str, int]] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
WORDS = 151_936
PEAK_FLOPS = 989e12
"""The peak for dense bfloat16 of an H100 or H200 with SXM, from their data sheets."""
CASES = [
    ("4B", 4096, 8, "none", 8192),
    ("4B", 4096, 8, "selective", 8192),
    ("4B", 4096, 8, "full", 32_768),
    ("4B", 32_768, 1, "full", 32_768),
    ("0.6B", 4096, 8, "none", 32_768),
    ("0.6B", 32_768, 1, "selective", 32_768),
    ("0.6B", 131_072, 1, "full", 131_072),
]
"""Model, tokens of a row, rows of a step, `recompute`, tokens of a micro-batch. All cases are compiled."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs=5)
    parser.add_argument("--profile", action="store_true", help="with --case: print where the time of a step goes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="a model")
    parser.add_argument("--longest", type=int, default=1 << 17, help="the most tokens of a row")
    parser.add_argument("--shortest", type=int, default=0, help="the fewest tokens of a row")
    parser.add_argument("--within-s", type=float, default=240.0)
    given = parser.parse_args()
    if given.case:
        model, length, rows, recompute, most = given.case
        found = measure(model, int(length), int(rows), recompute, int(most), profile=given.profile)
        print(json.dumps(found))
        return
    results = []
    ends = time.monotonic() + given.within_s
    for case in CASES:
        if given.only not in ("", case[0]) or not given.shortest <= case[1] <= given.longest:
            continue
        names = ("model", "row", "rows", "recompute", "micro_batch")
        results.append(dict(zip(names, case, strict=True)) | in_process(case, ends))
        print(json.dumps(results[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1))


def in_process(case: tuple[Any, ...], ends: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.gpu_step", "--case", *map(str, case)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=max(1.0, ends - time.monotonic())
        )
    except subprocess.TimeoutExpired:
        return {"failed": "no time was left"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(
    name: str, length: int, rows: int, recompute: Recompute, most: int, *, profile: bool = False
) -> dict[str, Any]:
    import numpy as np
    import torch
    import transformers

    from agentrl.policies.loss_settings import PolicyLoss
    from agentrl.training.batch import Batch, Segment, Trajectory
    from agentrl.training.learner import Learner
    from agentrl.training.learner_settings import LearnerSettings

    shape = SHAPES[name]
    config = transformers.Qwen3Config(
        vocab_size=WORDS,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=1 << 18,
        **shape,
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        parameters = model.num_parameters()
        del model
        torch.cuda.empty_cache()
        settings = LearnerSettings(tokens_per_batch=most, precision="bfloat16", recompute=recompute, compiled=True)
        learner = Learner(Path(folder), settings)
    chance = np.random.default_rng(1)

    def trajectory(index: int) -> Trajectory:
        output = chance.integers(0, WORDS, length - 64)
        segments = [
            Segment(parent=-1, ids=chance.integers(0, WORDS, 64)),
            Segment(
                parent=0, ids=output, trains=True, log_probs=np.full(len(output), -12.0), versions=[(1, len(output))]
            ),
        ]
        return Trajectory(record=str(index), segments=segments, advantage=(-1.0) ** index)

    batch = Batch(step=1, base_version=1, ages={1: 0}, trajectories=[trajectory(index) for index in range(rows)])
    began = time.perf_counter()
    learner.train(batch, PolicyLoss())
    torch.cuda.synchronize()
    first_s = time.perf_counter() - began
    if profile:
        with torch.profiler.profile() as profiler:
            learner.train(batch, PolicyLoss())
            torch.cuda.synchronize()
        for order in ("self_cuda_time_total", "self_cpu_time_total"):
            print(profiler.key_averages().table(sort_by=order, row_limit=18, max_name_column_width=60))
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    # A step of 128K tokens takes half a minute.
    repeats = 3 if length < 1 << 17 else 1
    for _ in range(repeats):
        assert learner.train(batch, PolicyLoss()).applied
    torch.cuda.synchronize()
    took = (time.perf_counter() - began) / repeats
    # Six operations for each parameter and token (forward and backward), not counting recomputation. Embeddings are
    # only looked up, but the head has the same size. Attention: 12 x layers x heads x width x length / 2.
    width = shape["num_attention_heads"] * 128
    attention = 6 * shape["num_hidden_layers"] * width * length
    flops = (6 * parameters + attention) * length * rows
    return {
        "parameters": parameters,
        "tokens_per_s": round(length * rows / took),
        "mfu": round(flops / took / PEAK_FLOPS, 3),
        "step_s": round(took, 3),
        "first_step_s": round(first_s, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
