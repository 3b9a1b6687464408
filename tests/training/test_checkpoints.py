"""A checkpoint restores every bit, or is refused."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from agentrl.errors import ConfigError, DiskError
from agentrl.policies.loss_settings import PolicyLoss
from agentrl.store.history import valid_checkpoints
from agentrl.store.weight_documents import Checkpoint, Lineage
from agentrl.training import atomic_directories, checkpoints
from agentrl.training.checkpoints import Progress
from agentrl.training.learner import Learner
from agentrl.training.optimizers import Kind
from tests.training.conftest import make_learner
from tests.training.trees import batch_of, group


def train(learner: Learner, first: int, count: int) -> list[float]:
    return [
        learner.train(batch_of(group(random.Random(number), 4)), PolicyLoss()).metrics["loss"]
        for number in range(first, first + count)
    ]


def bits(learner: Learner) -> dict[str, torch.Tensor]:
    return {**learner.model.state_dict(), **learner.optimizers.tensors()}


def assert_same_bits(one: Learner, other: Learner) -> None:
    left, right = bits(one), bits(other)
    assert left.keys() == right.keys()
    assert [name for name, value in left.items() if not torch.equal(value, right[name])] == []


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_training_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tiny: Path, tmp_path: Path, kind: Kind) -> None:
    learner = make_learner(tiny, exact=False, optimizer=kind, learning_rate=1e-3)
    train(learner, 0, 2)
    written = checkpoints.write_checkpoint(tmp_path / "step-000002", learner, Progress(step=2, version=3))
    assert checkpoints.consistency_problem(tmp_path / "step-000002", written) == ""
    resumed = make_learner(tmp_path / "step-000002", exact=False, optimizer=kind, learning_rate=1e-3)
    assert checkpoints.restore_optimizers(tmp_path / "step-000002", resumed)
    assert_same_bits(learner, resumed)
    assert train(learner, 2, 2) == train(resumed, 2, 2)
    assert_same_bits(learner, resumed)
    assert checkpoints.read_progress(tmp_path / "step-000002").version == 3


def test_a_saved_model_is_complete_after_its_source_was_removed(tiny: Path, tmp_path: Path) -> None:
    """Retention removes the checkpoint that a trainer started from, a few checkpoints later."""
    first, second = tmp_path / "step-000001", tmp_path / "step-000002"
    checkpoints.write_checkpoint(first, make_learner(tiny, exact=False), Progress(step=1, version=1))
    resumed = make_learner(first, exact=False)
    had = {file.name for file in first.iterdir()}
    checkpoints.remove(first)
    checkpoints.write_checkpoint(second, resumed, Progress(step=2, version=2))
    assert {file.name for file in second.iterdir()} == had
    assert "tokenizer.json" in had


def test_muon_has_the_matrices_inside_and_adamw_the_rest(tiny: Path) -> None:
    names = make_learner(tiny, exact=False, optimizer="muon").optimizers.names
    assert all(".layers." in name and "norm" not in name for name in names["muon"])
    assert "model.embed_tokens.weight" in names["adamw"]
    assert any("layernorm" in name for name in names["adamw"])
    both = names["muon"] + names["adamw"]
    assert sorted(both) == sorted(name for name, _ in make_learner(tiny).model.named_parameters())


def test_another_optimizer_begins_with_fresh_state_and_foreign_state_is_refused(tiny: Path, tmp_path: Path) -> None:
    learner = make_learner(tiny, exact=False, optimizer="muon", learning_rate=1e-3)
    train(learner, 0, 1)
    checkpoints.write_checkpoint(tmp_path / "c", learner, Progress(step=1, version=1))
    other = make_learner(tmp_path / "c", exact=False, optimizer="adamw")
    assert not checkpoints.restore_optimizers(tmp_path / "c", other)
    assert other.optimizers.tensors() == {}
    with pytest.raises(ConfigError, match="has not"):
        other.optimizers.load({"nobody::momentum_buffer": torch.zeros(1)})


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "unnamed"])
def test_a_damaged_checkpoint_is_detected(tiny: Path, tmp_path: Path, damage: str) -> None:
    learner = make_learner(tiny, exact=False, learning_rate=1e-3)
    target = tmp_path / "c"
    written = checkpoints.write_checkpoint(target, learner, Progress(step=1, version=1))
    file = target / checkpoints.WEIGHTS_FILE
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-1])
    elif damage == "flipped":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "missing":
        file.unlink()
    else:
        del written[checkpoints.WEIGHTS_FILE]
    assert "model.safetensors" in checkpoints.consistency_problem(target, written)


def write_half(target: Path) -> None:
    with atomic_directories.whole_directory(target, durable=True) as directory:
        (directory / "half").write_text("ha")
        raise KeyboardInterrupt


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    target = tmp_path / "step-000001"
    with pytest.raises(KeyboardInterrupt):
        write_half(target)
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".unfinished-step-000001"]
    atomic_directories.sweep_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with atomic_directories.whole_directory(target, durable=True) as directory:
        (directory / "whole").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_an_unreadable_disk_is_reported_as_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with (
        pytest.raises(DiskError, match="cannot be written"),
        atomic_directories.whole_directory(tmp_path / "file" / "step", durable=True),
    ):
        pass


# ---- which checkpoints are valid ----


def lineage(name: str, parent: str = "", *, at: int) -> Lineage:
    return Lineage(id=name, parent_checkpoint=parent, opened_at=datetime(2026, 1, 1, 0, at, tzinfo=UTC))


def checkpoint(step: int, name: str) -> Checkpoint:
    return Checkpoint(id=f"step-{step:06d}.{name}", step=step, lineage=name)


def test_a_checkpoint_is_valid_while_every_later_lineage_began_from_it_or_after() -> None:
    saved = [checkpoint(10, "a"), checkpoint(20, "a"), checkpoint(30, "a"), checkpoint(25, "b"), checkpoint(40, "b")]
    lives = [lineage("a", at=1), lineage("b", "step-000020.a", at=2)]
    assert [one.id for one in valid_checkpoints(lives, saved)] == [
        "step-000040.b",
        "step-000025.b",
        "step-000020.a",
        "step-000010.a",
    ]
    lives.append(lineage("c", "step-000025.b", at=3))
    assert [one.step for one in valid_checkpoints(lives, saved)] == [25, 20, 10]
    lives.append(lineage("d", "step-000025.b", at=4))
    assert [one.step for one in valid_checkpoints(lives, saved)] == [25, 20, 10]
    # A lineage that began without a checkpoint makes all earlier checkpoints invalid.
    lives.append(lineage("e", at=5))
    assert valid_checkpoints(lives, saved) == []
    assert valid_checkpoints([], []) == []


def test_history_is_followed_through_a_checkpoint_that_was_deleted() -> None:
    lives = [lineage("a@x.1", at=1), lineage("b", "step-000020.a@x.1", at=2)]
    assert [one.step for one in valid_checkpoints(lives, [checkpoint(10, "a@x.1"), checkpoint(30, "a@x.1")])] == [10]
