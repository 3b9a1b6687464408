"""Loads a model from a directory and verifies it.

Invariants of `load_verified`: the tensors of a model are exactly those of the files that agree with the manifest; a
model whose canary does not agree with the writer's is never returned.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from agentrl.engines.canary import Agreement, compare
from agentrl.engines.embedded.architecture import Architecture, architecture_of
from agentrl.engines.embedded.decoder import assemble
from agentrl.engines.embedded.served_model import ServedModel
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.manifest import CONFIG_FILE, Manifest, read_verified
from agentrl.engines.safetensors_layout import ONE_FILE, places_of
from agentrl.errors import ConfigError

_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""By the names that safetensors has."""


def load_verified(directory: Path, version: int, manifest: Manifest) -> tuple[ServedModel, Agreement]:
    """A model whose files and answers agree with the manifest. Raises WeightsRefusedError."""
    missing = {CONFIG_FILE, *(() if manifest.weights else (ONE_FILE,))} - manifest.files.keys()
    if missing:
        raise WeightsRefusedError(f"The manifest of {directory} does not name {', '.join(sorted(missing))}.")
    contents = read_verified(directory, manifest)
    shards = {name: contents[name] for name in manifest.weights}
    model = model_of(directory, version, bytes(contents[CONFIG_FILE]), shards)
    agreement = check_canary(model, manifest)
    return model, agreement


def read_unpublished(directory: Path, version: int) -> ServedModel:
    """A model without a manifest. Raises WeightsRefusedError if its tensors are not those of its configuration."""
    shards = {file.name: bytearray(file.read_bytes()) for file in sorted(directory.glob("*.safetensors"))}
    return model_of(directory, version, (directory / CONFIG_FILE).read_bytes(), shards)


@torch.inference_mode()
def check_canary(model: ServedModel, manifest: Manifest) -> Agreement:
    """Raises WeightsRefusedError if the model gives other log-probs for the canary than its writer."""
    for ids in manifest.canary.ids:
        if any(not 0 <= token < model.vocabulary for token in ids):
            raise WeightsRefusedError(f"The canary of version {model.version} has ids that the model does not know.")
    agreement = compare(manifest.canary, [model.score(ids) for ids in manifest.canary.ids])
    if problem := agreement.problem():
        raise WeightsRefusedError(f"Version {model.version} is refused: {problem}.")
    return agreement


def model_of(directory: Path, version: int, config: bytes, shards: Mapping[str, bytearray]) -> ServedModel:
    """From the contents of its files, whose names and shapes are checked. Raises WeightsRefusedError."""
    try:
        architecture = architecture_of(config, directory / CONFIG_FILE)
    except ConfigError as wrong:
        raise WeightsRefusedError(wrong.message) from wrong
    loaded: dict[str, torch.Tensor] = {}
    for name, data in shards.items():
        try:
            loaded |= tensors_of(data)
        except ValueError as broken:
            raise WeightsRefusedError(f"{directory / name} is not a complete safetensors file: {broken}.") from broken
    if architecture is None:
        return _of_transformers(directory, version, config, loaded)
    return _own(directory, version, architecture, loaded)


@torch.inference_mode()
def _own(directory: Path, version: int, architecture: Architecture, loaded: dict[str, torch.Tensor]) -> ServedModel:
    if architecture.tie_word_embeddings:
        # Some writers store the tied head a second time.
        loaded.pop("lm_head.weight", None)
    shapes = {name: tuple(tensor.shape) for name, tensor in loaded.items()}
    expected = architecture.shapes()
    if shapes != expected:
        _refuse_names(
            directory, {name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name)}
        )
    return assemble(loaded, architecture, version)


def _of_transformers(directory: Path, version: int, config: bytes, loaded: Mapping[str, torch.Tensor]) -> ServedModel:
    # Imported here, because it takes seconds that the engine's own decoder does not need.
    import transformers

    from agentrl.engines.embedded.attention_model import AttentionModel, is_attention_only
    from agentrl.engines.embedded.state_model import StateModel

    try:
        with tempfile.TemporaryDirectory() as place:
            # transformers reads a file only; this one has the content that was checked.
            Path(place, CONFIG_FILE).write_bytes(config)
            described = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
        of_kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(described)]
        model, found = of_kind.from_pretrained(
            None, config=described, state_dict=dict(loaded), dtype=torch.float32, output_loading_info=True
        )
    except (ValueError, KeyError, TypeError, RuntimeError) as wrong:
        sentence = f"The embedded engine cannot run {directory}: transformers has no such causal model ({wrong})."
        raise WeightsRefusedError(sentence) from wrong
    differing = {*found["missing_keys"], *found["unexpected_keys"], *(one[0] for one in found["mismatched_keys"])}
    if differing:
        _refuse_names(directory, differing)
    model.requires_grad_(False).train(False)
    return AttentionModel(version, model) if is_attention_only(model) else StateModel(version, model)


def _refuse_names(directory: Path, wrong: set[str]) -> None:
    listed = ", ".join(sorted(wrong)[:3]) + (", ..." if len(wrong) > 3 else "")
    raise WeightsRefusedError(f"{len(wrong)} tensors in {directory} are not those of its {CONFIG_FILE}: {listed}.")


def tensors_of(data: bytearray) -> dict[str, torch.Tensor]:
    """The tensors of a file, which share its memory. Raises ValueError, with the reason, if it is no such file."""
    found: dict[str, torch.Tensor] = {}
    for name, place in places_of(data).items():
        if (dtype := _TYPES.get(place.dtype)) is None:
            raise ValueError(f"{name} is of the type {place.dtype}")
        flat = torch.frombuffer(data, dtype=torch.uint8)[place.begin : place.end].view(dtype)
        if flat.numel() != math.prod(place.shape):
            raise ValueError(f"{name} has another size than its shape")
        found[name] = flat.view(place.shape)
    return found
