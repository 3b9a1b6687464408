"""Loads a model from a directory and verifies it.

Invariants of `load_verified`: the tensors of a model are exactly those of the files that agree with the manifest; a
model whose canary does not agree with the writer's is never returned.
"""

from __future__ import annotations

from pathlib import Path

import safetensors
import torch
from safetensors.torch import load as load_tensors

from agentrl.engines.canary import Agreement, compare
from agentrl.engines.embedded.architecture import parse_architecture
from agentrl.engines.embedded.decoder import Model, assemble, score
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.manifest import CONFIG_FILE, WEIGHTS_FILE, Manifest, read_verified
from agentrl.errors import ConfigError


def load_verified(directory: Path, version: int, manifest: Manifest) -> tuple[Model, Agreement]:
    """A model whose files and answers agree with the manifest. Raises WeightsRefusedError."""
    missing = {CONFIG_FILE, WEIGHTS_FILE} - manifest.files.keys()
    if missing:
        raise WeightsRefusedError(f"The manifest of {directory} does not name {', '.join(sorted(missing))}.")
    contents = read_verified(directory, manifest)
    model = model_of(directory, version, contents[CONFIG_FILE], contents[WEIGHTS_FILE])
    agreement = check_canary(model, manifest)
    return model, agreement


@torch.inference_mode()
def check_canary(model: Model, manifest: Manifest) -> Agreement:
    """Raises WeightsRefusedError if the model gives other log-probs for the canary than its writer."""
    vocabulary = model.architecture.vocab_size
    for ids in manifest.canary.ids:
        if any(not 0 <= token < vocabulary for token in ids):
            raise WeightsRefusedError(f"The canary of version {model.version} has ids that the model does not know.")
    agreement = compare(manifest.canary, [score(model, ids) for ids in manifest.canary.ids])
    if problem := agreement.problem():
        raise WeightsRefusedError(f"Version {model.version} is refused: {problem}.")
    return agreement


@torch.inference_mode()
def model_of(directory: Path, version: int, config: bytes, tensors: bytes) -> Model:
    """From the contents of its files, whose names and shapes are checked. Raises WeightsRefusedError."""
    try:
        architecture = parse_architecture(config, directory / CONFIG_FILE)
    except ConfigError as wrong:
        raise WeightsRefusedError(wrong.message) from wrong
    try:
        loaded = load_tensors(tensors)
    except safetensors.SafetensorError as broken:
        raise WeightsRefusedError(
            f"{directory / WEIGHTS_FILE} is not a complete safetensors file: {broken}."
        ) from broken
    if architecture.tie_word_embeddings:
        # Some writers store the tied head a second time.
        loaded.pop("lm_head.weight", None)
    shapes = {name: tuple(tensor.shape) for name, tensor in loaded.items()}
    expected = architecture.shapes()
    if shapes != expected:
        wrong_names = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        listed = ", ".join(wrong_names[:3]) + (", ..." if len(wrong_names) > 3 else "")
        raise WeightsRefusedError(
            f"{len(wrong_names)} tensors in {directory} are not those of its {CONFIG_FILE}: {listed}."
        )
    return assemble(loaded, architecture, version)
