"""A version is written beside the training, in the published type, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState

from agentrl.engines import manifest as manifests
from agentrl.engines.embedded.adapted_weights import KeptBase
from agentrl.engines.embedded.model_loading import load_verified
from agentrl.engines.manifest import Manifest
from agentrl.files.pieces import PieceHash, content_of
from agentrl.store import publications
from agentrl.store.database import Database
from agentrl.training import atomic_directories, weight_files
from agentrl.training.canary_probes import canary_of, probe_set
from agentrl.training.learner import Learner
from tests.store import flow
from tests.training.conftest import make_learner
from tests.training.rollouts import closed_groups, configuration, trainer

SHARD_BYTES = 8_000
"""The weights of the model have about 60,000."""


@pytest.fixture(autouse=True)
def _precision_is_free() -> Iterator[None]:
    """Each process has one precision, but each test its own."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def publish(run_dir: Path, learner: Learner, version: int = 1) -> Manifest:
    prepared = weight_files.prepare(learner, version, (), torch.bfloat16)
    return weight_files.write_weights(run_dir, prepared, learner, shard_bytes=SHARD_BYTES)


def test_version_is_what_transformers_and_engines_read_in_the_published_type(tiny: Path, tmp_path: Path) -> None:
    learner = make_learner(tiny, exact=False)
    before = {name: one.clone() for name, one in learner.weights().items()}
    manifest = publish(tmp_path, learner)
    directory = tmp_path / publications.path_of(1)
    assert len(manifest.weights) > 3
    assert manifests.read(directory) == manifest
    assert {name: content_of(directory / name) for name in manifest.files} == manifest.files
    assert {file.name for file in directory.iterdir()} == {*manifest.files, manifests.MANIFEST_FILE}
    assert json.loads((directory / "config.json").read_text())["dtype"] == "bfloat16"
    stock = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    assert all(torch.equal(one, before[name].bfloat16()) for name, one in stock.named_parameters())
    # The weights of the trainer are the same bits, and the canary is that of the rounded ones.
    assert all(torch.equal(one, before[name]) for name, one in learner.weights().items())
    _, agreement = load_verified(directory, 1, manifest)
    assert agreement.largest < 1e-4
    _, unrounded = canary_of(learner, (), torch.float32)
    directly = [
        abs(a - b)
        for one, other in zip(unrounded().log_probs, manifest.canary.log_probs, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    assert max(directly) > 10 * agreement.largest


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_snapshot_and_canary_have_the_weights_of_their_moment(tiny: Path, tmp_path: Path, precision: Any) -> None:
    """The canary is computed later, beside the training, and is what the trainer would have computed itself."""
    learner = make_learner(tiny, exact=False, precision=precision, recompute="full")
    prepared = weight_files.prepare(learner, 1, [[5, 6, 7]], torch.bfloat16)
    expected = learner.log_probs(
        [*probe_set(int(learner.model.config.vocab_size)), [5, 6, 7]], published=torch.bfloat16
    )
    before = {name: one.bfloat16() for name, one in learner.weights().items()}
    # What a step does before its optimizer moves the weights.
    learner._before_weights_change()
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(1.0)
    manifest = weight_files.write_weights(tmp_path, prepared, learner, shard_bytes=SHARD_BYTES)
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / publications.path_of(1), dtype="auto")
    assert all(torch.equal(one, before[name]) for name, one in stock.named_parameters())
    assert manifest.canary.log_probs == expected
    assert manifest.canary.precision == precision
    # What it was computed with is not kept, and computing it changed nothing.
    assert sum(one.numel() for one in learner._twin._own.values()) == 0
    assert learner.log_probs([[5, 6, 7]]) != expected[-1:]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_kill_at_any_write_leaves_no_half_version(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(tiny, exact=False)
    prepared = weight_files.prepare(learner, 1, (), torch.bfloat16)
    prepared.snapshot.take()
    write, target = PieceHash.update, tmp_path / publications.path_of(1)
    whole = 0
    for at in (1, 2, 5, 9, 14, 20, 1000):
        child = os.fork()
        if not child:
            left = at

            def dying(self: PieceHash, data: bytes | memoryview) -> None:
                nonlocal left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                write(self, data)

            monkeypatch.setattr(PieceHash, "update", dying)
            try:
                weight_files.write_weights(tmp_path, prepared, learner, shard_bytes=SHARD_BYTES)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if at == 1000 else -signal.SIGKILL)
        if at < 1000:
            assert not target.exists()
            assert list(target.parent.iterdir()), "it was killed before it wrote anything"
        whole += target.exists()
        atomic_directories.sweep_unfinished(target.parent)
    assert whole == 1
    manifests.verify(target, manifests.read(target))


async def test_the_next_step_trains_while_a_version_is_written(
    db: Database, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed_groups(db, 4)
    trains, steps, write, train = threading.Event(), [], weight_files.write_weights, Learner.train

    def slow(run_dir: Path, prepared: weight_files.Prepared, *args: object, **more: object) -> Manifest:
        if prepared.version == 2:
            assert trains.wait(60), "the step waits for the publication before it"
        return write(run_dir, prepared, *args, **more)  # type: ignore[arg-type]

    def noted(self: Learner, *args: object, **more: object) -> object:
        steps.append(1)
        if len(steps) == 2:
            trains.set()
        return train(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(weight_files, "write_weights", slow)
    monkeypatch.setattr(Learner, "train", noted)
    await trainer(db, configuration(tmp_path, tiny, steps=2), tmp_path).run()
    assert (await flow.publication(db, 2)).status == "skipped" or (await flow.publication(db, 2)).announced_at
    assert (await flow.publication(db, 3)).status == "announced"
    for version in (2, 3):
        directory = tmp_path / publications.path_of(version)
        manifests.verify(directory, manifests.read(directory))


async def test_a_run_that_trains_adapters_publishes_them_alone(db: Database, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 4)
    config = configuration(tmp_path, tiny, steps=2, optimizer="adamw", lora={"rank": 4})
    await trainer(db, config, tmp_path).run()
    whole, kept = (tiny / "model.safetensors").stat().st_size, KeptBase()
    for version in (1, 2, 3):
        manifest = manifests.read(tmp_path / publications.path_of(version))
        assert manifest.base is not None
        assert manifest.files["adapter_model.safetensors"].bytes < whole / 2
        assert "tokenizer.json" in manifest.files
        _, agreement = load_verified(tmp_path / publications.path_of(version), version, manifest, kept=kept)
        assert agreement.largest < 1e-4
    assert len(list((tmp_path / "weights").glob("base-*"))) == 1
