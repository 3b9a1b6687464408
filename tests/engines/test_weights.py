"""Weights are loaded exactly as announced, or refused."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from agentrl.engines import manifest as manifests
from agentrl.engines.canary import MEAN_LIMIT_HALF, Canary, Noise, compare, part_of
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.embedded.model_loading import load_verified
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.engines.interface import EngineCall, Sampling, WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.tokens.image_ids import id_of
from tests.engines import unverified
from tests.engines.conftest import FILES, TEXTS, Weights


def copy_of(weights: Weights, to: Path) -> Path:
    shutil.copytree(weights.path, to)
    return to


def test_weights_with_an_equal_canary_are_loaded(first: Weights) -> None:
    model, agreement = load_verified(first.path, 7, manifests.read(first.path))
    assert model.version == 7
    assert agreement.tokens == 11 + 29
    assert agreement.largest < 1e-5


def cut_off(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def flip_a_byte(path: Path) -> None:
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (path / "model.safetensors").write_bytes(data)


def lose_a_file(path: Path) -> None:
    (path / "config.json").unlink()


def lose_the_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def break_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"files": {"model.safetensors": {"bytes": "many"}}}')


def announce_again(path: Path, canary: Canary | None = None) -> None:
    """A manifest that agrees with invalid files."""
    manifests.write(path, manifests.describe(path, FILES, canary or manifests.read(path).canary))


def other_weights(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.5
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    announce_again(path)


def no_numbers(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], torch.nan)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    announce_again(path)


def lose_a_tensor(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    announce_again(path)


def no_safetensors(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"rubbish" * 1000)
    announce_again(path)


def other_model(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    announce_again(path)


def strange_canary(path: Path) -> None:
    announce_again(path, Canary([[1, 2, 3]], [[-1.0]]))


def unknown_ids(path: Path) -> None:
    announce_again(path, Canary([[1, 99_999]], [[-1.0]]))


def leave_the_directory(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../outside"] = manifest["files"]["config.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))


DAMAGES: dict[Callable[[Path], None], str] = {
    cut_off: "model.safetensors has .* bytes, not",
    flip_a_byte: "another content than was written",
    lose_a_file: "config.json cannot be read",
    lose_the_manifest: "has no manifest.json",
    break_the_manifest: "is damaged",
    other_weights: "the canary differs: mean",
    no_numbers: "the canary differs: mean .* nan",
    lose_a_tensor: "1 tensors .* model.layers.1.mlp.up_proj.weight",
    no_safetensors: "not a complete safetensors file",
    other_model: "tensors in .* are not those of its config.json",
    strange_canary: "another number of log-probs",
    unknown_ids: "ids that the model does not know",
    leave_the_directory: "no plain file name",
}


async def test_wrong_weights_are_named_and_the_old_version_still_serves(
    engine: EmbeddedEngine, first: Weights, second: Weights, tmp_path: Path
) -> None:
    for damage, sentence in DAMAGES.items():
        path = copy_of(second, tmp_path / damage.__name__)
        damage(path)
        with pytest.raises(WeightsRefusedError, match=sentence):
            await engine.update(str(path), 2)
        assert (await engine.load()).version == 1, damage.__name__
    answer = await engine.generate(EngineCall("r", [4, 5], Sampling(max_new_tokens=5, temperature=0.0), deadline_s=20))
    assert answer.ids == first.greedy([4, 5], 5)
    await engine.update(str(second.path), 2)
    assert (await engine.load()).version == 2


async def test_an_update_while_calls_are_under_way(
    engine: EmbeddedEngine, first: Weights, second: Weights, tmp_path: Path
) -> None:
    started = asyncio.Event()
    call = engine.generate(
        EngineCall("r", [4, 5, 6], Sampling(max_new_tokens=200, seed=3), deadline_s=60),
        on_progress=lambda _: started.set(),
    )
    task = asyncio.create_task(call)
    await started.wait()
    await engine.update(str(second.path), 2)
    answer = await task
    assert [version for version, _ in answer.versions] == [1, 2]
    before = answer.versions[0][1]
    ids = [4, 5, 6, *answer.ids]
    expected = first.log_probs(ids)[2 : 2 + before] + second.log_probs(ids)[2 + before :]
    assert max(abs(a - b) for a, b in zip(expected, answer.log_probs, strict=True)) <= 1e-5


def test_the_same_seed_builds_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build_tiny(tmp_path / name, TEXTS, seed)
    contents = {
        name: [(tmp_path / name / file).read_bytes() for file in (*FILES, "tokenizer_config.json")] for name in "abc"
    }
    assert contents["a"] == contents["b"]
    assert contents["a"][1] != contents["c"][1]


def test_transformers_reads_the_built_model(tmp_path: Path) -> None:
    build_tiny(tmp_path, TEXTS, 0)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert 400_000 < sum(one.numel() for one in model.parameters()) < 460_000
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token == "<|end|>"
    assert model.dtype == torch.float32
    # Saved again by transformers, it is the same model.
    model.save_pretrained(tmp_path / "again")
    shutil.copy(tmp_path / "tokenizer.json", tmp_path / "again")
    ours, theirs = unverified.load(tmp_path, 1), unverified.load(tmp_path / "again", 1)
    assert torch.equal(ours.layers[1].qkv, theirs.layers[1].qkv)
    assert ours.architecture.theta == theirs.architecture.theta


def test_agreement_measures_the_difference_of_log_probs() -> None:
    canary = Canary([[1, 2, 3]], [[-1.0, -2.0]])
    same = compare(canary, [[-1.0, -2.0]])
    assert (same.mean, same.problem()) == (0.0, "")
    apart = compare(canary, [[-1.0, -2.004]])
    assert apart.mean == pytest.approx(0.002)
    assert apart.largest == pytest.approx(0.004)
    assert "limit 0.001" in apart.problem()
    in_half = compare(canary, [[-1.0, -2.0 + 0.004]], MEAN_LIMIT_HALF)
    assert in_half.problem() == ""
    by_a_trainer_in_half = Canary([[1, 2, 3]], [[-1.0, -2.0]], "bfloat16")
    assert compare(by_a_trainer_in_half, [[-1.0, -2.004]]).problem() == ""
    assert compare(by_a_trainer_in_half, [[-1.0, -2.1]]).problem()
    assert compare(Canary(), []).problem() == ""
    # Only a few of many tokens follow an image, and these must agree among themselves too.
    image, right = [1, id_of(5), id_of(5), 2, 3], [0.0, 0.0, -1.0, -2.0]
    shown = Canary([image, [*range(100)]], [right, [-1.0] * 99])
    assert compare(shown, [[0.0, 0.0, -1.0, -2.004], [-1.0] * 99]).mean == pytest.approx(0.002)
    assert compare(shown, [[0.0, 0.0, -1.0, -2.004], [-1.0] * 99]).problem()
    assert compare(part_of(shown, [0], 3), [[-2.004]]).mean == pytest.approx(0.004)
    assert compare(shown, [right, [-1.0] * 99]).problem() == ""


def noisy(values: list[float], noise: float, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [value + chance.gauss(0, noise) for value in values]


def test_the_version_before_is_refused_where_one_step_changes_less_than_the_limit() -> None:
    ids, now = [list(range(1001))], noisy([-2.0] * 1000, 1.0)
    before = noisy(now, 3e-3, seed=1)
    canary = Canary(ids, [now], "bfloat16", [before])
    for noise in (1e-6, 1e-3):
        assert compare(canary, [noisy(now, noise, seed=2)]).problem() == ""
        assert "of the version before" in compare(canary, [noisy(before, noise, seed=2)]).problem()
    # If the noise hides a step, the comparison reports nothing about the version before.
    assert compare(canary, [noisy(before, 1.5e-2, seed=2)]).towards_before == 0.0
    # The trainer rounds too. For a small step the announced difference is mostly rounding, and must refuse no version.
    for seed in range(3, 43):
        rounded, rounded_before = noisy(now, 1e-2, seed), noisy(now, 1e-2, 100 + seed)
        canary_of_rounding = Canary(ids, [rounded], "bfloat16", [rounded_before])
        assert compare(canary_of_rounding, [noisy(now, 5e-3, 200 + seed)]).towards_before == 0.0
    # With few tokens, chance must refuse no version either, but a whole step must be seen.
    tokens, refused, seen = 26, 0, 0
    for seed in range(400):
        exact = noisy([-2.0] * tokens, 1.0, seed)
        few, few_before = (noisy(exact, 1e-2, seed=1000 * number + seed) for number in (1, 2))
        small = Canary([list(range(tokens + 1))], [few], "bfloat16", [few_before])
        refused += bool(compare(small, [exact]).towards_before > 0.5)
        step = noisy(few, 0.1, seed=3000 + seed)
        stepped = Canary([list(range(tokens + 1))], [few], "bfloat16", [step])
        seen += bool(compare(stepped, [noisy(step, 1e-2, seed=4000 + seed)]).towards_before > 0.5)
    assert refused <= 1
    assert seen == 400
    # Without a step in between both are the same.
    assert compare(Canary(ids, [now], "float32", [now]), [noisy(now, 1e-6)]).problem() == ""


def test_the_limit_follows_the_noise_of_the_first_publication() -> None:
    ids, now = [list(range(101))], [-2.0] * 100
    off = [value + 4e-3 for value in now]
    assert compare(Canary(ids, [now], "bfloat16"), [off]).problem() == ""
    measured = Canary(ids, [now], "bfloat16", noise=Noise(5e-4, MEAN_LIMIT_HALF))
    assert compare(measured, [off]).limit == pytest.approx(2e-3)
    assert "limit 0.002" in compare(measured, [off]).problem()
    # The limit is bounded: above by the limit of this precision, below by a twentieth of it.
    assert compare(measured, [off], limit=1.0).limit == 1.0
    for mean, limit in ((1.0, MEAN_LIMIT_HALF), (0.0, 0.05 * MEAN_LIMIT_HALF)):
        assert compare(Canary(ids, [now], "bfloat16", noise=Noise(mean, MEAN_LIMIT_HALF)), [off]).limit == limit


def test_a_manifest_round_trips_through_json(first: Weights, tmp_path: Path) -> None:
    manifest: Manifest = first.manifest()
    manifests.write(tmp_path, manifest)
    assert manifests.read(tmp_path) == manifest
