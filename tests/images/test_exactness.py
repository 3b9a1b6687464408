"""Engine and trainer compute for images what the plain model of transformers computes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
import torch

from agentrl.engines.adapters import ADAPTER_CONFIG
from agentrl.engines.embedded import slot_scheduler
from agentrl.engines.embedded.adapted_weights import KeptBase
from agentrl.engines.embedded.model_loading import load_verified
from agentrl.store.publications import path_of
from agentrl.training import learner_images, lora, published_base, weight_files
from agentrl.training.batch import Trajectory
from agentrl.training.checkpoints import WEIGHTS_FILE
from agentrl.training.learner import Learner, LearnerSettings
from agentrl.training.lora import Adapters
from agentrl.training.micro_batch import collate
from agentrl.training.packing import rows
from tests.engines import unverified
from tests.engines.http_requests import ask, engine_of, random_ids, run
from tests.images import tiny_vision
from tests.images.plain_vision import Seen
from tests.training.trees import batch_of, trajectory_of_calls

CLOSE = 1e-4


@pytest.fixture(scope="module", params=tiny_vision.KINDS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return Seen(tiny_vision.write(tmp_path_factory.mktemp("vision") / request.param, request.param))


def of_group(seen: Seen) -> list[Trajectory]:
    """Two members that share an image and part behind it, one of them with a further image after a turn; a third that
    is shown another image of the same size."""
    chance = random.Random(2)

    def text(length: int) -> list[int]:
        return random_ids(chance, length, seen.words)

    begin, question = text(3), text(4)
    same = [*begin, *seen.image(5), *question]
    first = [(0, same, text(3))]
    first.append((1, [*same, *first[0][2], *text(2), *seen.image(9), *text(2)], text(4)))
    first.append((2, [*same, *text(3), *seen.image(6)], text(2)))
    second = [(0, same, text(5))]
    third = [(0, [*begin, *seen.image(6), *question], text(4))]
    return [trajectory_of_calls(calls, f"r{n}", group="g") for n, calls in enumerate((first, second, third))]


def test_packed_trees_with_images_give_the_log_probs_of_the_plain_model(seen: Seen) -> None:
    learner = Learner(seen.directory, LearnerSettings())
    group = of_group(seen)
    [row] = rows(group, learner.layout)
    assert len(row) < sum(one.tokens for one in group), "they share what they have in common"
    micro = collate([row], learner.layout, torch.device("cpu"), torch.float32, seen.patches)
    assert micro.images is not None
    assert len(micro.images.frames) == 3, "each image once"
    [scored] = learner._scorer([micro])
    for index, one in enumerate(group):
        expected = []
        for at in one.trained_segments:
            path, parent = list(one.segments[at].ids), one.segments[at].parent
            while parent >= 0:
                path, parent = [*one.segments[parent].ids, *path], one.segments[parent].parent
            expected += seen.log_probs([int(token) for token in path])[-len(one.segments[at].ids) :]
        own = micro.record == index
        order = torch.argsort(micro.order[own])
        assert scored.log_probs[own][order].tolist() == pytest.approx(expected, abs=CLOSE)
    scored.log_probs.sum().backward()
    towers = [value.grad for name, value in learner.model.named_parameters() if "visual" in name]
    assert all(grad is not None for grad in towers)
    assert sum(float(grad.abs().sum()) for grad in towers if grad is not None) > 0


def test_engine_with_images_gives_the_log_probs_of_the_plain_model(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are cut within an image, rows go on over turns, and prompts that differ in nothing but their image share
    nothing behind it."""
    monkeypatch.setattr(slot_scheduler, "MAX_PROMPT_TOKENS", 7)
    engine = engine_of(unverified.load(seen.directory, 1), slots=3)
    chance = random.Random(4)
    begin, question = random_ids(chance, 20, seen.words), random_ids(chance, 5, seen.words)
    histories = {f"t.s{n}": [*begin, *seen.image(number), *question] for n, number in enumerate((5, 6, 9, 5))}
    done = []
    with torch.inference_mode():
        for turn in range(2):
            asked = [
                ask(engine, f"{name}/c{turn}", ids, 4, seed=n, images=seen.patches)
                for n, (name, ids) in enumerate(histories.items())
            ]
            run(engine)
            done += asked
            for name, request in zip(histories, asked, strict=True):
                histories[name] = [*request.ids, *seen.image(6), *random_ids(chance, 3, seen.words)]
        probe = [*begin, *seen.image(9), *question]
        [scored] = engine.model_of(None).scores([probe], seen.patches)
        assert scored == pytest.approx(seen.log_probs(probe), abs=CLOSE)
    for request in done:
        assert request.error is None
        expected = seen.log_probs(request.ids)[len(request.prompt) - 1 :]
        assert request.log_probs == pytest.approx(expected, abs=CLOSE)
    assert sum(request.cached_tokens for request in done) > 100
    assert done[3].output != done[1].output, "another image"


def test_learner_scores_whole_sequences_with_images(seen: Seen) -> None:
    learner = Learner(seen.directory, LearnerSettings())
    chance = random.Random(6)
    sequences = [
        [*random_ids(chance, 4, seen.words), *seen.image(number), *random_ids(chance, 6, seen.words)]
        for number in (5, 9)
    ]
    sequences.append(random_ids(chance, 9, seen.words))
    learner.images.show(seen.pngs)
    found = learner.log_probs(sequences)
    for ids, own in zip(sequences, found, strict=True):
        assert own == pytest.approx(seen.log_probs(ids), abs=CLOSE)


def test_patches_are_made_of_what_is_trained_and_take_no_more_memory_than_allowed(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Learner(seen.directory, LearnerSettings())
    monkeypatch.setattr(learner_images, "MOST_BYTES", 1)
    learner = Learner(seen.directory, LearnerSettings())
    # Another rank trains what shows the last one.
    images = {**seen.pngs, 77: b"of a record that another rank trains"}
    batch = msgspec.structs.replace(batch_of(of_group(seen)), images=images)
    losses = [one.train(batch, "supervised").metrics["loss"] for one in (usual, learner)]
    assert losses[0] == losses[1]
    largest = max(one.values.nbytes for one in seen.patches.values())
    assert 0 < learner.images.kept.bytes <= largest < usual.images.kept.bytes
    usual.images.show({5: seen.pngs[5]})
    assert usual.images.kept.bytes <= largest, "those of the batch before are not kept"


def test_adapters_of_the_language_model_are_trained_with_images_and_published(seen: Seen, tmp_path: Path) -> None:
    wanted = Adapters(rank=4, alpha=8.0)
    learner = Learner(seen.directory, LearnerSettings(adapters=wanted, learning_rate=1e-2))
    trained = [name for name, one in learner.model.named_parameters() if one.requires_grad]
    assert trained
    assert all(".language_model.layers." in name and ".lora_" in name for name in trained)
    batch = msgspec.structs.replace(batch_of(of_group(seen)), images=seen.pngs)
    losses = [learner.train(batch, "supervised").metrics["loss"] for _ in range(6)]
    assert losses[-1] < losses[0] - 0.2
    probe = [[5, 6, 7, *seen.image(9), 8, 9]]
    learner.images.show(seen.pngs)
    [ours] = learner.log_probs(probe)
    assert max(abs(a - b) for a, b in zip(ours, seen.log_probs(probe[0]), strict=True)) > 0.1
    # Engines compute what it computes: with adapters beside their base, and added to its weights.
    base = published_base.publish_base(tmp_path, seen.directory)
    assert not published_base.missing(seen.directory, map(lora.stored_name, trained))
    for version, apart in ((1, True), (2, False)):
        prepared = weight_files.prepare(learner, version, [[5, 6, 7]], torch.float32, apart=apart)
        of_version = base if apart else None
        made = weight_files.write_weights(tmp_path, prepared, learner, shard_bytes=1 << 20, base=of_version)
        assert made.canary.images
        model, agreement = load_verified(tmp_path / path_of(version), version, made, kept=KeptBase())
        assert agreement.largest < CLOSE
        with torch.inference_mode():
            assert model.scores(probe, seen.patches)[0] == pytest.approx(ours, abs=CLOSE)
    # A checkpoint has them alone, and other programs find the layers.
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    assert WEIGHTS_FILE not in learner.save_trained(directory)
    described = json.loads((directory / ADAPTER_CONFIG).read_bytes())
    assert all(name.startswith("model.language_model.layers.") for name in described["target_modules"])
    resumed = Learner(directory, LearnerSettings(adapters=wanted))
    resumed.images.show(seen.pngs)
    assert resumed.log_probs(probe) == [ours]
    # A layer of the vision tower has adapters if it is named.
    learner = Learner(seen.directory, LearnerSettings(adapters=Adapters(4, 8.0, ("q_proj", "attn.proj"))))
    named = {name.split(".lora_")[0] for name, one in learner.model.named_parameters() if one.requires_grad}
    assert {name.rpartition(".")[2] for name in named if "visual" not in name} == {"q_proj"}
    assert {name.rpartition(".")[2] for name in named if "visual" in name} == {"proj"}
