"""Loads a model from a directory and verifies it.

Invariants of `load_verified`: the tensors of a model are exactly those of the files that agree with the manifest; a
model whose canary does not agree with the writer's is never returned.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.engines import manifest as manifests
from agentrl.engines.adapters import ADAPTER_FILE
from agentrl.engines.canary import Agreement, compare
from agentrl.engines.embedded.adapted_weights import KeptBase, adapted, room_of_any
from agentrl.engines.embedded.architecture import Architecture, architecture_of
from agentrl.engines.embedded.decoder import assemble, moved, room_of
from agentrl.engines.embedded.generation_request import problem_of
from agentrl.engines.embedded.served_model import ServedModel
from agentrl.engines.embedded.weight_reader import Room, contents_of, read_tensors
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.manifest import CONFIG_FILE, Manifest
from agentrl.engines.safetensors_layout import ONE_FILE, Place
from agentrl.errors import ConfigError
from agentrl.images import processing
from agentrl.images.patches import Patches, patches_of
from agentrl.images.processing import ImageError, Processing


def load_verified(
    directory: Path,
    version: int,
    manifest: Manifest,
    device: torch.device | str = "cpu",
    kept: KeptBase | None = None,
) -> tuple[ServedModel, Agreement]:
    """A model whose files and answers agree with the manifest. `kept` holds the base of versions that are adapters; the
    base is read into it if necessary. Raises WeightsRefusedError."""
    of_weights = {ADAPTER_FILE} if manifest.base is not None else set() if manifest.weights else {ONE_FILE}
    missing = {CONFIG_FILE, *of_weights} - manifest.files.keys()
    if missing:
        raise WeightsRefusedError(f"The manifest of {directory} does not name {', '.join(sorted(missing))}.")
    weights = {name: manifest.files[name] for name in manifest.weights}
    rest = Manifest({name: content for name, content in manifest.files.items() if name not in weights})
    if wrong := manifests.problems(directory, rest.files):
        manifests.refuse_wrong(directory, wrong + manifests.problems(directory, weights))
    files = [name for name in (CONFIG_FILE, *processing.FILES) if name in rest.files]
    contents = {name: manifests.read_file(directory, rest, name) for name in files}
    kept = kept or KeptBase()

    def read(room: Room) -> Mapping[str, Tensor]:
        if manifest.base is None:
            kept.forget()
            return read_tensors(directory, weights, room)
        return adapted(directory, manifest, kept.tensors(manifest.base.beside(directory), manifest.base, room))

    model = model_of(directory, version, contents, read, device)
    return model, check_canary(model, manifest)


def read_unpublished(directory: Path, version: int, device: torch.device | str = "cpu") -> ServedModel:
    """A model without a manifest. Raises WeightsRefusedError if its tensors do not fit its configuration."""
    files = (CONFIG_FILE, *processing.FILES)
    contents = {name: (directory / name).read_bytes() for name in files if (directory / name).is_file()}
    return model_of(
        directory, version, contents, lambda room: read_tensors(directory, contents_of(directory), room), device
    )


@torch.inference_mode()
def check_canary(model: ServedModel, manifest: Manifest) -> Agreement:
    """Raises WeightsRefusedError if the model's log-probs for the canary differ from those of its writer."""
    canary = manifest.canary
    images: dict[int, Patches] = {}
    if canary.images and model.processing is not None:
        try:
            images = {one.number: patches_of(one.png, model.processing) for one in canary.images}
        except ImageError as wrong:
            raise WeightsRefusedError(f"The canary of version {model.version}: {wrong.message}") from wrong
    for ids in canary.ids:
        if ids and problem_of(ids, images, model.vocabulary):
            raise WeightsRefusedError(f"The canary of version {model.version} has ids that the model does not know.")
    agreement = compare(canary, model.scores(canary.ids, images))
    if problem := agreement.problem():
        raise WeightsRefusedError(f"Version {model.version} is refused: {problem}.")
    return agreement


def model_of(
    directory: Path,
    version: int,
    contents: Mapping[str, bytes],
    read: Callable[[Room], Mapping[str, Tensor]],
    device: torch.device | str = "cpu",
) -> ServedModel:
    """The model. `read` returns tensors whose contents, names and shapes are checked; `contents` has the contents of
    the configuration files. Raises WeightsRefusedError."""
    config = contents[CONFIG_FILE]
    try:
        architecture = architecture_of(config, directory / CONFIG_FILE)
    except ConfigError as wrong:
        raise WeightsRefusedError(wrong.message) from wrong
    if architecture is None:
        return _of_transformers(directory, version, contents, read(room_of_any), device)
    return moved(assemble(read(_room_in(directory, architecture)), architecture, version), device)


def _room_in(directory: Path, architecture: Architecture) -> Room:
    """Makes empty tensors for this architecture."""

    def room(places: Mapping[str, Place]) -> dict[str, Tensor]:
        shapes = {name: place.shape for name, place in places.items()}
        if architecture.tie_word_embeddings:
            # Some writers store the tied head a second time.
            shapes.pop("lm_head.weight", None)
        expected = architecture.shapes()
        if shapes != expected:
            _refuse_names(
                directory, {name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name)}
            )
        return room_of(architecture)

    return room


def _of_transformers(
    directory: Path,
    version: int,
    contents: Mapping[str, bytes],
    loaded: Mapping[str, torch.Tensor],
    device: torch.device | str,
) -> ServedModel:
    # Imported here, because it takes seconds that the engine's own decoder does not need.
    import transformers

    from agentrl.engines.embedded.attention_model import AttentionModel, is_attention_only
    from agentrl.engines.embedded.state_model import StateModel
    from agentrl.engines.embedded.vision_model import VisionModel

    try:
        with tempfile.TemporaryDirectory() as place:
            # transformers can only read a file, so the checked content is written to one.
            Path(place, CONFIG_FILE).write_bytes(contents[CONFIG_FILE])
            described = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
        shown = _processing(directory, contents)
        kinds = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        if shown is not None:
            kinds = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        of_kind: Any = kinds[type(described)]
        model, found = of_kind.from_pretrained(
            None, config=described, state_dict=dict(loaded), dtype=torch.float32, output_loading_info=True
        )
    except (ValueError, KeyError, TypeError, RuntimeError) as wrong:
        sentence = f"The embedded engine cannot run {directory}: transformers has no such causal model ({wrong})."
        raise WeightsRefusedError(sentence) from wrong
    differing = {*found["missing_keys"], *found["unexpected_keys"], *(one[0] for one in found["mismatched_keys"])}
    if differing:
        _refuse_names(directory, differing)
    model.requires_grad_(False).train(False).to(device)
    if shown is not None:
        return VisionModel(version, model, shown)
    return AttentionModel(version, model) if is_attention_only(model) else StateModel(version, model)


def _processing(directory: Path, contents: Mapping[str, bytes]) -> Processing | None:
    """How images are shown; None for a model that reads only text. Raises WeightsRefusedError."""
    described = json.loads(contents[CONFIG_FILE])
    if not processing.reads_images(described):
        return None
    kind = described.get("model_type")
    if kind not in processing.MODELS:
        raise WeightsRefusedError(f"The embedded engine cannot run {directory}: images of {kind!r} are not known.")
    name = next((name for name in processing.FILES if name in contents), "")
    if not name:
        raise WeightsRefusedError(f"{directory} reads images and has no {processing.FILES[0]}.")
    try:
        return processing.processing_from(contents[name], name, described, str(directory))
    except ConfigError as wrong:
        raise WeightsRefusedError(wrong.message) from wrong


def _refuse_names(directory: Path, wrong: set[str]) -> None:
    listed = ", ".join(sorted(wrong)[:3]) + (", ..." if len(wrong) > 3 else "")
    raise WeightsRefusedError(f"{len(wrong)} tensors in {directory} are not those of its {CONFIG_FILE}: {listed}.")
