"""Adapters are trained in place of all weights, and engines get what the trainer computes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.config.load import load_config
from agentrl.engines import manifest as manifests
from agentrl.engines.adapters import ADAPTER_FILE
from agentrl.engines.embedded.adapted_weights import KeptBase
from agentrl.engines.embedded.model_loading import load_verified
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.errors import ConfigError
from agentrl.files.pieces import content_of
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.store.publications import path_of
from agentrl.training import canary_probes, checkpoints, published_base, reference_model, weight_files
from agentrl.training.canary_probes import Published
from agentrl.training.checkpoints import OPTIMIZER_FILE, WEIGHTS_FILE, Progress
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.lora import Adapters, check_start
from tests.engines import unverified
from tests.training import families
from tests.training.trees import batch_of, group

ADAPTERS = Adapters(rank=4, alpha=8.0)


def learner_of(directory: Path, adapters: Adapters | None = ADAPTERS, **settings: Any) -> Learner:
    return Learner(directory, LearnerSettings(adapters=adapters, learning_rate=1e-2, **settings))


def some_batch(number: int = 6) -> Any:
    chance = random.Random(number)
    return batch_of([one for name in ("a", "b") for one in group(chance, 4, name=name)])


def test_adapters_learn_and_the_weights_of_the_model_stay(tiny: Path) -> None:
    learner, base = learner_of(tiny), learner_of(tiny, None)
    probe = [[5, 6, 7, 8, 9]]
    assert learner.log_probs(probe) == base.log_probs(probe), "adapters begin with no effect"
    losses = [learner.train(some_batch(), "supervised").metrics["loss"] for _ in range(8)]
    assert losses[-1] < losses[0] - 0.5
    assert all(".lora_" in name for names in learner.optimizers.names.values() for name in names)
    kept = dict(base.model.named_parameters())
    frozen = {name.replace(".base_layer", ""): one for name, one in learner.model.named_parameters()}
    assert all(torch.equal(one, frozen[name]) for name, one in kept.items())


@pytest.mark.parametrize("kind", ["tiny", "gemma 3", "qwen3 moe"])
def test_versions_of_adapters_alone_are_what_the_trainer_computes(tiny: Path, tmp_path: Path, kind: str) -> None:
    """An engine reads the base once, and of each version the adapters."""
    start = tiny
    if kind != "tiny":
        start = tmp_path / "model"
        families.write(start, *families.FAMILIES[kind][:2])
    learner, kept, base = learner_of(start), KeptBase(), published_base.publish_base(tmp_path, start)
    assert base == published_base.publish_base(tmp_path, start), "a trainer that starts again finds it"
    before = None
    for version in (1, 2):
        learner.train(some_batch(version), PolicyLoss())
        known = Published(before)
        prepared = weight_files.prepare(learner, version, [[5, 6, 7, 8, 9]], torch.bfloat16, known, apart=True)
        expected = learner.log_probs(canary_probes.sequences_for(learner, [[5, 6, 7, 8, 9]]))
        learner.train(some_batch(version), PolicyLoss())
        manifest = weight_files.write_weights(tmp_path, prepared, learner, shard_bytes=1 << 20, base=base)
        assert (manifest.canary.log_probs, manifest.canary.precision) == (expected, "float32")
        assert sum(one.bytes for one in manifest.files.values()) < sum(one.bytes for one in base.files.values()) / 2
        directory = tmp_path / path_of(version)
        _, agreement = load_verified(directory, version, manifest, kept=kept)
        assert agreement.largest < 1e-4
        before = manifest.canary
        for file in base.beside(directory).glob("*.safetensors"):
            file.unlink(missing_ok=version == 2)
    # The version before is told apart, and the base without adapters is no version.
    older = load_file(tmp_path / path_of(1) / ADAPTER_FILE)
    for tensors, sentence in (
        (older, "is that of the version before"),
        ({name: torch.zeros_like(one) for name, one in older.items()}, "the canary"),
        ({name: one[:, :1].contiguous() for name, one in older.items()}, "not have in this shape"),
        ({name.replace("lora_A", "lora_C"): one for name, one in older.items()}, "not pairs of matrices"),
    ):
        save_file(tensors, directory / ADAPTER_FILE)
        spoiled = {**manifest.files, ADAPTER_FILE: content_of(directory / ADAPTER_FILE)}
        with pytest.raises(WeightsRefusedError, match=sentence):
            load_verified(directory, 2, Manifest(spoiled, manifest.canary, base=base), kept=kept)
    with pytest.raises(WeightsRefusedError, match=r"model\.safetensors cannot be read"):
        load_verified(tmp_path / path_of(1), 1, manifests.read(tmp_path / path_of(1)), kept=KeptBase())


def test_a_base_that_lost_a_part_is_written_again(tiny: Path, tmp_path: Path) -> None:
    base = published_base.publish_base(tmp_path, tiny)
    lost = tmp_path / "weights" / base.name / WEIGHTS_FILE
    for left in (None, b""):
        lost.unlink()
        if left is not None:
            lost.write_bytes(left)
        assert published_base.publish_base(tmp_path, tiny) == base
        manifests.verify(lost.parent, Manifest(base.files))


def test_base_has_the_files_of_a_model_that_are_links(tmp_path: Path) -> None:
    """As they are in the cache of a hub."""
    blobs, model = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshot"
    contents = {name: name.encode() for name in ("config.json", "model.safetensors")}
    for directory in (blobs, model):
        directory.mkdir(parents=True)
    for name, content in contents.items():
        (blobs / name).write_bytes(content)
        (model / name).symlink_to(Path("..", "blobs", name))
    base = published_base.publish_base(tmp_path / "run", model)
    found = base.beside(tmp_path / "run" / path_of(1))
    assert {file.name: file.read_bytes() for file in found.iterdir()} == contents


@pytest.mark.parametrize("kind", ["tiny", "gemma 3", "qwen3 moe"])
def test_what_is_published_is_what_the_trainer_computes(tiny: Path, tmp_path: Path, kind: str) -> None:
    start = tiny
    if kind != "tiny":
        start = tmp_path / "model"
        families.write(start, *families.FAMILIES[kind][:2])
    learner = learner_of(start)
    learner.train(some_batch(), PolicyLoss())
    learner.save(tmp_path / "published")
    probe = [[5, 6, 7, 8, 9], [10, 11, 12]]
    ours = learner.log_probs(probe)
    assert ours != learner_of(start).log_probs(probe)
    engine = unverified.load(tmp_path / "published", 1)
    with torch.inference_mode():
        for ids, expected in zip(probe, ours, strict=True):
            assert engine.scores([ids])[0] == pytest.approx(expected, abs=1e-5)
    assert set(load_file(tmp_path / "published" / WEIGHTS_FILE)) == set(load_file(start / WEIGHTS_FILE))


def test_a_checkpoint_has_adapters_only_and_training_goes_on_to_the_bit(tiny: Path, tmp_path: Path) -> None:
    learner = learner_of(tiny)
    learner.train(some_batch(1), PolicyLoss())
    target = tmp_path / "step-000001"
    written = checkpoints.write_checkpoint(target, learner, Progress(step=1, version=1))
    assert checkpoints.consistency_problem(target, written) == ""
    assert ADAPTER_FILE in written
    assert WEIGHTS_FILE not in written
    assert written[ADAPTER_FILE].bytes < (tiny / WEIGHTS_FILE).stat().st_size / 2
    del written[ADAPTER_FILE]
    assert checkpoints.consistency_problem(target, written)
    resumed = learner_of(target)
    assert checkpoints.restore_optimizers(target, resumed)
    for one in (learner, resumed):
        one.train(some_batch(2), PolicyLoss(), optimizer_steps=2)
    left, right = (one.gathered("trained weights") | one.gathered("optimizers") for one in (learner, resumed))
    assert left.keys() == right.keys()
    assert all(torch.equal(one, right[name]) for name, one in left.items())
    assert load_file(target / OPTIMIZER_FILE).keys() <= left.keys()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft uses names that transformers will remove
def test_peft_reads_the_adapters(tiny: Path, tmp_path: Path) -> None:
    import peft
    import transformers

    learner = learner_of(tiny)
    learner.train(some_batch(), PolicyLoss())
    learner.save_trained(tmp_path / "adapters")
    theirs = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tiny), tmp_path / "adapters"
    )
    ids = [5, 6, 7, 8, 9]
    with torch.no_grad():
        spread = torch.log_softmax(theirs(torch.tensor([ids])).logits[0], dim=-1)
    assert spread[range(4), ids[1:]].tolist() == pytest.approx(learner.log_probs([ids])[0], abs=1e-5)


def test_the_reference_is_the_model_without_adapters(tiny: Path, tmp_path: Path) -> None:
    """The distance, and the gradient that it gives, are those to a second copy of the model."""
    loss = PolicyLoss(reference_weight=2.0)
    found = []
    for second_copy in (False, True):
        learner = learner_of(tiny)
        if second_copy:
            learner.compare_with(tiny)
        else:
            assert reference_model.keep_reference(tmp_path, learner, new_run=True) == {}
        found.append([learner.train(some_batch(), loss).metrics["kl_reference"] for _ in range(4)])
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    assert found[0][-1] > found[0][1] > 1e-4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "is_checkpoint", "sentence"),
    [
        (None, True, "has adapters, and the run file trains all weights"),
        (Adapters(rank=8, alpha=16.0), True, "has adapters of rank 4 and alpha 8.0, not of rank 8"),
        (ADAPTERS, True, ""),
    ],
)
def test_a_run_goes_on_with_what_it_trained(
    tiny: Path, tmp_path: Path, wanted: Adapters | None, is_checkpoint: bool, sentence: str
) -> None:
    learner_of(tiny).save_trained(tmp_path)
    if not sentence:
        check_start(tmp_path, wanted, is_checkpoint=is_checkpoint)
        with pytest.raises(ConfigError, match="has whole weights, and the run file trains adapters"):
            check_start(tiny, wanted, is_checkpoint=True)
        with pytest.raises(ConfigError, match="adapters of other layers"):
            learner_of(tmp_path, Adapters(rank=4, alpha=8.0, targets=("q_proj",)))
        return
    with pytest.raises(ConfigError, match=sentence):
        check_start(tmp_path, wanted, is_checkpoint=is_checkpoint)


@pytest.mark.parametrize(
    ("lora", "sentence"),
    [
        ("{alpha: 8}", "has no rank"),
        ("{rank: 4, dropout: 0.1}", "must not have dropout"),
        ("{}, publication: {adapters: apart}", "no adapters are trained"),
        ("{rank: 4}, publication: {adapters: apart}}\nengines: {kind: vllm", "load whole weights only: use merged"),
        (
            "{rank: 4}, publication: {adapters: apart}}\nengines: {kind: sglang, args: [--dp-size, '2']",
            "with --dp-size or --pp-size load whole weights only",
        ),
        (
            "{rank: 4}, reference: initial, warmup: {dataset: d.jsonl, steps: 2}",
            "the reference would be the model before",
        ),
    ],
)
def test_what_contradicts_adapters_is_refused(tmp_path: Path, lora: str, sentence: str) -> None:
    (tmp_path / "run.yaml").write_text(f"name: r\ntraining: {{lora: {lora}}}\n")
    with pytest.raises(ConfigError, match=sentence):
        load_config(tmp_path / "run.yaml")


def test_an_unknown_layer_is_named(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="no linear layer 'query'"):
        learner_of(tiny, Adapters(rank=4, alpha=8.0, targets=("query",)))
