"""Measures a publication of 1 GB next to a copy of its files: the waits of training and engines, and the delta.

The model is a Qwen3 of random weights with 540 million parameters, which are 1 GB in bfloat16. The copy is made from
the page cache, from which the engine reads too; neither waits for the disk. A second peer only converts the numbers, as
both sides must, and checks nothing: safetensors saves them in bfloat16 and loads them again as float32.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from agentrl.engines.embedded.decoder import Model
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.manifest import Manifest
from agentrl.store.publications import path_of
from agentrl.training import weight_files
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.weight_files import Former
from tests.benchmarks.report import Outcome

SHARD_BYTES = 512 << 20
RATE = 1e-6
THREADS = 2
"""Threads of the trainer and of the engine, which do not compute at the same time here."""
MOST_WAIT, MOST_TOTAL, MOST_PAUSE, MOST_DELTA = 0.1, 2.0, 0.2, 0.1
SHAPE = {
    "vocab_size": 65_536,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}


def measure() -> Outcome:
    outcome = Outcome("a publication of 1 GB")
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run_dir = Path(folder)
        _build(run_dir / "model")
        learner = Learner(run_dir / "model", LearnerSettings(learning_rate=RATE, tokens_per_batch=512))
        _step(learner)
        first, *_ = _publish(run_dir, learner, 1)
        size = sum(first.files[name].bytes for name in first.weights)
        copy_s = _copy(run_dir / path_of(1), run_dir / "copy")
        _step(learner)
        plain_s = _save_and_load(learner, run_dir / "plain.safetensors")
        began = time.perf_counter()
        prepared = weight_files.prepare(learner, 2, (), torch.bfloat16)
        wait_s = time.perf_counter() - began
        second, step_wait_s = _beside_a_step(run_dir, learner, prepared, Former(1, first))
        # This version is written without a delta, and without a step that needs the same processors.
        _, prepare_s, write_s = _publish(run_dir, learner, 3)
        tokens = sum(map(len, second.canary.ids))
        del learner, prepared
        engine_s, pause_s = asyncio.run(_serve(run_dir))
    copied, plain, total_s = "one copy of its files", "safetensors saves and loads them", prepare_s + write_s + engine_s
    waits_s = wait_s + step_wait_s
    outcome.within("training waits: canary, snapshot, step after it", waits_s, "s", copied, copy_s, MOST_WAIT)
    outcome.within("from the step to an engine that serves", total_s, "s", copied, copy_s, MOST_TOTAL)
    outcome.share("the same", total_s, "s", plain, plain_s, 0)
    outcome.plain(f"of this, copied, written, hashed; a canary of {tokens} tokens", write_s, "s")
    outcome.plain("of this, read, checked, computed and compared", engine_s, "s")
    outcome.within("an embedded engine stands still", pause_s, "s", copied, copy_s, MOST_PAUSE)
    deltas = sum(one.content.bytes for one in second.deltas.values())
    outcome.within(
        "the difference of a step with the learning rate 1e-6", deltas / 1e6, "MB", "the files", size / 1e6, MOST_DELTA
    )
    return outcome


def _build(directory: Path) -> None:
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE)).save_pretrained(directory)


def _step(learner: Learner) -> None:
    """A step of AdamW on some tokens."""
    ids = np.random.default_rng(0).integers(0, 1000, 32)
    rest = ids[1:]
    trained = Segment(parent=0, ids=rest, trains=True, log_probs=np.zeros(len(rest)), versions=[(0, len(rest))])
    one = Trajectory(record="r", segments=[Segment(parent=-1, ids=ids[:1]), trained])
    assert learner.train(Batch(step=1, base_version=0, trajectories=[one], ages={0: 0}), "supervised").applied


def _publish(run_dir: Path, learner: Learner, version: int) -> tuple[Manifest, float, float]:
    """Publish a version. Returns its manifest, the seconds to prepare it, and the seconds to write it."""
    began = time.perf_counter()
    prepared = weight_files.prepare(learner, version, (), torch.bfloat16)
    prepared_at = time.perf_counter()
    written = weight_files.write_weights(run_dir, prepared, learner, shard_bytes=SHARD_BYTES)
    return written, prepared_at - began, time.perf_counter() - prepared_at


def _save_and_load(learner: Learner, file: Path) -> float:
    """Seconds of the fastest of three attempts."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        save_file({name: one.detach().bfloat16() for name, one in learner.weights().items()}, file)
        loaded = {name: one.float() for name, one in load_file(file).items()}
        took.append(time.perf_counter() - began)
        del loaded
        file.unlink()
    return min(took)


def _beside_a_step(
    run_dir: Path, learner: Learner, prepared: weight_files.Prepared, former: Former
) -> tuple[Manifest, float]:
    """Write a version while a step trains. Returns the manifest, and how long the step waits before it changes
    weights."""
    wait, waits = learner._before_weights_change, list[float]()

    def timed() -> None:
        began = time.perf_counter()
        wait()
        waits.append(time.perf_counter() - began)

    learner._before_weights_change = timed  # type: ignore[method-assign]
    with ThreadPoolExecutor() as pool:
        write = pool.submit(
            weight_files.write_weights, run_dir, prepared, learner, shard_bytes=SHARD_BYTES, former=former
        )
        _step(learner)
        return write.result(), sum(waits)


def _copy(source: Path, target: Path) -> float:
    """Seconds of the fastest of three copies, because a slower one only waited for other work of the machine."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        shutil.copytree(source, target)
        took.append(time.perf_counter() - began)
        shutil.rmtree(target)
    return min(took)


async def _serve(run_dir: Path) -> tuple[float, float]:
    """How long an engine with version 2 takes to load version 3, and how long its thread pauses for that."""
    engine = EmbeddedEngine(slots=2, context=128, device="cuda" if torch.cuda.is_available() else "cpu")
    engine.start()
    await engine.update(str(run_dir / path_of(2)), 2)
    switch, pauses = engine._slots.switch, list[float]()

    def timed(model: Model) -> None:
        began = time.perf_counter()
        switch(model)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        pauses.append(time.perf_counter() - began)

    engine._slots.switch = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    await engine.update(str(run_dir / path_of(3)), 3)
    took = time.perf_counter() - began
    await engine.close()
    return took, sum(pauses)
